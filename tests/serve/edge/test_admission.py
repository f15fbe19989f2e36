"""Requests that wait, or take too long."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, ExitStack, suppress

import pytest

from ingot.serve.asked import Asked
from ingot.serve.edge.admission import Admission
from ingot.serve.refusal import QueueFull, QueueTimeout, RequestTimeout
from tests.serve.edge.edge_server import FACTS, with_limits
from tests.support.until import until

SEATS = 3  # of the model above: those of its engine, and two on the way there


def asked(model: str = "m", **changes) -> Asked:
    return Asked(model=model, facts=FACTS, **changes)


async def fill(stack: AsyncExitStack, admission: Admission, **changes) -> None:
    for _ in range(SEATS):
        await stack.enter_async_context(admission.enter(asked(**changes)))


async def gone(task: asyncio.Task) -> None:
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task


def run(scenario, **limits) -> None:
    async def main() -> None:
        admission = Admission(with_limits(**limits))
        await scenario(admission)
        line = admission.lines["m"]
        assert (line.num_taken, line.num_running, line.num_waiting) == (0, 0, 0)
        assert not admission._shares

    asyncio.run(main())


def test_one_that_waits_gets_in_when_another_leaves():
    async def scenario(admission: Admission) -> None:
        entered = asyncio.Event()

        async def waiter() -> None:
            async with admission.enter(asked()):
                entered.set()

        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            task = asyncio.create_task(waiter())
            await until(lambda: admission.lines["m"].num_waiting)
            assert not entered.is_set()
        await task
        assert entered.is_set()

    run(scenario)


def test_a_full_queue_refuses_at_once_and_says_when_to_come_back():
    async def scenario(admission: Admission) -> None:
        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            waiting = asyncio.create_task(stack.enter_async_context(admission.enter(asked())))
            await until(lambda: admission.lines["m"].num_waiting)
            with pytest.raises(QueueFull) as caught:
                async with admission.enter(asked()):
                    pytest.fail("it got in")
            assert caught.value.retry_after >= 1
            async with admission.enter(asked("other")):  # another model has a line of its own
                pass
            await gone(waiting)

    run(scenario, max_queue=1)


def test_requests_whose_prompts_are_made_count_before_they_wait():
    """With every seat free and a queue of 2, as many more as get seats at once are read."""

    async def scenario(admission: Admission) -> None:
        with ExitStack() as reading:
            for _ in range(SEATS + 2):
                reading.enter_context(admission.expect(asked()))
            with pytest.raises(QueueFull, match=r"^5 requests .* read"), admission.expect(asked()):
                pytest.fail("it is read")
            with admission.expect(asked("other")):
                pass
        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            waiting = asyncio.create_task(stack.enter_async_context(admission.enter(asked())))
            await until(lambda: admission.lines["m"].num_waiting)
            with (
                admission.expect(asked()),
                pytest.raises(QueueFull, match="2 requests wait"),
                admission.expect(asked()),
            ):
                pytest.fail("it is read")
            with admission.expect(asked()):  # one has left that was to come
                pass
            await gone(waiting)
        assert not admission.lines["m"].num_expected and not admission._expected

    run(scenario, max_queue=2)


def test_a_key_and_a_line_of_tokens_that_are_full_refuse_before_prompts_are_made():
    async def scenario(admission: Admission) -> None:
        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            full = admission.enter(asked(num_tokens=320))
            waiting = asyncio.create_task(stack.enter_async_context(full))
            await until(lambda: admission.lines["m"].num_waiting)
            with pytest.raises(QueueFull, match="at most 320"), admission.expect(asked()):
                pytest.fail("it is read")
            await gone(waiting)
        with admission.expect(asked(key="bob")), admission.expect(asked(key="bob")):
            with pytest.raises(QueueFull, match="this key"), admission.expect(asked(key="bob")):
                pytest.fail("it is read")
            with admission.expect(asked(key="ann")), admission.expect(asked()):
                pass

    run(scenario, max_key_requests=2)


def test_tokens_that_wait_are_bounded_by_what_the_cache_holds():
    async def scenario(admission: Admission) -> None:
        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            first = asyncio.create_task(
                stack.enter_async_context(admission.enter(asked(num_tokens=300)))
            )
            await until(lambda: admission.lines["m"].num_waiting)
            with pytest.raises(QueueFull, match="at most 320"):
                async with admission.enter(asked(num_tokens=21)):
                    pytest.fail("it got in")
            await gone(first)

    run(scenario)


def test_one_whose_turn_does_not_come_gives_up():
    async def scenario(admission: Admission) -> None:
        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            with pytest.raises(QueueTimeout, match=r"within 0\.01 seconds"):
                async with admission.enter(asked()):
                    pytest.fail("it got in")

    run(scenario, queue_timeout=0.01)


def test_one_that_takes_too_long_is_cancelled_and_gets_a_typed_error():
    async def scenario(admission: Admission) -> None:
        seen = []

        async def handle() -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                seen.append("cancelled")
                raise

        with pytest.raises(RequestTimeout, match=r"longer than 0\.01 seconds"):
            async with admission.enter(asked()):
                await handle()
        assert seen == ["cancelled"]

    run(scenario, request_timeout=0.01)


def test_the_time_before_it_entered_counts():
    async def scenario(admission: Admission) -> None:
        with pytest.raises(RequestTimeout):
            async with admission.enter(asked(), elapsed=10.0):
                await asyncio.Event().wait()

    run(scenario, request_timeout=5.0)


def test_a_client_that_leaves_while_it_waits_or_runs_frees_what_it_had():
    async def scenario(admission: Admission) -> None:
        async def request() -> None:
            async with admission.enter(asked(key="k", num_tokens=5)):
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(request()) for _ in range(SEATS + 2)]
        await until(lambda: "m" in admission.lines and admission.lines["m"].num_waiting == 2)
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)

    run(scenario)


def test_an_error_of_the_handler_passes_through():
    async def scenario(admission: Admission) -> None:
        with pytest.raises(TimeoutError, match="its own"):
            async with admission.enter(asked()):
                raise TimeoutError("its own")

    run(scenario)


def test_a_key_has_its_share_over_all_models():
    async def scenario(admission: Admission) -> None:
        async with admission.enter(asked(key="a")), admission.enter(asked("n", key="a")):
            with pytest.raises(QueueFull, match="2 requests under way"):
                async with admission.enter(asked(key="a")):
                    pytest.fail("it got in")
            async with admission.enter(asked(key="b")):
                pass
        async with admission.enter(asked(key="a")):
            pass

    run(scenario, max_key_requests=2)


def test_the_tokens_of_a_key_are_bounded():
    async def scenario(admission: Admission) -> None:
        async with admission.enter(asked(key="a", num_tokens=60)):
            with pytest.raises(QueueFull, match="60 tokens under way, and this one has 50"):
                async with admission.enter(asked(key="a", num_tokens=50)):
                    pytest.fail("it got in")
            async with admission.enter(asked(key="a", num_tokens=40)):
                pass

    run(scenario, max_key_tokens=100)


def test_tokens_of_jobs_are_rounded_up():
    async def scenario(admission: Admission) -> None:
        async with AsyncExitStack() as stack:
            await fill(stack, admission)
            some = admission.enter(asked(num_jobs=2, num_sequences=2, num_tokens=3))
            waiting = asyncio.create_task(stack.enter_async_context(some))
            await until(lambda: admission.lines["m"].num_waiting)
            assert admission.lines["m"].num_waiting_tokens == 2
            await gone(waiting)

    run(scenario)


def test_the_jobs_of_a_request_take_seats_by_turns_with_the_requests_of_others():
    async def scenario(admission: Admission) -> None:
        order: list[str] = []
        ends = {name: asyncio.Event() for name in [*map(str, range(8)), "other"]}

        async def job(seats, name: str) -> None:
            async with seats.take():
                order.append(name)
                await ends[name].wait()

        async def request(names: list[str]) -> None:
            wanted = asked(num_jobs=len(names), num_sequences=len(names), num_tokens=8)
            async with admission.enter(wanted) as seats:
                await asyncio.gather(*(job(seats, name) for name in names))

        many = asyncio.create_task(request([*map(str, range(8))]))
        await until(lambda: len(order) == SEATS)
        line = admission.lines["m"]
        assert (line.num_running, line.num_waiting) == (SEATS, 1)  # 1 of the 5 that are left
        other = asyncio.create_task(request(["other"]))
        await until(lambda: line.num_waiting == 2)
        ends["0"].set()
        ends["1"].set()
        await until(lambda: "other" in order)
        assert order == ["0", "1", "2", "3", "other"]
        for end in ends.values():
            end.set()
        await asyncio.gather(many, other)
        assert len(order) == 9

    run(scenario)


def test_further_jobs_of_a_request_are_not_refused_where_the_line_is_full():
    async def scenario(admission: Admission) -> None:
        async def job(seats) -> None:
            async with seats.take():
                await asyncio.sleep(0)

        async with admission.enter(asked(num_jobs=9, num_sequences=9)) as seats:
            blocked = [asyncio.create_task(job(seats)) for _ in range(9)]
            await asyncio.gather(*blocked)

    run(scenario, max_queue=1, queue_timeout=0.5, max_queue_tokens=1)


def test_a_request_of_many_jobs_that_is_cancelled_frees_its_seats_and_its_place():
    async def scenario(admission: Admission) -> None:
        async def job(seats) -> None:
            async with seats.take():
                await asyncio.Event().wait()

        async def request() -> None:
            wanted = asked(num_jobs=9, num_sequences=9)
            async with admission.enter(wanted) as seats, asyncio.TaskGroup() as group:
                for _ in range(9):
                    group.create_task(job(seats))

        task = asyncio.create_task(request())
        await until(lambda: "m" in admission.lines and admission.lines["m"].num_waiting)
        await gone(task)

    run(scenario)
