"""`ingot serve --grpc-port` as a process: both fronts over one model, and one end."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from ingot.cli.main import main
from ingot.serve.grpc.stubs import ingot_v1_pb2 as v1
from ingot.serve.grpc.stubs import ingot_v1_pb2_grpc, open_inference_pb2_grpc

pytestmark = pytest.mark.thorough


@contextmanager
def serving(artifact: Path) -> Iterator[tuple[subprocess.Popen[str], int, str]]:
    """A server, the port of its gRPC, and its URL."""
    command = [sys.executable, "-m", "ingot", "serve", f"bard={artifact}"]
    options = ["--port", "0", "--grpc-port", "0", "--threads", "1", "--in-process"]
    with subprocess.Popen([*command, *options], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said = ""
        try:
            while said.count("listening") < 2 and (line := process.stderr.readline()):
                said += line
            port = re.search(r"grpc_port\D+(\d+)", said)
            url = re.search(r"http://127\.0\.0\.1:\d+", said)
            assert port and url, said
            yield process, int(port[1]), url[0]
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(shakespeare_artifact: Path) -> Iterator[tuple[int, str]]:
    """The ports of a server that all tests may ask."""
    with serving(shakespeare_artifact) as (_, port, url):
        yield port, url


@pytest.fixture
def own_server(shakespeare_artifact: Path) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """A server for a test that ends it."""
    with serving(shakespeare_artifact) as (process, port, _):
        yield process, port


def stream(port: int, **params: object) -> list[str]:
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for told in health.Watch(health_pb2.HealthCheckRequest(service="bard"), timeout=60):
            if told.status == health_pb2.HealthCheckResponse.SERVING:
                break
        stub = ingot_v1_pb2_grpc.InferenceStub(channel)
        fields = {"temperature": 0.0, "max_tokens": 12, **params}
        asked = v1.GenerateRequest(text="ROMEO:", params=v1.SamplingParams(**fields))
        return [part.completions[0].text for part in stub.GenerateStream(asked, timeout=60)]


def test_both_fronts_say_the_same(server, capsys):
    import httpx

    port, url = server
    parts = stream(port)
    body = {"model": "bard", "prompt": "ROMEO:", "temperature": 0, "max_tokens": 12}
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    assert "".join(parts) == answer.json()["choices"][0]["text"] != ""


def test_the_load_generator_measures_it(server, capsys):
    port, url = server
    stream(port)  # the model is loaded
    options = ["--num-prompts", "8", "--random-input-len", "20", "--random-output-len", "6"]
    assert main(["bench", "serve", "--base-url", url, "--ignore-eos", "--json", *options]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["completed"], found["failed"], found["model_id"]) == (8, 0, "bard")
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (160, 48)


def test_metrics_count_what_came_by_grpc(server):
    import httpx

    port, url = server
    name = 'ingot_request_success_total{finished_reason="length",model_name="bard"}'

    def count() -> float:
        text = httpx.get(f"{url}/metrics", timeout=60).text
        lines = [line for line in text.splitlines() if line.startswith("ingot_request_success")]
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    before = count()
    stream(port, max_tokens=2)
    assert count() == before + 1, name


def test_a_signal_lets_streams_end_and_then_the_process(own_server):
    process, port = own_server
    with grpc.insecure_channel(f"127.0.0.1:{port}") as channel:
        params = v1.SamplingParams(max_tokens=400, ignore_eos=True)
        asked = v1.GenerateRequest(text="ROMEO:", params=params)
        call = ingot_v1_pb2_grpc.InferenceStub(channel).GenerateStream(asked, timeout=60)
        next(iter(call))
        over = threading.Event()
        stub = open_inference_pb2_grpc.GRPCInferenceServiceStub(channel)
        open_stream = stub.ModelStreamInfer(iter(over.wait, True))  # no request, and no end
        process.send_signal(signal.SIGTERM)
        *_, last = call
        assert last.completions[0].finish_reason == "length"
        assert list(open_stream) == []  # it ends, and not with an error
        over.set()
    assert process.wait(60) == 0
