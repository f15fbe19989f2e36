from __future__ import annotations

import logging
import os
from itertools import accumulate
from types import SimpleNamespace

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from ingot.errors import EngineDeadError, InternalError, PassError, ProtocolError, RequestError
from ingot.serve.engine import Job, Piece, Progress
from ingot.serve.isolated import frames
from ingot.serve.isolated.child import _LogSender
from ingot.serve.isolated.frames import FrameReader, FrameWriter
from ingot.serve.isolated.messages import (
    Ask,
    Drop,
    Fault,
    FromEngine,
    Logged,
    Ping,
    Refused,
    ToEngine,
    Told,
)

MESSAGES = [
    Ask(0, Job(id="a", token_ids=[1, 2, 70000], params={"logit_bias": {3: 1.5}, "stop": ["é"]})),
    Drop(0),
    Ping(1),
    Ask(2, Job(id="b", token_ids=[*range(300)], stream=False, fingerprint=b"\0\xff")),
    Drop(2),
]


def written(messages=MESSAGES):
    writer = FrameWriter()
    return [writer.frame(message) for message in messages]


def read(data, kind=ToEngine, pieces=()):
    """The messages in bytes that come in pieces, and whether they end in an error."""
    reader, found, begin = FrameReader(kind), [], 0
    try:
        for end in (*sorted(pieces), len(data)):
            found += reader.feed(data[begin:end])
            begin = end
    except ProtocolError:
        return found, True
    return found, False


def test_what_no_message_can_hold_takes_no_number(monkeypatch):
    writer = FrameWriter()
    data = writer.frame(Drop(0))
    with pytest.raises(OverflowError):
        writer.frame(Drop(1 << 64))
    monkeypatch.setattr(frames, "MAX_BYTES", 100)
    with pytest.raises(ValueError, match="a message of"):
        writer.frame(MESSAGES[3])
    assert read(data + writer.frame(Drop(1))) == ([Drop(0), Drop(1)], False)


@settings(deadline=None, max_examples=100)
@given(st.lists(st.integers(0, 900), max_size=20))
def test_messages_come_through_however_their_bytes_are_cut(cuts):
    data = b"".join(written())
    assert read(data, pieces=[min(cut, len(data)) for cut in cuts]) == (MESSAGES, False)


@settings(deadline=None, max_examples=300)
@given(st.data())
def test_a_changed_byte_gives_an_error_or_nothing_and_never_another_message(data):
    stream = bytearray(b"".join(written()))
    place = data.draw(st.integers(0, len(stream) - 1))
    stream[place] ^= data.draw(st.integers(1, 255))
    found, _ = read(bytes(stream))
    assert len(found) < len(MESSAGES) and found == MESSAGES[: len(found)]


@settings(deadline=None, max_examples=200)
@given(st.lists(st.integers(0, len(MESSAGES) - 1), max_size=8))
def test_frames_in_another_order_give_an_error_where_it_begins(order):
    stream = written()
    ordered = [stream[i] for i in order]
    found, failed = read(b"".join(ordered), pieces=accumulate(map(len, ordered)))
    right = 0
    while right < len(order) and order[right] == right:
        right += 1
    assert found == MESSAGES[:right] and failed == (right < len(order))


@settings(deadline=None, max_examples=200)
@given(st.binary(min_size=12, max_size=200))
def test_other_bytes_are_refused(data):
    assert read(data) == ([], True)


def test_a_message_of_the_other_direction_or_of_another_type_is_refused():
    for message in (Told([], []), {"type": "Ask"}, [1, 2], "Ask", Ask("a", "b")):
        assert read(written([message])[0]) == ([], True)
    assert read(written([Ping(1)])[0], FromEngine) == ([], True)


def test_a_length_beyond_the_bound_is_refused_before_its_bytes_come(monkeypatch):
    (frame,) = written([MESSAGES[3]])
    assert read(frame[:12]) == ([], False)
    monkeypatch.setattr(frames, "MAX_BYTES", 100)
    assert read(frame[:12]) == ([], True)
    with pytest.raises(ValueError, match="a message of"):
        FrameWriter().frame(MESSAGES[3])


def test_progress_is_the_same_behind_a_socket():
    scores = [[(7, -0.5, 1, "x"), (9, -1.5, 2, None)]]
    progress = Progress([Piece(1, "é🙂", [7], scores, "stop", 9)], True, 4, [None, *scores])
    told = Told([(3, progress)], [(4, Fault.of(RequestError("bad", hint="good")))])
    (found,), failed = read(written([told])[0], FromEngine)
    assert not failed and found == told
    error = found.faults[0][1].error()
    assert type(error) is RequestError and (error.found, error.hint) == ("bad", "good")


@pytest.mark.parametrize(
    ("kind", "becomes"),
    [
        ("EngineDeadError", EngineDeadError),
        ("PassError", InternalError),  # it takes other arguments
        ("SystemExit", InternalError),
        ("describe", InternalError),
        ("Any", InternalError),
    ],
)
def test_a_fault_becomes_an_error_of_ours_and_nothing_else(kind, becomes):
    assert PassError.__init__ is not InternalError.__init__
    assert type(Fault(kind, "found", "").error()) is becomes


def test_names_of_files_that_are_no_text_are_told_all_the_same():
    name = os.fsdecode(b"/models/\xff.ingot")
    with pytest.raises(UnicodeEncodeError):
        FrameWriter().frame(Logged(40, name))  # and so would be lost
    fault = Fault.of(RequestError(f"{name} is damaged", hint=name))
    data = FrameWriter().frame(Refused(fault))
    (refused,), _ = read(data, FromEngine)
    assert refused.fault.error().found == r"/models/\udcff.ingot is damaged"
    sent = []
    handler = _LogSender(SimpleNamespace(send=sent.append))
    handler.emit(logging.makeLogRecord({"msg": name, "levelno": 40}))
    ((logged,), _) = read(FrameWriter().frame(sent[0]), FromEngine)
    assert logged == Logged(40, r"/models/\udcff.ingot")
