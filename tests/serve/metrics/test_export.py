"""The span of a request, as a collector of OTLP gets it, in the messages of OpenTelemetry."""

from __future__ import annotations

import asyncio
import gzip
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from ingot.serve.asked import Asked
from ingot.serve.edge.edge import Edge
from tests.serve.edge.edge_server import SmallApp, serving

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


class Collector(HTTPServer):
    """Keeps the bodies that are sent to it, each with its path."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Taking)
        self.taken: list[tuple[str, bytes]] = []


class _Taking(BaseHTTPRequestHandler):
    server: Collector

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        packed = self.headers.get("content-encoding") == "gzip"
        self.server.taken.append((self.path, gzip.decompress(body) if packed else body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", address)
        monkeypatch.setenv("OTEL_SEMCONV_STABILITY_OPT_IN", "gen_ai_latest_experimental")
        yield server
        server.shutdown()
        thread.join()


class Asking(SmallApp):
    """Takes a seat of a model at `/ask`."""

    edge: Edge

    async def ask(self, scope, receive, send) -> None:
        async with self.edge.enter(Asked(model="bard")):
            await self.live(scope, receive, send)


def test_a_request_arrives_as_a_span_and_probes_do_not(collector):
    async def main() -> None:
        app = Asking()
        async with serving(app=app, traces=True) as served, served.client() as client:
            app.edge = served.edge
            headers = {"traceparent": PARENT, "x-request-id": "mine"}
            assert (await client.get("/ask", headers=headers)).status_code == 200
            assert (await client.get("/live")).status_code == 200

    asyncio.run(main())
    assert [path for path, _ in collector.taken] == ["/v1/traces"]
    [(_, body)] = collector.taken
    [resource] = ExportTraceServiceRequest.FromString(body).resource_spans
    [scope] = resource.scope_spans
    [span] = scope.spans
    attributes = {each.key: each.value for each in span.attributes}
    assert span.name == "GET /ask" and span.trace_id.hex() == PARENT.split("-")[1]
    assert span.parent_span_id.hex() == PARENT.split("-")[2]
    assert attributes["gen_ai.request.model"].string_value == "bard"
    assert attributes["ingot.id"].string_value == "mine"
    assert attributes["http.response.status_code"].int_value == 200
    assert 0 < span.end_time_unix_nano - span.start_time_unix_nano < 60 * 10**9
    service = {each.key: each.value.string_value for each in resource.resource.attributes}
    assert service["service.name"] == "ingot"
