"""Reasoning that completions begin with: where it ends, stop strings in it, and its budget."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.errors import RequestError
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from ingot.runtime.reasoning import Budget, BudgetState, ReasoningParams, ReasoningSplit

TAGS = ReasoningParams(begin="<a>", end="</a>")
OPENED = ReasoningParams(begin="", end="</a>")


def whole_split(text: str, params: ReasoningParams) -> tuple[str, str]:
    """Reasoning and what follows, of a whole text."""
    if not text.lstrip().startswith(params.begin):
        return "", text
    before, end, after = text.partition(params.end)
    return before + end, after


@given(
    st.text("</a> \nx", max_size=24),
    st.sampled_from(["<a>", " <a>", ""]),
    st.lists(st.integers(0, 24), max_size=4),
    st.sampled_from([TAGS, OPENED]),
)
def test_however_a_text_is_cut_its_parts_are_the_same(
    text: str, begin: str, cuts: list[int], params: ReasoningParams
) -> None:
    text = begin + text
    split, bounds = ReasoningSplit(params), [0, *sorted(min(c, len(text)) for c in cuts), len(text)]
    pieces = [split.push(text[a:b]) for a, b in pairwise(bounds)]
    pieces.append(("", split.finish()))
    assert tuple(map("".join, zip(*pieces, strict=True))) == whole_split(text, params)


@pytest.mark.parametrize("thought", ["", "<", "Hm, so.", "</think"])
@pytest.mark.parametrize("begin", ["", "<think>"])
def test_the_end_of_reasoning_is_found_wherever_it_is_cut(begin: str, thought: str) -> None:
    reasoning, after = f"{begin}{thought}</think>", "Yes."
    text = reasoning + after
    sizes = [[size] * len(text) for size in range(1, 9)]
    for cuts in (*sizes, *([at, len(text)] for at in range(len(text)))):
        split = ReasoningSplit(ReasoningParams(begin=begin, end="</think>"))
        ends = [*accumulate(cuts)]
        pieces = [split.push(text[a:b]) for a, b in pairwise([0, *ends])]
        assert tuple(map("".join, zip(*pieces, strict=True))) == (reasoning, after)


def test_text_that_is_no_reasoning_is_not_held_back() -> None:
    split = ReasoningSplit(TAGS)
    assert [split.push(each) for each in (" ", "<", "b", "</a>")] == [
        ("", ""),
        ("", ""),
        ("", " <b"),
        ("", "</a>"),
    ]


@pytest.mark.parametrize(
    ("given_", "found"),
    [
        ({"end": ""}, "reasoning.end is ''"),
        ({"begin": 3}, "reasoning.begin is 3"),
        ({"begin": "x" * 65}, "reasoning.begin is"),
        ({"max_tokens": -1}, "reasoning.max_tokens is -1"),
        ({"max_tokens": True}, "reasoning.max_tokens is True"),
        ({"closing": "enough"}, "reasoning.closing is 'enough'"),
        ({"most": 3}, "most"),
        (7, "reasoning is 7"),
    ],
)
def test_what_is_no_reasoning_is_named(given_: object, found: str) -> None:
    with pytest.raises(RequestError, match=found):
        SamplingParams(reasoning=given_)


def budget(most: int, *, begin: str = "", closing: str = "!]") -> Budget:
    """One whose tokens are characters."""
    params = ReasoningParams(begin=begin, end="]", closing=closing, max_tokens=most)
    made = Budget.of(params, lambda text: list(map(ord, text)), lambda ids: "".join(map(chr, ids)))
    assert made is not None
    return made


def forced(state: BudgetState, text: str) -> str:
    """What has to follow a completion; empty for anything."""
    token = state.forced([1, 2, *map(ord, text)], 2)
    return "" if token is None else chr(token)


@pytest.mark.parametrize(
    ("begin", "most", "completion", "following"),
    [
        ("", 3, "ab", ""),
        ("", 3, "abc", "!"),
        ("", 3, "abc!", "]"),
        ("", 3, "abc!]", ""),
        ("", 3, "a]c", ""),  # it ended by itself
        ("", 3, "a]cd", ""),
        ("", 0, "", "!"),
        ("[", 3, "abc", ""),  # it has no reasoning
        ("[", 3, " [b", "!"),
        ("[", 1, "[", "!"),
        ("[", 0, "", "["),
        ("[", 0, "[", "!"),
        ("[", 0, "[!", "]"),
        ("[", 0, "[!]", ""),
    ],
)
def test_a_budget_closes_reasoning_that_has_used_it_up(
    begin: str, most: int, completion: str, following: str
) -> None:
    assert forced(BudgetState(budget(most, begin=begin)), completion) == following


def test_a_budget_looks_again_where_tokens_were_taken_back() -> None:
    state = BudgetState(budget(3))
    assert forced(state, "a]c") == ""
    assert forced(state, "ab") == ""
    assert forced(state, "abc") == "!"


@pytest.fixture(scope="module")
def llm(shakespeare_artifact: Path) -> Iterator[LLM]:
    with LLM(shakespeare_artifact, num_threads=1) as found:
        yield found


def texts(llm: LLM, **params: object) -> list[str]:
    given_ = SamplingParams(**{"max_tokens": 30, "seed": 3, "ignore_eos": True, **params})
    return [c.text for c in llm.generate("ROMEO:\n", given_, use_tqdm=False)[0].outputs]


def test_the_model_goes_on_behind_the_words_that_close_its_reasoning(llm: LLM) -> None:
    closing = "\nEnough.\nJULIET:\n"
    thought = {"begin": "", "end": "JULIET:", "closing": closing}
    free = texts(llm)[0]
    tokenizer = llm.get_tokenizer()
    size = len(tokenizer.encode(closing, add_special_tokens=False))
    for most in (0, 1, 7):
        (text,) = texts(llm, reasoning={**thought, "max_tokens": most}, max_tokens=30 + size)
        before, _, after = text.partition(closing)
        assert free.startswith(before.rstrip("\ufffd")) and after.strip()
        assert len(tokenizer.encode(before, add_special_tokens=False)) <= most
    assert texts(llm, reasoning={**thought, "max_tokens": 500}) == [free]


def test_every_completion_has_a_budget_of_its_own(llm: LLM) -> None:
    thought = {"begin": "", "end": "\nEND", "max_tokens": 4}
    found = texts(llm, reasoning=thought, n=4, temperature=1.5, min_tokens=9)
    assert all("\nEND" in text for text in found)
    assert len({text.partition("\nEND")[0] for text in found}) > 1


def test_a_stop_string_counts_behind_reasoning_alone(llm: LLM) -> None:
    free = texts(llm)[0]
    stop = free[4:7]
    thought = {"begin": "", "end": free[8:12]}
    assert texts(llm, stop=stop)[0] == free[:4]
    assert texts(llm, stop=stop, reasoning={"begin": "<none>"})[0] == free[:4]
    later = free.find(stop, 12)
    assert texts(llm, stop=stop, reasoning=thought)[0] == (free if later < 0 else free[:later])
    assert texts(llm, stop=free[10:14], reasoning=thought)[0] == free  # it begins in the reasoning
    assert texts(llm, stop=free[12:14], reasoning=thought)[0] == free[:12]


def test_a_form_without_room_for_reasoning_wins(llm: LLM) -> None:
    form = {"choice": ["yes", "no"]}
    thought = {"begin": "", "end": "</think>", "max_tokens": 0}
    assert texts(llm, structured_outputs=form, reasoning=thought)[0] in ("yes", "no")


def test_reasoning_ends_within_a_form_that_has_room_for_it(llm: LLM) -> None:
    form = {"regex": r"[^<]*</think>(yes|no)"}
    thought = {"begin": "", "end": "</think>", "max_tokens": 5}
    (text,) = texts(llm, structured_outputs=form, reasoning=thought)
    before, _, answer = text.partition("</think>")
    assert before and answer in ("yes", "no")
