"""Replicas on a cluster of several nodes on this machine. Needs the extra `ray`."""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

import ingot
from ingot.serve.edge.keys import make_key
from ingot.serve.engine import Job
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

NODES = 2  # besides the head, which has no room for a replica
HEAD_CPUS, NODE_CPUS, REPLICA_CPUS = 1, 2, 2
MEMORY = {"object_store_memory": 80_000_000}
SECONDS = 300  # that anything may take on a machine that is busy with something else
TOKENS = 150
PROMPTS = [f"{name}:\n{line}" for name in ("ROMEO", "JULIET", "NURSE") for line in "ABCDEFGH"]
LOST = re.compile(r"job (\S+): attempt (\d): a replica was lost")
SERVE = "from ray.serve.scripts import cli; cli()"


def free_port() -> int:
    """A port that nobody has. Ray takes no 0."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def until(condition: Callable[[], bool]) -> None:
    """Ray tells nobody of what it does; it can only be asked."""
    end = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < end, "Ray did not do it"
        time.sleep(0.1)


def removed(folder: Path) -> bool:
    """Whether a folder is gone, into which Ray may write for a moment after its end."""
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


class Nodes:
    """A cluster, and the nodes that replicas run on."""

    def __init__(self, folder: Path) -> None:
        import ray
        from ray.cluster_utils import Cluster

        secret, key = make_key("alice", "use")
        self.headers = {"Authorization": f"Bearer {secret}"}
        self.keys = folder / "keys.txt"
        self.keys.write_text(key.line + "\n")
        self.logs = folder / "session_latest" / "logs"
        self.port, dashboard = free_port(), free_port()
        self.dashboard = f"http://127.0.0.1:{dashboard}"
        head = {"num_cpus": HEAD_CPUS, "include_dashboard": True, "dashboard_port": dashboard}
        head |= {"temp_dir": str(folder), **MEMORY}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.workers: list[Any] = []
        for _ in range(NODES):
            self.add_one()
        ray.init(address=self.cluster.address, configure_logging=False, log_to_driver=False)

    def kill_one(self) -> None:
        self.cluster.remove_node(self.workers.pop(), allow_graceful=False)

    def add_one(self) -> None:
        self.workers.append(self.cluster.add_node(num_cpus=NODE_CPUS, **MEMORY))

    def deploy(self, artifact: Path, **model: Any) -> None:
        """The file of deploy/ray, as a user does, but with another artifact and less room.

        Ray gives up where its proxy takes a minute to come, and finds it when it is asked again.
        """
        config = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())
        config["http_options"] = {"host": "127.0.0.1", "port": self.port}
        args = config["applications"][0]["args"]
        args |= {"front_cpus": 0.1, "api_key_file": str(self.keys)}
        room = {"settings": {"threads": 1}, "num_cpus": REPLICA_CPUS}
        args["models"][0] |= {"name": "m", "path": str(artifact), **room, **model}
        file = self.keys.with_name("serve.yaml")
        file.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-c", SERVE, "deploy", str(file), "--address", self.dashboard]
        until(lambda: subprocess.run(command, capture_output=True).returncode == 0)
        until(lambda: state() == "RUNNING")

    def retried(self) -> list[str]:
        """The jobs that fronts computed again, once for each time, as their log has it."""
        logs = [path.read_text(errors="replace") for path in self.logs.glob("worker-*.err")]
        return [job for log in logs for job, _ in LOST.findall(log)]

    def close(self) -> None:
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    folder = Path(tempfile.mkdtemp(prefix="ray-"))  # short, for the names of sockets
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("RAY_TMPDIR", str(folder))  # where it notes the cluster, in a folder `ray`
        (folder / "ray").mkdir()
        nodes = Nodes(folder)
        yield nodes
        nodes.close()
    until(lambda: removed(folder))


@pytest.fixture(scope="module")
def application(nodes, shakespeare_artifact) -> Nodes:
    """A replica on each node."""
    nodes.deploy(shakespeare_artifact, min_replicas=NODES, max_replicas=NODES)
    return nodes


@pytest.fixture(scope="module")
def small_application(nodes, shakespeare_artifact) -> Nodes:
    """One replica, which becomes two under load."""
    from ray import serve

    serve.delete("ingot")
    nodes.deploy(
        shakespeare_artifact, min_replicas=1, max_replicas=2, target_ongoing=2, upscale_delay_s=0.1
    )
    return nodes


def state() -> str | None:
    """That of the application, once Ray knows of it."""
    from ray import serve

    application = serve.status().applications.get("ingot")
    return application and application.status


def running() -> int:
    """How many replicas run."""
    from ray import serve

    from ingot.serve.ray.app import deployment_name

    deployments = serve.status().applications["ingot"].deployments
    return int(deployments[deployment_name("m")].replica_states.get("RUNNING", 0))


def all_compute() -> bool:
    """Whether each replica has requests, by what it says to routers."""
    import ray
    from ray.util import list_named_actors

    from ingot.serve.ray.app import deployment_name

    named = list_named_actors(all_namespaces=True)
    ours = [each for each in named if f"#{deployment_name('m')}#" in each["name"]]
    loads = [ray.get_actor(**each).get_num_ongoing_requests.remote() for each in ours]
    return len(ours) == NODES and all(ray.get(loads))


def engine() -> Any:
    """The engine of the model, as the front has it."""
    from ray import serve

    from ingot.serve.ray.app import deployment_name
    from ingot.serve.ray.remote import RemoteEngine
    from ingot.serve.ray.wire import decode_description

    handle = serve.get_deployment_handle(deployment_name("m"), app_name="ingot")
    return RemoteEngine(handle, decode_description(handle.describe.remote().result()))


def params(temperature: float) -> dict[str, Any]:
    return {"max_tokens": TOKENS, "ignore_eos": True, "temperature": temperature, "seed": 5}


def expected(artifact: Path, temperature: float) -> list[Any]:
    """What `LLM` says to the prompts, in this process."""
    with ingot.LLM(artifact, num_threads=1) as llm:
        asked = ingot.SamplingParams(**params(temperature))
        return [each.outputs[0] for each in llm.generate(PROMPTS, asked)]


async def told(found: Any, job: Job) -> list[int]:
    """The tokens that a replica draws."""
    tokens: list[int] = []
    async for progress in found.ask(job):
        tokens += [token for piece in progress.pieces for token in piece.token_ids]
    return tokens


async def streamed(client: httpx.AsyncClient, **body: Any) -> tuple[str, str, int]:
    """What comes over HTTP: the text, why it ended, and the count of tokens."""
    text, reason, usage = "", "", 0
    body |= {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.status_code == 200
        events = [line.removeprefix("data: ") async for line in answer.aiter_lines() if line]
    assert events.pop() == "[DONE]"
    for event in map(json.loads, events):
        usage = (event["usage"] or {}).get("completion_tokens", 0)
        for choice in event["choices"]:
            text += choice["text"]
            reason += choice["finish_reason"] or ""
    return text, reason, usage


def client_of(nodes: Nodes) -> httpx.AsyncClient:
    return httpx.AsyncClient(
        base_url=f"http://127.0.0.1:{nodes.port}", headers=nodes.headers, timeout=SECONDS
    )


def test_the_file_is_deployed(application, shakespeare_artifact):
    url = f"http://127.0.0.1:{application.port}/v1/completions"
    body = {"model": "m", "prompt": "ROMEO:", "max_tokens": 8, "temperature": 0}
    assert httpx.post(url, json=body, timeout=SECONDS).status_code == 401
    answer = httpx.post(url, json=body, headers=application.headers, timeout=SECONDS)
    with ingot.LLM(shakespeare_artifact) as llm:
        asked = ingot.SamplingParams(temperature=0, max_tokens=8)
        wanted = llm.generate(["ROMEO:"], asked)[0].outputs[0].text
    assert (answer.status_code, answer.json()["choices"][0]["text"]) == (200, wanted)


def test_requests_of_a_prefix_find_it_in_the_cache(application):
    found = engine()

    async def work() -> list[int]:
        cached = []
        for number in range(8):
            prefix = found.tokenizer.encode(f"{number} " + "my lord, " * 30)
            for last in range(3):
                ids = [*prefix, last + 300]
                job = Job(id=f"{number}/{last}", token_ids=ids, params={"max_tokens": 1})
                first, *_ = [progress.num_cached_tokens async for progress in found.ask(job)]
                cached.append(first if last else int(first == 0))
        return cached

    assert min(asyncio.run(work())) > 0


async def lose_a_node(
    nodes: Nodes, ask: Callable[[int], Awaitable[None]], retried: Callable[[], list[str]]
) -> None:
    """Kills a node while each replica computes, and asks again and again until something is lost.

    What was lost is retried once; what the other replica computes is not retried.
    """
    before = len(retried())
    num_answers = 0

    async def until_something_is_lost(number: int) -> None:
        nonlocal num_answers
        while len(retried()) == before:
            await ask(number)
            num_answers += 1

    await asyncio.to_thread(until, lambda: running() == NODES)
    async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
        for number in range(len(PROMPTS)):
            group.create_task(until_something_is_lost(number))
        await asyncio.to_thread(until, all_compute)
        await asyncio.to_thread(nodes.kill_one)
    lost = retried()[before:]
    assert 0 < len(lost) == len({*lost}) < len(PROMPTS) <= num_answers
    until(lambda: running() < NODES)  # Ray knows it, too
    nodes.add_one()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_node_that_dies_under_load_loses_nothing(
    application, shakespeare_artifact, caplog, temperature
):
    found, numbers = engine(), itertools.count()
    wanted = expected(shakespeare_artifact, temperature)

    async def ask(number: int) -> None:
        ids = found.tokenizer.encode(PROMPTS[number])
        job = Job(id=f"job-{next(numbers)}", token_ids=ids, params=params(temperature))
        assert await told(found, job) == [*wanted[number].token_ids]

    def retried() -> list[str]:
        return [job for record in caplog.records for job, _ in LOST.findall(record.message)]

    with caplog.at_level(logging.WARNING, "ingot.serve.ray.remote"):
        asyncio.run(lose_a_node(application, ask, retried))


def test_a_node_that_dies_under_streams_cuts_none(application):
    async def work() -> None:
        async with client_of(application) as client:
            asked = [{"prompt": prompt, **params(1.0)} for prompt in PROMPTS]
            wanted = [await streamed(client, **body) for body in asked]
            assert {each[1:] for each in wanted} == {("length", TOKENS)}

            async def ask(number: int) -> None:
                assert await streamed(client, **asked[number]) == wanted[number]

            await lose_a_node(application, ask, application.retried)

    asyncio.run(work())


def test_a_client_that_leaves_ends_its_request(small_application):
    found = engine()

    async def work() -> None:
        body = {"model": "m", "prompt": "ROMEO:", "stream": True, **params(1.0)}
        async with asyncio.timeout(SECONDS), client_of(small_application) as client:
            while (await found.counters()).num_aborted == 0:
                async with client.stream("POST", "/v1/completions", json=body) as answer:
                    assert answer.status_code == 200
                    await anext(answer.aiter_bytes())

    asyncio.run(work())


def test_load_starts_replicas(small_application):
    found = engine()
    assert running() == 1

    async def until_two_run(prompt: str) -> None:
        job = Job(id=prompt, token_ids=found.tokenizer.encode(prompt), params=params(0.0))
        while await asyncio.to_thread(running) < 2:
            await told(found, job)

    async def work() -> None:
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as group:
            for prompt in PROMPTS:
                group.create_task(until_two_run(prompt))

    asyncio.run(work())
