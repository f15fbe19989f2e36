"""Kernels are held against the references on what they were given.

The kernels here are the references, which are right, on the memory that a target has planned; then
one of them is spoilt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from types import SimpleNamespace

import pytest
import torch

from ingot.artifact.formats import Storage
from ingot.artifact.plan import Buffer, Plan
from ingot.compare import steps
from ingot.compare.bisect import Finding, Walk
from ingot.compare.kernel_check import WatchedKernels
from ingot.compare.seen import Seen, Watching, copied
from ingot.compare.steps import steps_of
from ingot.compare.stored import damage, sources_of, wanted
from ingot.compiler.interpret import Step, Value, new_states, plan_weights
from ingot.compiler.quantization.search import quantize_rows
from ingot.errors import UsageError
from ingot.ops.scaled import Operand, Scaled
from ingot.passes.verification import DrawnWeights
from ingot.targets.cpu.kind import KIND
from ingot.targets.cpu.work import work_of
from tests.compiler.tiny import tiny
from tests.support.core import core

PROMPTS = [[(7 * i) % 80 for i in range(21)], [3, 1, 4]]  # longer than a step
FORMATS = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "int4": {"storage": Storage(4, 32)},
    "int8": {"storage": Storage(8, 32), "int8_states": True},
}
Spoil = Callable[[Step, Seen], None]


def read(name: str) -> Operand:
    return DrawnWeights(tiny().reference).read(name)


@dataclass
class Machine:
    """Runs a placed plan kernel by kernel, and spoils what one of them left."""

    plan: Plan
    number: int = -1
    spoil: Spoil = lambda step, seen: None

    def run(self) -> WatchedKernels:
        weights = plan_weights(read)
        steps = steps_of(PROMPTS, self.plan.limits)
        states, seen = new_states(self.plan, steps.num_pages), {}
        arena = torch.full((self.plan.memory.arena_bytes,), 0xFF, dtype=torch.uint8)
        for name, inputs in steps.parts.items():
            step = Step(self.plan, weights, inputs, states, arena)
            watching = Watching(work_of(self.plan), lambda name, step=step: self._value(step, name))
            for number, work in enumerate(work_of(self.plan)):
                watching.watch(number)
                with torch.inference_mode():
                    for instruction in work.members:
                        step.run(instruction)
                if number == self.number:
                    self.spoil(step, watching.seen[number])
            watching.watch(len(watching.seen))
            seen[name] = watching.seen
        stored = SimpleNamespace(read=weights)
        return WatchedKernels("cpu:portable", self.plan, stored, steps, seen)  # type: ignore[arg-type]

    @staticmethod
    def _value(step: Step, name: str) -> Value:
        buffer = step.plan.buffer(name)
        held = step.values[name] if buffer.kind in ("state", "output") else step.memory(buffer)
        return copied(held)


def placed(name: str) -> Plan:
    plan, _ = KIND.group(KIND.rewrite(tiny(**FORMATS[name]).plan))  # type: ignore[arg-type]
    return KIND.place(plan)


def found(machine: Machine) -> list[Finding]:
    return [each.finding for each in Walk(machine.run(), read=read).findings()]


@pytest.mark.parametrize("name", core("int4", further=FORMATS))
def test_right_kernels_give_no_finding(name: str) -> None:
    assert found(Machine(placed(name))) == []


def number_of(plan: Plan, kernel: str, origin: str) -> int:
    return next(n for n, w in enumerate(work_of(plan)) if w.kernel == kernel and w.origin == origin)


def no_tail(step: Step, seen: Seen) -> None:
    (name,) = seen.work.writes
    value = step.memory(step.plan.buffer(name))
    assert isinstance(value, torch.Tensor)
    value.view(len(value), -1)[:, -1] = 0


def slot_off(step: Step, seen: Seen) -> None:
    """Keys lie one slot later than they should."""
    (name,) = (n for n in seen.work.mutated if n.startswith("k_"))
    cache = step.values[name]
    assert isinstance(cache, torch.Tensor)
    cache.copy_(cache.roll(1, 2))


@pytest.mark.parametrize(
    ("kernel", "origin", "spoil", "output"),
    [
        ("gated_linear", "model.layers.1.mlp", no_tail, "gate_1"),
        ("rope_kv_write", "model.layers.0.self_attn", slot_off, "k_cache_0"),
    ],
)
def test_a_spoilt_result_is_named(kernel: str, origin: str, spoil: Spoil, output: str) -> None:
    plan = placed("bfloat16")
    number = number_of(plan, kernel, origin)
    answers = found(Machine(plan, number, spoil))
    assert len(answers) == 1  # later kernels are right with what they are given
    (answer,) = answers
    assert (answer.where, answer.number, answer.kernel) == ("kernel", number, kernel)
    assert (answer.origin, answer.difference.output, answer.step) == (origin, output, "prefill")
    assert answer.note.startswith("wrong are ") == (spoil is slot_off)


def test_what_is_overwritten_between_two_kernels_is_named() -> None:
    """A kernel that writes beside its result: into the residual, which the next sum reads."""
    plan = placed("float32")
    number = number_of(plan, "rms_norm", "model.layers.0.post_attention_layernorm")
    (residual,) = work_of(plan)[number].reads[:1]

    def beside(step: Step, seen: Seen) -> None:
        held = step.memory(step.plan.buffer(residual))
        assert isinstance(held, torch.Tensor)
        held[0, 3] += 1

    answers = found(Machine(plan, number, beside))
    assert [(a.where, a.origin) for a in answers] == [("memory", "model.layers.0.mlp.down_proj")]
    assert answers[0].difference.place == (0, 3)


def test_groups_that_calibration_chose_are_damaged_only_far_beyond_what_search_loses() -> None:
    plan = placed("int4")
    name = "model.layers.0.mlp.down_proj.weight"
    buffer = plan.buffer(name)
    stored = quantize_rows(read(name), buffer.format)
    values = stored.values.clone()
    values[3, :2] += torch.where(values[3, :2] > 0, -1, 1).to(torch.int8)  # as GPTQ may round
    rounded = Scaled(values, stored.multipliers, stored.scales)
    spoilt = stored.scales.clone()
    spoilt[5, 0] *= 4
    scaled = Scaled(stored.values, stored.multipliers, spoilt)
    assert wanted(buffer, read) is None
    assert damaged_rows(buffer, rounded, calibrated=True) == []
    assert damaged_rows(buffer, rounded, calibrated=False) == [3]
    assert damaged_rows(buffer, scaled, calibrated=True) == [5]
    assert damaged_rows(buffer, stored, calibrated=False) == []


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_rounding_for_some_inputs_is_no_damage(kind: str) -> None:
    """However unlike they are, it is found where an integer, a scale or a zero is not as chosen."""
    buffer = placed(kind).buffer("model.layers.0.mlp.down_proj.weight")
    rows = read(buffer.name)
    generator = torch.Generator().manual_seed(0)
    importance = torch.randn(rows.shape[1], generator=generator).mul(3).exp()
    stored = quantize_rows(rows, buffer.format, importance)
    assert damaged_rows(buffer, stored, calibrated=False) == []
    values, scales = stored.values.clone(), stored.scales.clone()
    values[3, 0] += -1 if values[3, 0] > 0 else 1
    scales[5, 0] *= 1.25
    scales[6, 0] = 0
    for spoilt, row in (
        (replace(stored, values=values), [3]),
        (replace(stored, scales=scales), [5, 6]),
    ):
        assert damaged_rows(buffer, spoilt, calibrated=False) == row
    if stored.zeros is not None:
        zeros = stored.zeros.clone()
        zeros[4, 0] += 3
        assert damaged_rows(buffer, replace(stored, zeros=zeros), calibrated=False) == [4]


def test_search_may_end_at_another_scale_that_loses_as_little() -> None:
    plan = placed("int8")
    buffer = plan.buffer("model.layers.0.mlp.down_proj.weight")
    stored = quantize_rows(read(buffer.name), buffer.format)
    scales = stored.scales.clone()
    scales[2] *= 1 + 2**-10  # of what is stored with ten binary digits
    again = Scaled(stored.values, stored.multipliers, scales)
    assert damaged_rows(buffer, again, calibrated=False) == []


def damaged_rows(buffer: Buffer, stored: Scaled, *, calibrated: bool) -> list[int]:
    one, other = damage(buffer, stored, read, calibrated=calibrated)
    return (one != other).any(1).nonzero().flatten().tolist()


def test_prompts_run_in_steps_that_keep_the_limits() -> None:
    limits = placed("float32").limits  # 16 tokens a step, 8 logits, 4 sequences, 64 of each
    made = steps_of([list(range(40)), [], [1], [2] * 30, [3], [4]], limits)
    assert [len(prompt) for prompt in made.prompts] == [40, 1, 30, 1]
    assert list(made.parts) == ["prefill", *(f"prefill {n}" for n in range(2, 6)), "decode"]
    assert [len(part["tokens"]) for part in made.parts.values()] == [16, 16, 16, 16, 8, 4]
    assert all(len(part["logit_rows"]) <= limits.max_logit_rows for part in made.parts.values())
    assert made.parts["prefill 3"]["spans"].tolist() == [[0, 8, 32], [8, 9, 0], [9, 16, 0]]
    for name, part in made.parts.items():
        for each in ("tokens", "positions", "slots"):
            assert torch.equal(part[each], made.whole[each][made.rows[name]])
    slots = made.whole["slots"].tolist()
    assert len(set(slots)) == 72 and min(slots) >= limits.page_size
    assert max(slots) < made.num_pages * limits.page_size
    (cut,) = steps_of([list(range(100))], limits).prompts
    assert len(cut) == 64
    few = steps_of([list(range(40)), [1], [2] * 30], limits, room=30)
    assert [len(prompt) for prompt in few.prompts] == [30]
    with pytest.raises(UsageError, match="no prompt"):
        steps_of([[]], limits)


@pytest.mark.parametrize(("free", "room"), [(None, 2048), (1 << 40, 2048), (0, 16)])
def test_prompts_are_as_long_as_memory_allows(
    free: int | None, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "available_memory", lambda: free)
    assert steps.room_for(placed("float32")) == room
    monkeypatch.setattr(steps, "available_memory", lambda: 10_000_000)
    assert 16 < steps.room_for(placed("float32")) < 2048


def test_sources_of_a_weight() -> None:
    plan = placed("float32")
    (stacked,) = (b for b in plan.of_kind("weight") if b.name.endswith("0.mlp.gate_up_proj.weight"))
    assert [s.rpartition(".mlp.")[2] for s in sources_of(stacked)] == [
        "gate_proj.weight",
        "up_proj.weight",
    ]
    plain: Buffer = plan.buffer("model.norm.weight")
    assert sources_of(plain) == ("model.norm.weight",)
