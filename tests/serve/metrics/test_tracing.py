"""Spans of requests, read by OpenTelemetry's own exporter for tests."""

from __future__ import annotations

import sys

import pytest
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind

from ingot.errors import UsageError
from ingot.serve.metrics.tracing import Tracer

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
FIELDS = {"model": "m", "prompt_tokens": 3, "tokens": 20, "cached_tokens": None, "finish": "stop"}


def span_of(status: int = 200, error: str | None = None, traceparent: str | None = PARENT):
    exporter = InMemorySpanExporter()
    tracer = Tracer(SimpleSpanProcessor(exporter))
    tracer.request(
        "POST /v1/completions",
        1.5,
        traceparent=traceparent,
        status=status,
        error=error,
        fields=FIELDS,
    )
    tracer.close()
    [span] = exporter.get_finished_spans()
    return span


def test_a_span_continues_the_trace_of_the_client():
    span = span_of()
    assert span.name == "POST /v1/completions" and span.kind is SpanKind.SERVER
    assert f"{span.context.trace_id:032x}" == PARENT.split("-")[1]
    assert f"{span.parent.span_id:016x}" == PARENT.split("-")[2]
    assert span.end_time - span.start_time == 1_500_000_000
    assert span.status.is_unset
    assert span_of(traceparent=None).parent is None


def test_its_attributes_are_ours_unless_those_of_generative_ai_are_wanted(monkeypatch):
    monkeypatch.delenv("OTEL_SEMCONV_STABILITY_OPT_IN", raising=False)
    assert dict(span_of().attributes) == {
        "ingot.model": "m",
        "ingot.prompt_tokens": 3,
        "ingot.tokens": 20,
        "ingot.finish": "stop",
        "http.response.status_code": 200,
    }
    monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "http,gen_ai_latest_experimental")
    assert dict(span_of().attributes) == {
        "gen_ai.request.model": "m",
        "gen_ai.usage.input_tokens": 3,
        "gen_ai.usage.output_tokens": 20,
        "gen_ai.response.finish_reasons": ("stop",),
        "http.response.status_code": 200,
    }


def test_a_fault_of_the_server_is_an_error_and_one_of_the_client_is_none():
    broken = span_of(status=503, error="engine_dead")
    assert broken.attributes["error.type"] == "engine_dead" and not broken.status.is_unset
    assert span_of(status=429, error="queue_full").status.is_unset


def test_the_service_has_the_name_that_the_environment_gives(monkeypatch):
    assert span_of().resource.attributes["service.name"] == "ingot"
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    assert span_of().resource.attributes["service.name"] == "mine"


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match="otel"):
        Tracer()
