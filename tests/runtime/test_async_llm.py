from __future__ import annotations

import asyncio
import gc
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

import pytest

from ingot.errors import InternalError, QueueFullError, RequestError, UsageError
from ingot.runtime.async_llm import AsyncLLM
from ingot.runtime.config import EngineConfig
from ingot.runtime.params import RequestOutputKind, SamplingParams
from tests.runtime.fake_model import NAN_TOKEN, greedy
from tests.runtime.gate import is_idle
from tests.support.until import until

GREEDY = SamplingParams(temperature=0, max_tokens=10, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=90, ignore_eos=True)


def use(path, scenario, **options):
    """Runs `scenario(llm)` and checks that it leaves nothing behind."""

    async def main():
        async with AsyncLLM(path, **options) as llm:
            result = await asyncio.wait_for(scenario(llm), 60)
            assert is_idle(llm)
            return result

    return asyncio.run(main())


def test_a_request_keeps_the_values_that_it_was_given(fake_artifact):
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)

    async def scenario(llm):
        loop, free = asyncio.get_running_loop(), threading.Event()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, free.wait)  # so that the request waits to be checked
        request = asyncio.create_task(last(llm.generate([5, 6], params)))
        await asyncio.sleep(0)
        params.max_tokens = 1
        free.set()
        await busy
        return await request

    assert use(fake_artifact, scenario).outputs[0].token_ids == greedy([5, 6], 5)


async def last(outputs):
    final = None
    async for output in outputs:
        final = output
    return final


def test_many_requests_at_once_get_what_each_gets_alone(fake_artifact):
    prompts = [[i, i + 1, 7] for i in range(20)]

    async def scenario(llm):
        return await asyncio.gather(*(last(llm.generate(p, GREEDY)) for p in prompts))

    for output, prompt in zip(use(fake_artifact, scenario), prompts, strict=True):
        assert output.finished and output.outputs[0].token_ids == greedy(prompt, 10)
        assert output.outputs[0].finish_reason == "length"
        assert output.metrics.num_generated_tokens == 10


def test_the_output_kinds_hold_the_same_text(fake_artifact):
    def params(kind):
        return SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, output_kind=kind)

    async def scenario(llm):
        kinds = [RequestOutputKind.CUMULATIVE, RequestOutputKind.DELTA]
        kinds.append(RequestOutputKind.FINAL_ONLY)
        return [[o async for o in llm.generate([5, 6], params(kind))] for kind in kinds]

    whole, deltas, final = use(fake_artifact, scenario)
    text = final[0].outputs[0].text
    assert len(final) == 1 and whole[-1].outputs[0].text == text and text
    assert "".join(o.outputs[0].text for o in deltas) == text
    assert [t for o in deltas for t in o.outputs[0].token_ids] == greedy([5, 6], 20)
    texts = [o.outputs[0].text for o in whole]
    assert all(later.startswith(former) for former, later in itertools.pairwise(texts))


@pytest.mark.parametrize("name", ["DELTA", "CUMULATIVE"])
def test_a_slow_reader_gets_every_token(fake_artifact, name):
    """Each delta, or of outputs that hold all so far, the last one alone."""
    kind = RequestOutputKind[name]
    params = SamplingParams(temperature=0, max_tokens=20, ignore_eos=True, output_kind=kind)

    async def scenario(llm):
        outputs = llm.generate([5, 6], params)
        first = await anext(outputs)
        await until(lambda: llm.counters().num_finished)
        await asyncio.sleep(0)  # what the engine has told by then arrives
        return [first, *[output async for output in outputs]]

    found = use(fake_artifact, scenario)
    tokens = [output.outputs[0].token_ids for output in found]
    is_delta = kind is RequestOutputKind.DELTA
    found_tokens = [*itertools.chain(*tokens)] if is_delta else tokens[-1]
    assert found_tokens == greedy([5, 6], 20)
    assert is_delta or len(found) <= 2


def test_cancelling_a_task_aborts_its_request_and_no_other(fake_artifact):
    async def scenario(llm):
        begun = asyncio.Event()

        async def read():
            async for _ in llm.generate([1], LONG):
                begun.set()
                await asyncio.Event().wait()  # until it is cancelled, however fast the model is

        task = asyncio.create_task(read())
        other = asyncio.create_task(last(llm.generate([2], LONG)))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        output = await other
        return output, llm.counters()

    output, counters = use(fake_artifact, scenario)
    assert output.outputs[0].token_ids == greedy([2], 90)
    assert counters.num_aborted + counters.num_finished == 2


def test_cancelling_before_the_first_token_and_leaving_the_loop_leave_nothing(fake_artifact):
    async def scenario(llm):
        for turns in range(4):
            task = asyncio.create_task(last(llm.generate([1], LONG)))
            for _ in range(turns):
                await asyncio.sleep(0)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        outputs = llm.generate([1], LONG)
        async for _ in outputs:
            break
        await outputs.aclose()

    use(fake_artifact, scenario)


def test_abort_ends_the_iterator_and_unknown_ids_are_harmless(fake_artifact):
    async def scenario(llm):
        await llm.abort("nobody")
        outputs = llm.generate([1], LONG, "me")
        first = await anext(outputs)
        await llm.abort("me")
        final = await last(outputs) or first  # it may have ended by itself
        await llm.abort("me")
        return first, final

    first, final = use(fake_artifact, scenario)
    assert first.request_id == final.request_id == "me"
    assert final.outputs[0].finish_reason in ("abort", "length") and final.finished


