"""Logs: one line for each event, whatever is in it and wherever it goes."""

from __future__ import annotations

import logging
import os
import threading

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.serve.edge import logs
from ingot.serve.edge.logs import FORMATS, LineHandler, escaped, logging_to


def record(message: str, **fields) -> logging.LogRecord:
    made = logging.LogRecord("ingot.serve", logging.INFO, "", 0, message, (), None)
    made.created, made.msecs, made.fields = 0.0, 5.0, fields
    return made


def test_text_quotes_what_needs_it():
    line = FORMATS["text"](100).format(record("request", id="a-1", path="a b", ms=1.5, key=None))
    assert line == '1970-01-01T00:00:00.005Z INFO    request id=a-1 path="a b" ms=1.5'


def test_a_quote_does_not_end_a_value():
    line = FORMATS["text"](100).format(record("request", path='a" status="200'))
    assert line.endswith(r'path="a\" status=\"200"')


def test_json_has_the_same_values_with_their_types():
    line = FORMATS["json"](100).format(record("request", id="a\n", ms=1.5, key=None))
    assert msgspec.json.decode(line) == {
        "id": "a\\n",
        "ms": 1.5,
        "time": "1970-01-01T00:00:00.005Z",
        "level": "info",
        "logger": "ingot.serve",
        "message": "request",
    }


def test_fields_cannot_take_the_place_of_the_level_or_the_time():
    line = FORMATS["json"](100).format(record("m", level="error", time="never"))
    assert msgspec.json.decode(line)["level"] == "info"


def test_long_texts_are_cut_and_say_so():
    assert escaped("x" * 11, 10) == "x" * 10 + "... (11 characters)"
    assert len(FORMATS["text"](100).format(record("x" * 10**7, path="y" * 10**7))) < 1000


@given(st.text(max_size=200), st.sampled_from(sorted(FORMATS)))
def test_any_text_is_one_line_that_a_terminal_shows_as_it_is(text, name):
    line = FORMATS[name](1000).format(record(text, value=text))
    assert len(line.splitlines()) == 1
    assert not set(line) & {chr(code) for code in (*range(32), *range(127, 160), 0x202E)}
    line.encode()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_traceback_is_one_line(name):
    made = record("internal error")
    try:
        raise ValueError("two\nlines")
    except ValueError as error:
        made.exc_info = (type(error), error, error.__traceback__)
    line = FORMATS[name](1000).format(made)
    assert "two" in line and len(line.splitlines()) == 1


def test_the_end_of_a_long_traceback_is_kept():
    made = record("internal error")
    error = ValueError("x" * 20_000 + " the end")
    made.exc_info = (ValueError, error, None)
    assert "the end" in FORMATS["text"](1000).format(made)


def test_a_line_that_is_written_in_parts_is_whole(monkeypatch):
    parts: list[bytes] = []
    monkeypatch.setattr(
        os, "write", lambda _, data: parts.append(bytes(data[:7])) or len(parts[-1])
    )
    handler = LineHandler(2, lambda: pytest.fail("it was dropped"))
    handler.setFormatter(FORMATS["text"](100))
    handler.emit(made := record("a message"))
    assert b"".join(parts).decode() == f"{handler.format(made)}\n" and len(parts) > 1


def test_a_full_disk_costs_records_and_nothing_else():
    dropped = []
    full = os.open("/dev/full", os.O_WRONLY)
    with logging_to(fd=full, dropped=lambda: dropped.append(1)):
        for _ in range(5):
            logging.getLogger("ingot.serve").info("lost")
    os.close(full)
    assert len(dropped) == 5


def test_a_pipe_that_nobody_reads_holds_up_nobody(monkeypatch):
    """The thread that writes hangs in the pipe. Records above the bound are dropped at once, and
    the end does not wait for the thread."""
    monkeypatch.setattr(logs, "STOP_SECONDS", 0.01)
    dropped = []
    reader, writer = os.pipe()
    with logs.logging_to(fd=writer, dropped=lambda: dropped.append(1)):
        for _ in range(12_000):
            logging.getLogger("ingot.serve").info("%s", "x" * 100)
        assert dropped
    [stuck] = [thread for thread in threading.enumerate() if thread.name.endswith("(_monitor)")]
    os.close(reader)  # the writes of the thread fail from now on, so it comes to its end
    stuck.join()
    os.close(writer)


def test_what_uvicorn_says_of_bad_clients_is_not_logged(capfd):
    with logging_to():
        logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
        logging.getLogger("uvicorn.error").error("a fault")
    log = capfd.readouterr().err
    assert "Invalid" not in log and "a fault" in log


def test_levels_hold_and_handlers_are_put_back():
    before = logging.getLogger("ingot").handlers
    reader, writer = os.pipe()
    with logging_to(level="warning", fd=writer):
        logging.getLogger("ingot.serve").info("quiet")
        logging.getLogger("ingot.serve").warning("loud")
    os.close(writer)
    with open(reader) as log:
        assert [line.split(None, 2)[2] for line in log] == ["loud\n"]
    assert logging.getLogger("ingot").handlers == before


def test_a_record_that_cannot_be_formatted_is_dropped():
    dropped = []
    handler = LineHandler(2, lambda: dropped.append(1))
    made = record("%d")
    made.args = ("no number",)
    handler.setFormatter(FORMATS["text"](10))
    handler.emit(made)
    assert dropped == [1]
