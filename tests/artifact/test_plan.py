"""What a plan answers: buffers of its interface, views, groups, sizes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.plan import (
    Buffer,
    Group,
    Instruction,
    Limits,
    Plan,
    aligned,
    arrays_of,
    scales_offset,
)
from ingot.artifact.programs import STEP
from ingot.artifact.spec import SYMBOLS, Array, Spec, State

LIMITS = Limits(
    max_model_len=70, max_num_seqs=3, max_num_batched_tokens=5, max_logit_rows=4, page_size=16
)
KEYS = State(name="k", format=rounded_rows(8), record=(2, 8), window=7)
VALUES = State(name="v", format=Format("bfloat16"), record=(3, 4))
SLOTTED = State(name="s", kind="slotted", format=Format("float32"), record=(2, 6))


def plan(**changes) -> Plan:
    logits = Array(name="logits", dtype="float32", shape=("R", 11))
    buffers = (
        Buffer(name="x", format=Format("float32"), shape=("N", 24), kind="arena", offset=128),
        Buffer(
            name="y", format=Format("float32"), shape=("N", 8), kind="view", base="x",
            offset=16, row_stride=24,
        ),
    )  # fmt: skip
    spec = Spec(inputs=STEP.inputs_for("paged"), states=(KEYS, VALUES), outputs=(logits,))
    step = Instruction(op="add", inputs={}, outputs={}, attrs={}, origin="")
    given = {"limits": LIMITS, "spec": spec, "buffers": buffers, "instructions": (step,) * 6}
    return Plan(**(given | changes))


def test_buffers_of_the_interface_follow_from_the_spec():
    found = plan().by_name
    assert [found[a.name].shape for a in STEP.inputs_for("paged")] == [
        a.shape for a in STEP.inputs_for("paged")
    ]
    kinds = {name: buffer.kind for name, buffer in found.items()}
    assert kinds == dict.fromkeys((a.name for a in STEP.inputs_for("paged")), "input") | {
        "logits": "output", "k": "state", "v": "state", "x": "arena", "y": "view",
    }  # fmt: skip
    assert found["k"].shape == (0, 2, 16, 8) and found["k"].format == KEYS.format
    assert [b.name for b in plan().of_kind("state")] == ["k", "v"]
    with pytest.raises(KeyError):
        plan().buffer("z")


def test_states_of_sequences_have_no_pages():
    assert SLOTTED.shape(16) == (0, 2, 6)
    assert VALUES.shape(16) == (0, 3, 16, 4)


def test_a_view_lies_in_its_base():
    assert plan().root("y").name == plan().root("x").name == "x"
    assert plan().buffer("y").columns == 8


def test_kernels_are_the_groups_and_what_is_in_none():
    groups = (Group(kernel="b", first=1, count=2), Group(kernel="e", first=4))
    found = plan(groups=groups)
    assert [(k.kernel, k.first, k.count) for k in found.kernels] == [
        ("add", 0, 1), ("b", 1, 2), ("add", 3, 1), ("e", 4, 1), ("add", 5, 1),
    ]  # fmt: skip
    members = [i for kernel in found.kernels for i in found.members(kernel)]
    assert len(members) == 6
    assert len(plan().kernels) == 6


def test_bounds_of_symbols():
    assert {dim: LIMITS.bound(dim) for dim in (*SYMBOLS, 9)} == {
        "N": 5, "S": 3, "R": 4, "P": 5, 9: 9,
    }  # fmt: skip
    assert replace(LIMITS, max_model_len=64).max_pages_per_seq == 4


def test_temporaries_have_their_scales_behind_them():
    plain = plan().buffer("x")
    assert plan().arena_bytes_of(plain) == 5 * 24 * 4
    scaled = replace(plain, format=rounded_rows(8))
    # 120 bytes of numbers, scales from byte 128 on.
    assert plan().arena_bytes_of(scaled) == 128 + 15 * 4
    assert scales_offset(scaled.format, (5, 24)) == 128 == scales_offset(scaled.format, (4, 32))
    assert arrays_of(scaled.format, (5, 24)) == [("int8", 120), ("float32", 15)]
    assert arrays_of(scaled.format, (5, 20)) == [("int8", 100), ("float32", 15)]
    assert arrays_of(plain.format, (5, 24)) == [("float32", 120)]
    grouped = Format("int4", 128, 32, "float16")
    assert arrays_of(grouped, (2, 128)) == [("int4", 256), ("float16", 2)]


def test_alignment_is_that_of_a_cache_line():
    assert [aligned(n) for n in (0, 1, 63, 64, 65, 128)] == [0, 64, 64, 64, 128, 128]


def test_pages_and_tokens_take_what_their_formats_say():
    assert plan().page_sizes() == [2 * 16 * 8, 2 * 16 * 4, 3 * 16 * 4 * 2]
    assert plan().kv_bytes_per_token == 2 * (8 + 4) + 3 * 4 * 2
    wide = plan(limits=replace(LIMITS, page_size=48))
    assert wide.page_sizes()[0] == 2 * 48 * 8
    assert wide.kv_bytes_per_token == plan().kv_bytes_per_token
    assert plan().kv_dtype == "int8"
    assert plan(spec=Spec()).kv_dtype == ""
