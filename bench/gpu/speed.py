"""How fast are decodes and a prefill, beside the time that the card needs at its limits?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import closing
from statistics import median
from time import perf_counter

import numpy as np

from bench.gpu.results import Faults, Values
from bench.gpu.setting import Setting, built_of
from ingot.artifact.cost import StepShape
from ingot.artifact.launches import BuiltLaunches
from ingot.artifact.plan import Plan
from ingot.artifact.step_cost import step_cost
from ingot.runtime.config import EngineConfig
from ingot.runtime.devices import open_executor
from ingot.runtime.devices.cuda.executor import CudaExecutor
from ingot.runtime.engine import Engine
from ingot.runtime.executor import Executor
from ingot.runtime.params import SamplingParams
from ingot.runtime.sequence import Sequence as Request

BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXT, PREFILL = 512, 2048
STEPS = 64
REPLAYS = 50


class Runner:
    """An engine over an executor, which it closes."""

    def __init__(self, executor: Executor) -> None:
        self.executor = executor
        # A prefix cache would spare the work that is to be measured.
        config = EngineConfig(prefix_cache=False)
        longest = executor.limits.max_model_len
        self._engine = Engine(executor, max_model_len=longest, config=config)
        self._random = np.random.default_rng(0)

    def prefill(self, tokens: int) -> float:
        """Seconds until a prompt has its first token."""
        (request,) = self.begin(1, tokens, 1)
        began = perf_counter()
        while not request.finished:
            self._engine.step()
        return perf_counter() - began

    def begin(self, batch: int, context: int, new: int) -> list[Request]:
        """Requests of random tokens; none of them has been computed."""
        params = SamplingParams(temperature=0, max_tokens=new, ignore_eos=True, detokenize=False)
        prompts = self._random.integers(0, self.executor.vocab_size, (batch, context))
        return [self._engine.add(prompt.tolist(), params) for prompt in prompts]

    def decode(self, batch: int, context: int, steps: int) -> list[float]:
        """Seconds of each step of a decode, once every prompt is computed."""
        # The first ones go on while the prompts of the last ones are computed.
        most = self.executor.limits.max_num_batched_tokens
        requests = self.begin(batch, context, steps + 8 + 2 * -(-batch * context // most))
        while min(request.num_generated for request in requests) < 2:
            self._engine.step()
        found = self.steps(steps)
        for request in requests:
            self._engine.abort(request)
        return found

    def steps(self, count: int) -> list[float]:
        found = []
        for _ in range(count):
            began = perf_counter()
            self._engine.step()
            found.append(perf_counter() - began)
        return found

    def close(self) -> None:
        self._engine.close()


def speed(
    setting: Setting,
    name: str,
    *,
    batches: Sequence[int] = BATCHES,
    context: int = CONTEXT,
    prompt: int = PREFILL,
    steps: int = STEPS,
) -> None:
    """Tokens per second, and shares of the limits where these were measured."""
    artifact, card = setting.artifact(name), setting.card()
    plan = artifact.plan_of(artifact.target)
    executor = open_executor(artifact, max_model_len=plan.limits.max_model_len)
    faults = Faults()
    with closing(Runner(executor)) as runner:
        with faults.of("prefill"):
            runner.prefill(prompt)
            seconds = median(runner.prefill(prompt) for _ in range(3))
            setting.report.note(prefill=prefill_figures(plan, prompt, seconds, card))
        for batch in (batch for batch in batches if batch <= plan.limits.max_num_seqs):
            with faults.of(f"decode of {batch}"):
                seconds = median(runner.decode(batch, context, steps))
                shape = StepShape(sequences=batch, context=context + steps // 2)
                figures = decode_figures(plan, shape, seconds, card)
                setting.report.note(decode={str(batch): figures})
            if isinstance(executor, CudaExecutor):
                with faults.of(f"replay of {batch}"):
                    figures = parts_of_a_step(executor, built_of(artifact), batch)
                    setting.report.note(parts={str(batch): figures})
    faults.raise_found()


def decode_figures(
    plan: Plan, shape: StepShape, seconds: float, card: Mapping[str, float]
) -> Values:
    """A step of a decode, beside the time that its bytes take: of the weights, and of all."""
    cost = step_cost(plan, shape)
    found: Values = {"tokens_per_second": shape.sequences / seconds, "milliseconds": 1e3 * seconds}
    if "bytes_per_second" in card:
        least = 1 / card["bytes_per_second"] / seconds
        found |= {"share": cost.weight_bytes * least, "share_with_cache": cost.num_bytes * least}
    return found


def prefill_figures(plan: Plan, prompt: int, seconds: float, card: Mapping[str, float]) -> Values:
    """A prefill in steps as large as they can be, beside the time that its operations take."""
    most = plan.limits.max_num_batched_tokens
    ends = [min(end + most, prompt) for end in range(0, prompt, most)]
    chunks = zip([0, *ends], ends, strict=False)
    shapes = [StepShape(new_tokens=end - begin, context=end) for begin, end in chunks]
    operations = sum(step_cost(plan, shape).num_operations for shape in shapes)
    found: Values = {"tokens": prompt, "tokens_per_second": prompt / seconds,
                     "milliseconds": 1e3 * seconds}  # fmt: skip
    if "operations_per_second" in card:
        found["share"] = operations / card["operations_per_second"] / seconds
    return found


def parts_of_a_step(executor: CudaExecutor, built: BuiltLaunches, batch: int) -> Values:
    """What the last decode's step takes on the device alone, by its graph and launch by launch.

    It runs the step again, with the inputs that it had.
    """
    driver, program = executor._driver, executor._program
    assert driver is not None, "it is open"
    bucket = 1 << (batch - 1).bit_length()
    graph = next((graph for key, graph in executor._graphs.items() if key[0] == bucket), None)
    if graph is None:
        return {}
    driver.synchronize()
    began = perf_counter()
    for _ in range(REPLAYS):
        driver.replay(graph)
    driver.synchronize()
    replayed = (perf_counter() - began) / REPLAYS
    sizes = executor._sizes(max(executor.inputs, key=lambda inputs: inputs.num_tokens))
    launches = sum(launch.variant(sizes) is not None for launch in built.launches.launches)
    began = perf_counter()
    program.launch(sizes)
    queued = perf_counter() - began
    driver.synchronize()
    return {
        "graph in ms": 1e3 * replayed, "launches": launches,
        "one by one in ms": 1e3 * (perf_counter() - began),
        "µs to queue a launch": 1e6 * queued / max(1, launches),
    }  # fmt: skip
