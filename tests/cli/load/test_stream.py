"""What is read off a stream, and when it is taken to have come."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.cli.load.stream import RequestOutcome, ServerError, StreamReader, explain, payloads
from tests.support.fake_openai import completion, conversation, event

TICKS = [10.0, 10.5, 11.0, 11.25, 12.0, 13.0, 14.0, 15.0]


def read(writes: list[bytes]) -> RequestOutcome:
    outcome = RequestOutcome(prompt_tokens=99)
    reader = StreamReader(outcome, iter(TICKS).__next__)
    reader.begin()
    for data in writes:
        reader.take(data)
    reader.end()
    return outcome


def test_times_are_between_tokens_and_not_between_other_events():
    outcome = read(completion("a", "", "c"))  # a comment at 10.5, tokens at 11, 11.25, 12
    assert (outcome.start, outcome.ttft, outcome.itl) == (10.0, 1.0, [0.25, 0.75])
    assert (outcome.latency, outcome.text) == (2.0, "ac")
    assert (outcome.prompt_tokens, outcome.output_tokens) == (7, 3)


def test_the_role_and_the_reason_of_a_conversation_are_no_tokens():
    outcome = read(conversation("x", "y"))  # the role at 10.5, text at 11 and 11.25
    assert (outcome.ttft, outcome.itl, outcome.latency, outcome.text) == (1.0, [0.25], 1.25, "xy")


def test_reasoning_and_calls_of_tools_are_tokens():
    deltas = [{"reasoning_content": "a"}, {"reasoning": "b"}, {"tool_calls": [{"index": 0}]}]
    outcome = read([event({"choices": [{"delta": delta}]}) for delta in deltas])
    assert (outcome.ttft, outcome.itl, outcome.text) == (0.5, [0.5, 0.25], "ab")


def test_without_usage_events_are_counted():
    outcome = read(completion("a", "b", usage=None))
    assert (outcome.prompt_tokens, outcome.output_tokens) == (99, 2)


@given(st.lists(st.integers(0, 300), max_size=8), st.sampled_from([b"\n", b"\r\n"]))
def test_events_are_the_same_however_they_are_cut(cuts, end):
    data = b"".join(completion("Grüße", "\n", "☃")).replace(b"\n", end)
    found, rest = [], b""
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    for a, b in itertools.pairwise(edges):
        more, rest = payloads(rest, data[a:b])
        found += more
    expected = [line[6:] for line in data.decode().splitlines() if line.startswith("data: ")]
    assert [each.decode() for each in found] == expected and rest == b""
    assert expected[-1] == "[DONE]" and len(expected) == 5


@pytest.mark.parametrize("error", ["no", {"message": "no", "code": "x"}])
def test_an_error_in_the_stream_ends_it(error):
    with pytest.raises(ServerError, match=r"^no$"):
        read([event({"error": error})])


def test_an_answer_without_a_token_is_an_error():
    with pytest.raises(ServerError, match="no token"):
        read([event(b"[DONE]")])


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (json.dumps({"error": {"message": "too long"}}).encode(), "too long"),
        (b'{"error": "too long"}', "too long"),
        (b'{"detail": "too long"}', "too long"),
        (b"<html>\xff", "<html>\ufffd"),
        (b"[1]", "[1]"),
    ],
)
def test_every_shape_of_an_error_is_explained(body, said):
    assert explain(400, body) == f"HTTP 400: {said}"
