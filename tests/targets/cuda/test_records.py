"""Mixers that keep one record of a sequence, against their references and against themselves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from torch import Tensor

from ingot.artifact.cells import GRID
from ingot.errors import CodegenError
from ingot.ops import OPS
from ingot.targets.cuda.calls_recurrence import CALLS
from ingot.targets.cuda.kernels import records as record_kernels
from ingot.targets.cuda.kernels import recurrence as recurrence_kernels
from ingot.targets.cuda.operands import Operands
from ingot.targets.work import Work
from tests.ops import sample_inputs
from tests.support.core import core
from tests.targets.cuda import wrong_records
from tests.targets.cuda.recording import Mixer, Step, cut

TOKENS, OTHERS = 35, 12  # of the sequence that is cut, and of those in its company
CUTS = (1, 3, 7, 15, 16, 18, 29, 33, 34, TOKENS)
FREE = 5  # slots

# (rule, groups, heads, columns of keys and of values, whether each key channel decays by itself)
RULES = {
    "add": ("add", 1, 2, 20, 12, False),
    "add by key": ("add", 1, 1, 16, 8, True),
    "delta": ("delta", 1, 2, 16, 20, False),
    "delta by key": ("delta", 1, 1, 36, 72, True),
    "low rank": ("low_rank", 2, 2, 20, 12, False),
    "low rank by key": ("low_rank", 1, 1, 16, 16, True),
}


def mixers() -> dict[str, Mixer]:
    rng, count = torch.Generator().manual_seed(5), TOKENS + OTHERS
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_inputs, "NUM_ROWS", count)
        found = {
            name: Mixer(
                "recurrence", sample_inputs.recurrence_call(rng, *case, False, torch.float32)
            )
            for name, case in RULES.items()
        }
        for op in ("token_shift", "short_conv", "selective_scan"):
            for number, call in enumerate(sample_inputs.SAMPLES[op](rng)):
                found[f"{op} {number}"] = Mixer(op, call)
    return found


MIXERS = mixers()


def close(got: Tensor, right: Tensor, op: str) -> None:
    bounds = OPS[op].tolerance[right.dtype]
    torch.testing.assert_close(got, right, rtol=bounds.rtol, atol=bounds.atol)


def samples() -> Iterator[tuple[str, Mixer]]:
    for op in ("token_shift", "short_conv", "selective_scan", "recurrence"):
        calls = sample_inputs.SAMPLES[op](torch.Generator().manual_seed(0))
        for number, call in enumerate(calls):
            if "spans" in call:
                yield f"{op} {number}", Mixer(op, call)


SAMPLES = dict(samples())


@pytest.mark.cases(core=4)
@pytest.mark.parametrize(
    "name",
    core("short_conv 1", "recurrence 1", "recurrence 3", "recurrence 7", further=SAMPLES),
)
def test_samples_give_what_the_reference_gives(name: str) -> None:
    """Three sequences, one of which has no row, go on from records; free slots are NaN."""
    mixer = SAMPLES[name]
    slots, right = mixer.slots(FREE), mixer.slots(FREE)
    steps = (
        [Step(0, 2, 3), Step(0, 0, 1), Step(0, 1, 0, start=4)],
        [Step(2, 3, 3), Step(1, 5, 0, start=4), Step(0, 0, 1)],
    )
    for step in steps:
        close(mixer.step(step, slots), mixer.expected(step, right), mixer.op)
    assert slots[[1, 2, 4]].isnan().all(), "records of others were written"
    if mixer.op != "recurrence":
        close(slots[[0, 3]], right[[0, 3]], mixer.op)


def check_reference(mixer: Mixer) -> None:
    slots, right = mixer.slots(FREE), mixer.slots(FREE)
    for step in cut((18, 29, TOKENS), slot=2):
        close(mixer.step([step], slots), mixer.expected([step], right), mixer.op)


@pytest.mark.cases(core=2)
@pytest.mark.parametrize("name", core("delta", "low rank by key", further=RULES))
def test_several_cells_give_what_the_reference_gives(name: str) -> None:
    check_reference(MIXERS[name])


def by_cuts(mixer: Mixer, ends: tuple[int, ...], slots: Tensor | None = None) -> Tensor:
    """All results of the sequence, cut there."""
    slots = mixer.slots(FREE) if slots is None else slots
    return torch.cat([mixer.step([step], slots) for step in cut(ends, slot=1)])


def check_cuts(mixer: Mixer) -> None:
    """Ten odd cuts leave the bits as they are."""
    assert torch.equal(by_cuts(mixer, CUTS), by_cuts(mixer, (TOKENS,)))


def check_tokens(mixer: Mixer, until: int = GRID + 3) -> None:
    """So do steps of a token each."""
    steps = tuple(range(1, until + 1))
    assert torch.equal(by_cuts(mixer, steps), by_cuts(mixer, (until,)))


def check_company(mixer: Mixer) -> None:
    """And so do other sequences, and those that a step is filled up with."""
    slots, found = mixer.slots(FREE), []
    other = list(cut((1, 9, 9, OTHERS), slot=4, start=TOKENS))
    for step, beside in zip(cut((5, 17, 33, TOKENS), slot=1), other, strict=True):
        out = mixer.step([beside, step, Step(0, 0, 2)], slots)
        found.append(out[beside.end - beside.begin :])
    assert torch.equal(torch.cat(found), by_cuts(mixer, (TOKENS,)))


def check_restored(mixer: Mixer) -> None:
    """A record that was copied elsewhere goes on as it was, in the middle of a cell too."""
    whole = by_cuts(mixer, (TOKENS,))
    for end in (GRID, GRID + 5):
        slots = mixer.slots(FREE)
        mixer.step([Step(0, end, 0)], slots)
        kept = slots[0].clone()
        mixer.step([Step(0, 3, 0, start=TOKENS)], slots)  # another takes the slot
        slots[3] = kept
        assert torch.equal(mixer.step([Step(end, TOKENS, 3)], slots), whole[end:])


CORE = ("delta", "low rank by key", "short_conv 2", "selective_scan 2")
FURTHER = (*RULES, "token_shift 0", "short_conv 0", "short_conv 4", "selective_scan 0")


@pytest.mark.deterministic
@pytest.mark.cases(core=4)
@pytest.mark.parametrize("name", core(*CORE, further=FURTHER))
def test_cuts_change_no_bit(name: str) -> None:
    check_cuts(MIXERS[name])


@pytest.mark.deterministic
@pytest.mark.parametrize("name", core("delta", further=FURTHER))
def test_single_tokens_change_no_bit(name: str) -> None:
    check_tokens(MIXERS[name])


@pytest.mark.deterministic
@pytest.mark.parametrize("name", core("delta", "short_conv 2", further=FURTHER))
def test_company_changes_no_bit(name: str) -> None:
    check_company(MIXERS[name])


@pytest.mark.deterministic
@pytest.mark.parametrize("name", core("delta", "short_conv 2", further=FURTHER))
def test_a_restored_record_changes_no_bit(name: str) -> None:
    check_restored(MIXERS[name])


def replaced(patch: pytest.MonkeyPatch, *names: str) -> None:
    """Puts faults in the place of parts of kernels."""
    for name in names:
        room = record_kernels if hasattr(record_kernels, name) else recurrence_kernels
        patch.setattr(room, name, getattr(wrong_records, name))


def test_a_grid_that_begins_where_steps_do_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control: it is right but for the last bits, which then depend on the cuts."""
    mixer = MIXERS["delta"]
    right = by_cuts(mixer, (TOKENS,))
    replaced(monkeypatch, "begin_of", "completes")
    close(by_cuts(mixer, CUTS), right, mixer.op)
    with pytest.raises(AssertionError):
        check_cuts(mixer)