def test_a_request_id_is_refused_while_it_is_in_use(fake_artifact):
    async def scenario(llm):
        outputs = llm.generate([1], LONG, "a")
        await anext(outputs)
        with pytest.raises(RequestError, match="'a' is in use"):
            await last(llm.generate([2], GREEDY, "a"))
        await outputs.aclose()
        assert is_idle(llm)
        return await last(llm.generate([2], GREEDY, "a"))

    assert use(fake_artifact, scenario).outputs[0].token_ids == greedy([2], 10)


def test_bad_requests_are_refused_and_others_go_on(fake_artifact):
    async def scenario(llm):
        good = asyncio.create_task(last(llm.generate([3], GREEDY)))
        for bad in ([], [999], {"text": 1}):
            with pytest.raises(RequestError):
                await last(llm.generate(bad, GREEDY))
        with pytest.raises(RequestError, match="priority"):
            await last(llm.generate([1], GREEDY, priority="high"))
        output = await good
        with pytest.raises(InternalError, match="not finite"):
            await last(llm.generate([NAN_TOKEN], GREEDY))
        return output

    assert use(fake_artifact, scenario).outputs[0].token_ids == greedy([3], 10)


def test_a_full_queue_is_a_typed_error(fake_artifact):
    async def scenario(llm):
        tasks = [asyncio.create_task(last(llm.generate([i], LONG))) for i in range(30)]
        return await asyncio.gather(*tasks, return_exceptions=True)

    config = EngineConfig(max_waiting=1, max_num_seqs=1)
    results = use(fake_artifact, scenario, config=config)
    full = [r for r in results if isinstance(r, QueueFullError)]
    assert full and "max_waiting is 1" in str(full[0])
    done = [(i, r) for i, r in enumerate(results) if not isinstance(r, QueueFullError)]
    assert done and all(r.outputs[0].token_ids == greedy([i], 90) for i, r in done)


def test_kernels_that_fail_end_the_requests_and_not_the_model(fake_artifact):
    async def scenario(llm):
        executor = llm._engine._executor
        submit, executor.submit = executor.submit, lambda *arguments, **options: 1 // 0
        with pytest.raises(InternalError, match="ZeroDivisionError"):
            await last(llm.generate([1], GREEDY))
        executor.submit = submit
        return await last(llm.generate([1], GREEDY))

    assert use(fake_artifact, scenario).outputs[0].token_ids == greedy([1], 10)


def test_the_configuration_can_be_replaced_while_requests_run(fake_artifact):
    async def scenario(llm):
        task = asyncio.create_task(last(llm.generate([4], LONG)))
        for chunk in range(1, 6):
            await llm.configure(
                EngineConfig(chunk_tokens=chunk, overlap=chunk % 2 == 0, prefix_cache=chunk > 2)
            )
        return await task

    assert use(fake_artifact, scenario).outputs[0].token_ids == greedy([4], 90)


def test_chat_works_as_with_llm(fake_artifact):
    async def scenario(llm):
        return await last(llm.chat([{"role": "user", "content": "b"}], GREEDY))

    assert use(fake_artifact, scenario).prompt == "<s>[user]b[assistant]"


def test_chats_tell_what_they_say(fake_artifact):
    template = "{{ messages[0].content }}<think>{# </think> #}"

    async def scenario(llm):
        chat = llm.chat(
            [{"role": "user", "content": "b"}],
            replace(GREEDY, max_tokens=40, output_kind=RequestOutputKind.DELTA),
            chat_template=template,
            max_thinking_tokens=2,
        )
        return [output.outputs[0] async for output in chat]

    outputs = use(fake_artifact, scenario)
    text, content, reasoning = (
        "".join(getattr(each, name) or "" for each in outputs)
        for name in ("text", "content", "reasoning")
    )
    thought, end, rest = text.partition("\n</think>\n\n")
    assert (end != "", reasoning, content) == (True, thought.strip(), rest.lstrip())


def test_closing_ends_what_runs_and_later_calls(fake_artifact):
    async def main():
        llm = AsyncLLM(fake_artifact)
        outputs = llm.generate([1], LONG)
        await anext(outputs)
        await asyncio.to_thread(llm.close)
        llm.close()
        with suppress(UsageError):  # unless it had come to its end just before
            await last(outputs)
        with pytest.raises(UsageError, match="closed"):
            await last(llm.generate([1], GREEDY))

    asyncio.run(main())


@pytest.mark.parametrize("overlap", [False, True])
def test_a_forgotten_model_ends_its_thread(fake_artifact, overlap):
    def names():
        return [t.name for t in threading.enumerate() if t.name.startswith("ingot-")]

    before = names()
    llm = AsyncLLM(fake_artifact, config=EngineConfig(overlap=overlap))
    asyncio.run(last(llm.generate([1], GREEDY)))
    assert names() == [*before, "ingot-engine"]
    del llm
    gc.collect()
    assert names() == before


def test_what_ends_a_thread_elsewhere_ends_one_request_here(fake_artifact):
    def exits(generated, row):
        raise SystemExit(1)

    async def scenario(llm):
        other = asyncio.create_task(last(llm.generate([2], LONG)))
        params = SamplingParams(temperature=0, logits_processors=[exits])
        with pytest.raises(RequestError, match="raised SystemExit"):
            await last(llm.generate([1], params))
        return await other

    assert use(fake_artifact, scenario).outputs[0].token_ids == greedy([2], 90)
