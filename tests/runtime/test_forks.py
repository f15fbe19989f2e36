"""A model that was opened before a fork: the child is refused and never waits."""

from __future__ import annotations

import asyncio
import os
import pickle
import signal
from multiprocessing import get_context

import pytest

from ingot.artifact.reader import Artifact
from ingot.errors import PassError, UsageError
from ingot.runtime.async_llm import AsyncLLM
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices.cpu import CpuExecutor
from ingot.runtime.executor import StepWants
from ingot.runtime.llm import LLM
from ingot.runtime.params import SamplingParams
from tests.runtime.fake_model import greedy

GREEDY = SamplingParams(temperature=0, max_tokens=6, ignore_eos=True)
REFUSED = "UsageError: this model was opened in another process"
HANGS_SECONDS = 60


def in_fork(work) -> str:
    """What a call in a forked child returns or raises; empty if it hangs."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(HANGS_SECONDS)
        try:
            said = f"returned {work()}"
        except BaseException as error:
            said = f"{type(error).__name__}: {error}"
        os.write(writing, said.encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return said


def tokens(llm, prompt):
    return llm.generate([prompt], GREEDY)[0].outputs[0].token_ids


CALLS = {
    "generate": lambda llm, stream: llm.generate([[1]], GREEDY),
    "logits": lambda llm, stream: llm.logits([1]),
    "counters": lambda llm, stream: llm.counters(),
    "stream": lambda llm, stream: llm.stream([1], GREEDY),
    "config": lambda llm, stream: setattr(llm, "config", EngineConfig()),
    "a stream of the parent": lambda llm, stream: next(stream),
}


@pytest.mark.cases(core=1)
@pytest.mark.parametrize("overlap", [False, True])
def test_a_forked_child_is_refused_and_the_parent_goes_on(fake_artifact, overlap):
    with LLM(fake_artifact, config=EngineConfig(overlap=overlap)) as llm:
        stream = llm.stream([4], SamplingParams(temperature=0, max_tokens=90, ignore_eos=True))
        next(stream)
        said = {name: in_fork(lambda call=call: call(llm, stream)) for name, call in CALLS.items()}
        assert {name: text.startswith(REFUSED) for name, text in said.items()} == dict.fromkeys(
            CALLS, True
        )
        assert "Open the model in the child" in said["generate"]
        assert in_fork(llm.close) == in_fork(stream.close) == "returned None"
        assert tokens(llm, [3]) == greedy([3], 6)
        assert sum(len(delta.token_ids) for delta in stream) == 89


def test_asyncio_in_a_forked_child_is_refused(fake_artifact):
    llm = AsyncLLM(fake_artifact)

    async def generate():
        async for output in llm.generate([1], GREEDY):
            return output

    calls = (generate, lambda: llm.abort("x"), lambda: llm.configure(EngineConfig()))
    for call in calls:
        assert in_fork(lambda call=call: asyncio.run(call())).startswith(REFUSED)
    assert in_fork(llm.close) == "returned None"
    assert asyncio.run(generate()).outputs[0].token_ids
    llm.close()


def test_a_forked_child_may_open_the_model_itself(fake_artifact):
    def work():
        with LLM(fake_artifact) as own:
            return tokens(own, [3])

    with LLM(fake_artifact) as llm:
        tokens(llm, [1])
        assert in_fork(work) == f"returned {greedy([3], 6)}"


@pytest.mark.parametrize("beside", [False, True])
def test_an_executor_of_two_threads_in_a_forked_child(shakespeare_artifact, beside):
    executor = CpuExecutor(Artifact.open(shakespeare_artifact), max_model_len=32, num_threads=2)
    inputs = executor.inputs[0]
    inputs.clear()

    def run():
        return executor.submit(inputs, StepWants(), beside=beside).wait().token_ids

    assert run() == []
    assert in_fork(run).startswith(REFUSED)
    assert in_fork(executor.close) == "returned None"
    assert run() == []
    executor.close()
    with pytest.raises(UsageError, match="closed"):
        run()


shared: list[LLM] = []


def generate_with_the_parents():
    return tokens(shared[0], [1])


def test_a_pool_of_forks_gets_the_error(fake_artifact):
    with LLM(fake_artifact) as llm:
        shared[:] = [llm]
        with get_context("fork").Pool(1) as pool, pytest.raises(UsageError) as caught:
            pool.apply(generate_with_the_parents)
        shared.clear()
        assert "Open the model in the child" in caught.value.hint
        assert tokens(llm, [3]) == greedy([3], 6)


def test_errors_with_arguments_of_their_own_cross_processes():
    error = PassError("fuse_x", "it matched twice", hint="look")
    copy = pickle.loads(pickle.dumps(error))
    assert (type(copy), str(copy), vars(copy)) == (PassError, str(error), vars(error))
