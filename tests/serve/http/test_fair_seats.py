"""A request of many prompts beside others."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext

from ingot.serve.asked import Asked
from ingot.serve.edge.edge import Edge
from ingot.serve.edge.settings import EdgeSettings
from ingot.serve.engine import Piece, Progress
from ingot.serve.http.app import build_app
from ingot.serve.requests.gate import Admitted, OpenGate
from tests.support.asgi import called, calling
from tests.support.fake_engine import FACTS, FakeEngine, FakeModels, says
from tests.support.until import until


def test_a_request_is_counted_to_its_model_by_all_that_it_may_take() -> None:
    found: list[Asked] = []

    class Watching(OpenGate):
        def expect(self, asked: Asked) -> AbstractContextManager[None]:
            found.append(asked)
            return nullcontext()

        @asynccontextmanager
        async def enter(self, asked: Asked) -> AsyncIterator[Admitted]:
            found.append(asked)
            yield Admitted(nullcontext, lambda progress, job: None)

    class Aliased(FakeModels):
        def name_of(self, name: str) -> str:
            return super().name_of("bard" if name == "poet" else name)

    app = build_app(Aliased(bard=FakeEngine(says("a"))), gate=Watching())
    fields = {"model": "poet", "prompt": [[7], [8, 9]], "n": 3, "max_tokens": 5}
    answer = asyncio.run(called(app, "POST", "/v1/completions", fields))
    assert answer.json()["model"] == "poet"
    expected, entered = found
    assert expected.model == entered.model == "bard"
    assert (entered.num_jobs, entered.num_sequences, entered.max_tokens) == (2, 6, 5)
    assert (entered.num_prompt_tokens, entered.num_tokens) == (3, 1 + 2 + 6 * 5)


def test_what_is_seen_of_a_step_is_its_prompts() -> None:
    seen: list[tuple[int, str]] = []

    class Watching(OpenGate):
        @asynccontextmanager
        async def enter(self, asked: Asked) -> AsyncIterator[Admitted]:
            yield Admitted(
                nullcontext, lambda progress, job: seen.append((job, progress.pieces[0].text))
            )

    def script(job):
        yield Progress([Piece(0, f"{job.token_ids[0]}", [5], None, "stop")], True)

    app = build_app(FakeModels(bard=FakeEngine(script)), gate=Watching())
    for prompts, wanted in (([[7], [8]], [(0, "7"), (1, "8")]), ([9], [(0, "9")])):
        asyncio.run(called(app, "POST", "/v1/completions", {"prompt": prompts}))
        assert sorted(seen) == wanted
        seen.clear()


def test_a_request_of_many_prompts_leaves_seats_to_others() -> None:
    async def main() -> None:
        one, rest = asyncio.Event(), asyncio.Event()

        def script(job):
            if job.token_ids == [2]:
                yield one
            elif job.token_ids == [1]:
                yield rest
            yield Progress([Piece(0, "a", [5], None, "stop")], True)

        engine = FakeEngine(script)
        app = build_app(FakeModels(bard=engine), gate=Edge(EdgeSettings()))
        prompts = {"prompt": [[2], [2], *[[1]] * (4 * FACTS.max_num_seqs)], "n": 1}
        async with calling(app, "POST", "/v1/completions", json.dumps(prompts).encode()) as many:
            await until(lambda: len(engine.jobs) > FACTS.max_num_seqs)
            seated = len(engine.jobs)
            assert seated < 2 * FACTS.max_num_seqs
            other = asyncio.create_task(called(app, "POST", "/v1/completions", {"prompt": [3]}))
            one.set()  # two seats become free: one for each request
            assert (await other).status == 200
            assert len(engine.jobs) <= seated + 3 and not many.complete
            rest.set()
        assert len(many.json()["choices"]) == 2 + 4 * FACTS.max_num_seqs

    asyncio.run(main())
