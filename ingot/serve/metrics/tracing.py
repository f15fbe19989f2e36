"""OpenTelemetry: a span for each request, made when the request is over."""

from __future__ import annotations

from collections.abc import Mapping
from time import time_ns
from typing import TYPE_CHECKING, Any

from ingot.errors import UsageError
from ingot.settings import settings
from ingot.version import __version__

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor

# OpenTelemetry's names for generative AI may still change, so they are sent to those who ask.
_OPT_IN = "gen_ai_latest_experimental"
_NAMES = {
    "model": "gen_ai.request.model",
    "prompt_tokens": "gen_ai.usage.input_tokens",
    "tokens": "gen_ai.usage.output_tokens",
    "finish": "gen_ai.response.finish_reasons",
}


class Tracer:
    """Sends spans to where OTEL_EXPORTER_OTLP_ENDPOINT says, or to `processor`.

    A thread sends them. Raises UsageError where the extra `otel` is missing.
    """

    def __init__(self, processor: SpanProcessor | None = None) -> None:
        try:
            from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
        except ImportError as error:
            raise _missing(error) from error
        ours = Resource({SERVICE_NAME: "ingot", "service.version": __version__})
        # What the environment says, such as OTEL_SERVICE_NAME, comes before what we say.
        self._provider = TracerProvider(resource=ours.merge(OTELResourceDetector().detect()))
        self._provider.add_span_processor(processor or _sending())
        self._tracer = self._provider.get_tracer("ingot", __version__)
        self._named = _OPT_IN in settings().otel_opt_in

    def request(
        self,
        name: str,
        seconds: float,
        *,
        traceparent: str | None,
        status: int,
        error: str | None,
        fields: Mapping[str, Any],
    ) -> None:
        """Adds the span of a request that took so many seconds and ends now.

        It continues the trace of `traceparent`, and has `fields` as attributes.
        """
        from opentelemetry.trace import SpanKind, Status, StatusCode
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {"traceparent": traceparent} if traceparent else {}
        now = time_ns()
        span = self._tracer.start_span(
            name,
            TraceContextTextMapPropagator().extract(carrier),
            SpanKind.SERVER,
            attributes=self._attributes(fields) | {"http.response.status_code": status},
            start_time=now - round(seconds * 1e9),
        )
        if error is not None:
            span.set_attribute("error.type", error)
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end(now)

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _attributes(self, fields: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, value in fields.items():
            if value is not None:
                known = _NAMES.get(name) if self._named else None
                found[known or f"ingot.{name}"] = [value] if known and name == "finish" else value
        return found


def _sending() -> SpanProcessor:
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise _missing(error) from error
    return BatchSpanProcessor(OTLPSpanExporter())


def _missing(error: ImportError) -> UsageError:
    return UsageError(
        f"traces need a package that is missing: {error.name}",
        hint="Install it: pip install 'ingot-lm[otel]'",
    )
