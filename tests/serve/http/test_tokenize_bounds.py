"""What `/tokenize` takes: so much text, and so many at once."""

from __future__ import annotations

import asyncio

import pytest
import tokenizers

from ingot.serve.http import routes
from ingot.serve.http.app import build_app
from ingot.serve.refusal import QueueFull
from ingot.serve.requests.context import Turns
from tests.conftest import SHAKESPEARE
from tests.support.asgi import called
from tests.support.fake_engine import FakeEngine, FakeModels, says
from tests.support.until import until


def test_a_text_may_be_longer_than_a_prompt_and_not_of_any_length(monkeypatch) -> None:
    monkeypatch.setattr(routes, "MAX_TOKENIZED_CHARS", 20_000)
    app = build_app(FakeModels(bard=FakeEngine(says("a"))))

    async def answer(**asked):
        return await called(app, "POST", "/tokenize", asked)

    fits = asyncio.run(answer(prompt="a " * 10_000))
    assert fits.status == 200 and fits.json()["count"] > fits.json()["max_model_len"]
    refused = asyncio.run(answer(prompt="a " * 10_000 + "a"))
    assert refused.status == 400 and refused.json()["error"]["param"] == "prompt"
    assert "at most 20000" in refused.json()["error"]["message"]


def test_so_many_have_a_turn_so_many_wait_and_no_more() -> None:
    async def main() -> None:
        turns, go, inside = Turns(1, 2), asyncio.Event(), []

        async def one(name: str) -> None:
            async with turns.take():
                inside.append(name)
                await go.wait()

        tasks = [asyncio.create_task(one(name)) for name in "abc"]
        await until(lambda: inside)
        further = asyncio.create_task(one("d"))
        await until(lambda: further.done() or turns._num_inside > 3)
        with pytest.raises(QueueFull, match="3 requests"):
            further.result()
        tasks[1].cancel()  # one that waits leaves, and makes room
        await asyncio.wait(tasks[1:2])
        tasks.append(asyncio.create_task(one("e")))
        await until(lambda: turns._num_inside == 3)
        assert inside == ["a"]
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert inside == ["a", "c", "e"] and turns._num_inside == 0

    asyncio.run(main())


SIZE = 1_000_000  # characters
LARGE = {
    "one letter": "a",
    "one mark": "_",
    "spaces": " ",
    "digits": "7",
    "joined faces": "\N{WOMAN}\N{ZERO WIDTH JOINER}\N{PERSONAL COMPUTER}",
    "accents": "a\N{COMBINING ACUTE ACCENT}\N{COMBINING DIAERESIS}",
    "zeros": "\0",
    "json": '{"a":[1,2,"bcd"],"e":null}',
    "prose": "To be, or not to be: that is the question.\n",
}


@pytest.mark.cases(thorough=1)
@pytest.mark.thorough
@pytest.mark.parametrize("name", LARGE)
def test_a_megabyte_of_anything_has_the_tokens_of_the_library(name: str) -> None:
    text = (LARGE[name] * SIZE)[:SIZE]
    app = build_app(FakeModels(bard=FakeEngine(says("x"))))
    answer = asyncio.run(called(app, "POST", "/tokenize", {"prompt": text}))
    library = tokenizers.Tokenizer.from_file(str(SHAKESPEARE / "tokenizer.json"))
    assert answer.json()["tokens"] == library.encode(text).ids
    assert answer.json()["count"] == len(answer.json()["tokens"])


@pytest.mark.thorough
def test_halves_of_surrogate_pairs_are_refused() -> None:
    app = build_app(FakeModels(bard=FakeEngine(says("x"))))
    answer = asyncio.run(called(app, "POST", "/tokenize", b'{"prompt": "a\\ud800b"}'))
    assert answer.status == 400
