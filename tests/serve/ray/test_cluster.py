"""Replicas on a cluster of several nodes on this machine. Needs the extra `ray`."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

import ingot
from ingot.serve.engine import Job
from tests.conftest import ROOT

pytestmark = pytest.mark.slow

NODES = 2  # besides the head
# A replica takes 2 processors, so that the head has no room for one, and a node for one alone, even
# if the front lies on it.
HEAD_CPUS, NODE_CPUS, REPLICA_CPUS = 1, 3, 2
TOKENS = 150
PROMPTS = [f"{name}:\n{line}" for name in ("ROMEO", "JULIET", "NURSE") for line in "ABCDEFGH"]


def free_port() -> int:
    """A port that nobody has. Ray takes no 0."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


PORT = free_port()


class Nodes:
    """A cluster, and the nodes that replicas run on."""

    def __init__(self) -> None:
        import ray
        from ray.cluster_utils import Cluster

        memory = {"object_store_memory": 80_000_000}
        head = {"num_cpus": HEAD_CPUS, "include_dashboard": False, **memory}
        self.cluster = Cluster(initialize_head=True, head_node_args=head)
        self.workers = [self.cluster.add_node(num_cpus=NODE_CPUS, **memory) for _ in range(NODES)]
        ray.init(address=self.cluster.address, configure_logging=False, log_to_driver=False)

    def kill_one(self) -> None:
        self.cluster.remove_node(self.workers.pop(), allow_graceful=False)

    def add_one(self) -> None:
        self.workers.append(
            self.cluster.add_node(num_cpus=NODE_CPUS, object_store_memory=80_000_000)
        )

    def close(self) -> None:
        import ray
        from ray import serve

        serve.shutdown()
        ray.shutdown()
        self.cluster.shutdown()


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    from ray import serve

    nodes = Nodes()
    serve.start(http_options={"host": "127.0.0.1", "port": PORT})
    yield nodes
    nodes.close()


def args(artifact: Path, **model: Any) -> dict[str, Any]:
    """The file that is deployed, with another artifact and less room."""
    (application,) = yaml.safe_load((ROOT / "deploy/ray/serve.yaml").read_text())["applications"]
    found = application["args"]
    (first,) = found["models"]
    first |= {
        "name": "m",
        "path": str(artifact),
        "settings": {"threads": 1},
        "num_cpus": REPLICA_CPUS,
    }
    first |= model
    return found | {"front_cpus": 0.1, "api_key_file": None}


@pytest.fixture(scope="module")
def application(nodes, shakespeare_artifact) -> Nodes:
    from ray import serve

    from ingot.serve.ray.app import build

    two = args(shakespeare_artifact, min_replicas=NODES, max_replicas=NODES)
    serve.run(build(two), name="ingot", route_prefix="/")
    return nodes


def engine() -> Any:
    """The engine of the model, as the front has it."""
    from ray import serve

    from ingot.serve.ray.app import deployment_name
    from ingot.serve.ray.remote import RemoteEngine
    from ingot.serve.ray.wire import decode_description

    handle = serve.get_deployment_handle(deployment_name("m"), app_name="ingot")
    return RemoteEngine(handle, decode_description(handle.describe.remote().result()))


def running() -> int:
    """How many replicas run."""
    from ray import serve

    from ingot.serve.ray.app import deployment_name

    deployments = serve.status().applications["ingot"].deployments
    return int(deployments[deployment_name("m")].replica_states.get("RUNNING", 0))


def jobs(found: Any, **params: Any) -> list[Job]:
    given = {"max_tokens": TOKENS, "ignore_eos": True, "temperature": 0.0, **params}
    return [
        Job(id=f"job-{i:03}", token_ids=found.tokenizer.encode(prompt), params=given)
        for i, prompt in enumerate(PROMPTS)
    ]


def expected(artifact: Path, asked: list[Job]) -> list[list[int]]:
    """What `LLM` says, in this process."""
    with ingot.LLM(artifact, num_threads=1) as llm:
        params = [ingot.SamplingParams(**job.params) for job in asked]
        prompts = [{"prompt_token_ids": job.token_ids} for job in asked]
        return [[*each.outputs[0].token_ids] for each in llm.generate(prompts, params)]


async def told(found: Any, job: Job, begun: asyncio.Semaphore | None = None) -> list[int]:
    tokens: list[int] = []
    async for progress in found.ask(job):
        tokens += [token for piece in progress.pieces for token in piece.token_ids]
        if begun is not None:
            begun.release()
    return tokens


def test_http_says_what_the_model_says(application, shakespeare_artifact):
    body = {"model": "m", "prompt": "ROMEO:", "max_tokens": 8, "temperature": 0}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/completions",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        found = json.load(answer)["choices"][0]["text"]
    with ingot.LLM(shakespeare_artifact) as llm:
        params = ingot.SamplingParams(temperature=0, max_tokens=8)
        assert found == llm.generate(["ROMEO:"], params)[0].outputs[0].text


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


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_node_that_dies_under_load_loses_nothing(
    application, shakespeare_artifact, caplog, temperature
):
    found = engine()
    asked = jobs(found, temperature=temperature, seed=5)
    wanted = expected(shakespeare_artifact, asked)

    def retried() -> list[str]:
        return [record.args[0] for record in caplog.records if "was lost" in record.message]

    async def until_one_is_lost(number: int, begun: asyncio.Semaphore) -> int:
        """Asks the same again and again, each time under another id."""
        count = 0
        while not retried():
            job = msgspec.structs.replace(asked[number], id=f"{number}/{count}")
            assert await told(found, job, begun) == wanted[number]
            count += 1
        return count

    async def work() -> int:
        # One that was lost is started again. Ray tells nobody when; it can only be asked.
        while await asyncio.to_thread(running) < NODES:
            await asyncio.sleep(0.2)
        begun = asyncio.Semaphore(0)
        async with asyncio.TaskGroup() as group:
            loads = [group.create_task(until_one_is_lost(i, begun)) for i in range(len(asked))]
            for _ in range(4 * len(asked)):
                await begun.acquire()
            await asyncio.to_thread(application.kill_one)
        return sum(load.result() for load in loads)

    with caplog.at_level(logging.WARNING, "ingot.serve.ray.remote"):
        answered = asyncio.run(work())
    # Each was retried once, and those that the other replica computed were not.
    assert 0 < len(retried()) == len({*retried()}) < len(asked) <= answered
    application.add_one()


def test_load_starts_replicas(nodes, shakespeare_artifact):
    from ray import serve

    from ingot.serve.ray.app import build

    serve.delete("ingot")
    few = args(
        shakespeare_artifact, min_replicas=1, max_replicas=2, target_ongoing=2, upscale_delay_s=0.1
    )
    serve.run(build(few), name="ingot", route_prefix="/")
    found = engine()

    assert running() == 1

    async def until_two_run(job: Job) -> None:
        while await asyncio.to_thread(running) < 2:
            await told(found, job)

    async def work() -> None:
        async with asyncio.TaskGroup() as group:
            for job in jobs(found):
                group.create_task(until_two_run(job))

    asyncio.run(work())