@pytest.mark.parametrize("fault", ["keep_own", "_copy"])
def test_a_row_that_is_lost_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The control: in a step of one row, and in one in which a cell begins."""
    replaced(monkeypatch, fault)
    with pytest.raises(AssertionError):
        check_cuts(MIXERS["delta"])


@pytest.mark.parametrize("fault", core("sums_to", further=["rest_by_key"]))
def test_a_decay_that_is_off_by_one_is_noticed(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """The control: such a kernel agrees with itself."""
    name = "delta by key" if fault == "rest_by_key" else "delta"
    replaced(monkeypatch, fault)
    check_cuts(MIXERS[name])
    with pytest.raises(AssertionError):
        check_reference(MIXERS[name])


def test_a_tail_that_is_forgotten_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The control."""
    replaced(monkeypatch, "keep_last")
    with pytest.raises(AssertionError):
        check_tokens(MIXERS["short_conv 2"], 9)


@pytest.mark.parametrize(
    ("attrs", "found"),
    [({"rule": "sub"}, "the rule 'sub'"), ({"grid": 0}, "a grid of 0")],
    ids=str,
)
def test_recurrences_that_no_kernel_takes_are_refused(
    attrs: Mapping[str, str | int], found: str
) -> None:
    plan = MIXERS["delta"].plan
    (i,) = plan.instructions
    plan = replace(plan, instructions=(replace(i, attrs=i.attrs | attrs),))
    with pytest.raises(CodegenError, match=found):
        CALLS["recurrence"](Operands(plan), Work(plan, plan.kernels[0]))


def test_cuts_meet_all_places_of_a_cell() -> None:
    """Steps that begin in a cell end in it, in the next one, or at the border of both."""
    kinds = {(end // GRID - begin // GRID, end % GRID == 0) for begin, end in pairwise((0, *CUTS))}
    assert {(0, False), (1, False), (1, True)} <= kinds
