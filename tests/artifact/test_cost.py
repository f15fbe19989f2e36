"""Costs against counts by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ingot.artifact.cost import Cost, StepShape, instruction_costs, step_cost, total, weight_bytes
from ingot.artifact.plan import Buffer, Instruction, Limits, MemoryPlan, Plan

VOCAB, WIDTH, HEADS, KV_HEADS, SIZE, PAGE = 100, 64, 4, 2, 16, 32
LIMITS = Limits(
    max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64, max_logit_rows=8, page_size=PAGE
)


def instruction(op: str, outputs: tuple[str, ...] = ("out",), **inputs: str) -> Instruction:
    names = {name: f"{op}.{name}" for name in outputs}
    return Instruction(op=op, inputs=inputs, outputs=names, attrs={}, origin="")


def weight(name: str, *shape: int, dtype: str = "bfloat16") -> Buffer:
    return Buffer(name=name, dtype=dtype, shape=shape, kind="weight")


def small_plan(window: int = 0) -> Plan:
    """An embedding, a norm, one layer's attention, and a head that shares the embedding."""
    arena = (("x", WIDTH), ("embedding.out", WIDTH), ("rms_norm.out", WIDTH), ("linear.out", VOCAB))
    cache = (0, KV_HEADS, PAGE, SIZE)
    buffers = (
        Buffer(name="tokens", dtype="int32", shape=("N",), kind="input"),
        weight("table", VOCAB, WIDTH),
        weight("norm", WIDTH, dtype="float32"),
        *(
            Buffer(name=name, dtype="bfloat16", kind="arena",
                   shape=("R" if columns == VOCAB else "N", columns))
            for name, columns in arena
        ),
        Buffer(name="q", dtype="bfloat16", shape=("N", HEADS, SIZE), kind="arena"),
        *(Buffer(name=n, dtype="bfloat16", shape=cache, kind="cache") for n in ("k", "v")),
    )  # fmt: skip
    attention = instruction("paged_attention", q="q", k_cache="k", v_cache="v")
    instructions = (
        instruction("embedding", tokens="tokens", weight="table"),
        instruction("rms_norm", x="embedding.out", weight="norm"),
        replace(attention, attrs={"window": window}),
        instruction("linear", x="rms_norm.out", weight="table"),
    )
    memory = MemoryPlan(arena_bytes=0, slots=())
    return Plan(limits=LIMITS, buffers=buffers, instructions=instructions, memory=memory)


def test_decoding_a_token_by_hand():
    cost = step_cost(small_plan(), StepShape(context=100))
    assert cost.weight_bytes == 2 * WIDTH + 4 * WIDTH + 2 * VOCAB * WIDTH
    assert cost.kv_bytes == 100 * 2 * KV_HEADS * SIZE * 2
    assert cost.operations == {"bfloat16": 2 * VOCAB * WIDTH + 4 * HEADS * SIZE * 100}
    assert cost.num_bytes == cost.weight_bytes + cost.kv_bytes


def test_a_prefill_by_hand():
    """All tokens see themselves and those before them; only the last one has logits."""
    embedding, norm, attention, head = instruction_costs(
        small_plan(), StepShape(new_tokens=10, context=10)
    )
    assert embedding == Cost(weight_bytes=10 * 2 * WIDTH)
    assert norm == Cost(weight_bytes=4 * WIDTH)
    pairs = sum(range(1, 11))
    assert attention.operations == {"bfloat16": 4 * HEADS * SIZE * pairs}
    assert head.operations == {"bfloat16": 2 * VOCAB * WIDTH}


def test_sequences_share_weights_and_nothing_else():
    one, five = (
        instruction_costs(small_plan(), StepShape(sequences=n, context=40)) for n in (1, 5)
    )
    assert five[-1].weight_bytes == one[-1].weight_bytes
    assert five[-1].num_operations == 5 * one[-1].num_operations
    assert five[2].kv_bytes == 5 * one[2].kv_bytes


@pytest.mark.parametrize("window", [0, 1, 5, 16, 99])
@pytest.mark.parametrize(("new", "context"), [(1, 1), (1, 60), (7, 7), (16, 40), (40, 40)])
def test_windows_count_what_is_seen(window, new, context):
    shape = StepShape(new_tokens=new, context=context)
    seen = [
        {key for key in range(context) if key <= query and (not window or query - window < key)}
        for query in range(context - new, context)
    ]
    assert shape.pairs(window) == sum(map(len, seen))
    assert shape.visible(window) == len(set().union(*seen))


@pytest.mark.parametrize(("dtype", "kind", "bits"), [("int8", "int8", 8), ("int4", "int8", 4)])
def test_quantized_weights_and_their_scales_are_read(dtype, kind, bits):
    plan = small_plan()
    quantized = (weight("w", 96, WIDTH, dtype=dtype), weight("s", 96, 2, dtype="float32"))
    linear = instruction("quantized_linear", values="x", scales="x", weight="w", weight_scales="s")
    out = Buffer(name="quantized_linear.out", dtype="float32", shape=("N", 96), kind="arena")
    plan = replace(plan, buffers=(*plan.buffers, *quantized, out), instructions=(linear,))
    cost = step_cost(plan, StepShape(sequences=3))
    assert cost.weight_bytes == 96 * WIDTH * bits // 8 + 96 * 2 * 4
    assert cost.operations == {kind: 2 * 3 * 96 * WIDTH}


def test_costs_add_up():
    one = Cost(weight_bytes=1, kv_bytes=2, operations={"int8": 3})
    other = Cost(weight_bytes=10, operations={"int8": 1, "float32": 5})
    added = Cost(weight_bytes=11, kv_bytes=2, operations={"float32": 5, "int8": 4})
    assert one + other == added
    assert total([]) == Cost()
    assert weight_bytes(weight("w", 3, 4)) == 24
