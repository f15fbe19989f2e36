"""Bodies become structs."""

from __future__ import annotations

import msgspec
import pytest

from ingot.serve.openai import decode as decoding
from ingot.serve.openai.fields import FieldError
from ingot.serve.openai.requests import ChatRequest, CompletionRequest


def test_a_body_is_parsed_once(monkeypatch):
    parsed, decode = [], msgspec.json.decode

    def counted(*given, **options):
        parsed.append(given)
        return decode(*given, **options)

    monkeypatch.setattr(msgspec.json, "decode", counted)
    monkeypatch.setattr(decoding, "json_decoder", lambda kind: pytest.fail("parsed again"))
    fields = {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}] * 70}]}
    request, names = decoding.decode(msgspec.json.encode(fields), ChatRequest)
    assert request.messages == fields["messages"] and names == {"messages"}
    assert len(parsed) == 1


def test_names_of_unknown_fields_are_logged_once_and_not_without_end(caplog):
    seen = decoding.UnknownFields()
    for _ in range(2):
        seen.note({"prompt", "user", "first"}, CompletionRequest)
    assert [record.getMessage() for record in caplog.records] == [
        "ignored a field that is unknown: 'first'"
    ]
    seen.note({f"field {number}" for number in range(1000)}, CompletionRequest)
    assert len(caplog.records) == decoding.MAX_REPORTED


def test_a_number_out_of_range_is_refused_by_the_name_of_its_field():
    with pytest.raises(FieldError) as raised:
        decoding.decode(b'{"prompt": "a", "temperature": 1e999}', CompletionRequest)
    assert raised.value.param == "temperature"
