"""Costs against counts by hand."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from ingot.artifact.cost import Cost, StepShape, stacked_product, total
from ingot.artifact.formats import Format, Storage, rounded_rows
from ingot.artifact.plan import Buffer, Group, Instruction, Limits, Plan
from ingot.artifact.programs import LOGITS, STEP
from ingot.artifact.spec import Array, Spec, State
from ingot.artifact.step_cost import kernel_costs, step_cost
from ingot.artifact.traits import TRAITS

VOCAB, WIDTH, HEADS, KV_HEADS, SIZE, PAGE = 100, 64, 4, 2, 16, 32
LIMITS = Limits(
    max_model_len=512, max_num_seqs=8, max_num_batched_tokens=64, max_logit_rows=8, page_size=PAGE
)
NARROW, WIDE = Format("bfloat16"), Format("float32")


def instruction(op: str, **inputs: str) -> Instruction:
    outputs = {name: f"{op}.{name}" for name in TRAITS[op].outputs}
    return Instruction(op=op, inputs=inputs, outputs=outputs, attrs={}, origin="")


def weight(name: str, *shape: int, form: Format = NARROW) -> Buffer:
    return Buffer(name=name, format=form, shape=shape, kind="weight")


def arena(name: str, *inner: int, form: Format = NARROW, rows: str = "N") -> Buffer:
    return Buffer(name=name, format=form, shape=(rows, *inner), kind="arena")


def small_plan(window: int = 0, states: Format = NARROW) -> Plan:
    """An embedding, a norm, one layer's attention, and a head that shares the embedding."""
    caches = (State(name=name, format=states, record=(KV_HEADS, SIZE)) for name in ("k", "v"))
    logits = Array(name=LOGITS, dtype="float32", shape=("R", VOCAB))
    buffers = (
        weight("table", VOCAB, WIDTH),
        weight("norm", WIDTH, form=WIDE),
        arena("embedding.out", WIDTH),
        arena("rms_norm.out", WIDTH),
        arena("last", WIDTH, rows="R"),
        arena("q", HEADS, SIZE),
    )
    attention = instruction("paged_attention", q="q", k_cache="k", v_cache="v")
    instructions = (
        instruction("embedding", tokens="tokens", weight="table"),
        instruction("rms_norm", x="embedding.out", weight="norm"),
        replace(attention, attrs={"window": window}),
        instruction("linear", x="last", weight="table"),
    )
    spec = Spec(inputs=STEP.inputs_for("paged"), states=tuple(caches), outputs=(logits,))
    return Plan(limits=LIMITS, spec=spec, buffers=buffers, instructions=instructions)


def test_decoding_a_token_by_hand():
    cost = step_cost(small_plan(), StepShape(context=100))
    assert cost.weight_bytes == 2 * WIDTH + 4 * WIDTH + 2 * VOCAB * WIDTH
    assert cost.kv_bytes == 100 * 2 * KV_HEADS * SIZE * 2
    assert cost.operations == {"bfloat16": 2 * VOCAB * WIDTH + 4 * HEADS * SIZE * 100}
    assert cost.num_bytes == cost.weight_bytes + cost.kv_bytes


def test_sinks_are_read_as_weights():
    plan = small_plan()
    given = [replace(i, inputs=i.inputs | {"sinks": "sinks"}) if i.op == "paged_attention" else i
             for i in plan.instructions]  # fmt: skip
    sunk = replace(
        plan,
        buffers=(*plan.buffers, weight("sinks", HEADS, form=WIDE)),
        instructions=tuple(given),
    )
    shape = StepShape(context=100)
    assert step_cost(sunk, shape) == step_cost(plan, shape) + Cost(weight_bytes=4 * HEADS)


def test_scores_of_rounded_queries_are_products_of_bytes():
    plan = small_plan()
    rounded = [replace(i, attrs=i.attrs | {"rounds_queries": True}) for i in plan.instructions]
    cost = step_cost(replace(plan, instructions=tuple(rounded)), StepShape(context=100))
    assert cost.operations["int8"] == 2 * HEADS * SIZE * 100
    assert cost.operations["bfloat16"] == 2 * VOCAB * WIDTH + 2 * HEADS * SIZE * 100


def test_a_prefill_by_hand():
    """All tokens see themselves and those before them; only the last one has logits."""
    embedding, norm, attention, head = kernel_costs(
        small_plan(), StepShape(new_tokens=10, context=10)
    )
    assert embedding == Cost(weight_bytes=10 * 2 * WIDTH)
    assert norm == Cost(weight_bytes=4 * WIDTH)
    pairs = sum(range(1, 11))
    assert attention.operations == {"bfloat16": 4 * HEADS * SIZE * pairs}
    assert head.operations == {"bfloat16": 2 * VOCAB * WIDTH}


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [0, 1, 3, 50])
def test_segments_count_every_pair_that_is_seen(window, causal):
    """And read nothing: their keys and values are temporaries."""
    operands = {name: arena(name, heads, SIZE) for name, heads in (("q", HEADS), ("k", KV_HEADS))}
    operands["v"] = arena("v", KV_HEADS, SIZE // 2)
    given = replace(
        instruction("segment_attention", q="q", k="k", v="v", spans="spans"),
        attrs={"window": window, "causal": causal},
    )
    shape = StepShape(sequences=3, new_tokens=7, context=90)
    pairs = [
        (i, j)
        for i in range(7)
        for j in range(7)
        if (not window or abs(i - j) < window) and (j <= i or not causal)
    ]
    cost = TRAITS["segment_attention"].cost(given, operands, shape)
    assert cost == Cost(operations={"bfloat16": 3 * len(pairs) * 2 * HEADS * (SIZE + SIZE // 2)})


@pytest.mark.parametrize(("rows", "experts", "picks"), [(1, 8, 2), (16, 128, 8), (50, 16, 4)])
def test_rows_read_as_many_experts_as_random_picks_do(rows, experts, picks):
    stack = weight("gate", experts, 32, WIDTH)
    given = Instruction(op="expert_gate", inputs={}, outputs={}, attrs={"top_k": picks}, origin="")
    operands = {"x": arena("x", WIDTH), "weight": stack}
    cost = stacked_product(given, operands, StepShape(sequences=rows))
    rng = random.Random(0)
    tries = [
        len({expert for _ in range(rows) for expert in rng.sample(range(experts), picks)})
        for _ in range(2000)
    ]
    read = sum(tries) / len(tries) * 2 * 32 * WIDTH
    assert cost.weight_bytes == pytest.approx(read, rel=0.01)
    assert cost.num_operations == 2 * rows * picks * 32 * WIDTH


def test_a_chunk_of_a_prompt_that_goes_on_needs_no_head():
    shape = StepShape(new_tokens=10, context=10)
    *others, head = kernel_costs(small_plan(), replace(shape, finished=False))
    assert head == Cost()
    assert others == list(kernel_costs(small_plan(), shape)[:-1])


def test_sequences_share_weights_and_nothing_else():
    one, five = (kernel_costs(small_plan(), StepShape(sequences=n, context=40)) for n in (1, 5))
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


@pytest.mark.parametrize(
    ("storage", "nbytes"),
    [
        (Storage(8, 32), 96 * (256 + 8 * 2)),  # and a scale for each 32
        (Storage(8, 0), 96 * (256 + 2)),
        (Storage(4, 32), 96 * (128 + 8 // 2 + 2 * 2)),  # multipliers of 4 bits; blocks of 128
        (Storage(4, 128), 96 * (128 + 2 * 2)),
    ],
)
def test_scales_and_multipliers_are_read_with_their_integers(storage, nbytes):
    form = storage.of(256)
    x = arena("x", 256, form=rounded_rows(form.block))
    plan = replace(
        small_plan(),
        buffers=(weight("w", 96, 256, form=form), x, arena("linear.out", 96)),
        instructions=(instruction("linear", x="x", weight="w"),),
    )
    cost = step_cost(plan, StepShape(sequences=3))
    assert cost.weight_bytes == nbytes
    assert cost.operations == {"int8": 2 * 3 * 96 * 256}


def test_keys_and_values_in_integers_are_read_with_their_scales():
    cost = step_cost(small_plan(states=rounded_rows(SIZE)), StepShape(context=100))
    assert cost.kv_bytes == 100 * 2 * KV_HEADS * (SIZE + 4)


def test_rows_of_a_table_in_integers_bring_their_part_of_its_scales():
    form = Storage(8, 32).of(WIDTH)
    plan = small_plan()
    plan = replace(
        plan,
        buffers=(weight("table", VOCAB, WIDTH, form=form), *plan.buffers[1:]),
        instructions=plan.instructions[:1],
    )
    assert step_cost(plan, StepShape(new_tokens=7, context=7)).weight_bytes == 7 * (WIDTH + 2 * 2)


def test_an_op_reads_its_weights_and_not_what_else_it_is_given():
    plan = replace(
        small_plan(),
        buffers=(weight("inv_freq", SIZE // 2, form=WIDE), arena("rope_table.out", SIZE)),
        instructions=(instruction("rope_table", positions="positions", inv_freq="inv_freq"),),
    )
    assert step_cost(plan, StepShape(new_tokens=9, context=9)) == Cost(weight_bytes=4 * SIZE // 2)


def test_a_group_costs_what_its_instructions_cost():
    plan, shape = small_plan(), StepShape(sequences=2, context=9)
    single = kernel_costs(plan, shape)
    grouped = replace(plan, groups=(Group(kernel="both", first=1, count=2),))
    assert kernel_costs(grouped, shape) == [single[0], single[1] + single[2], single[3]]
    assert step_cost(grouped, shape) == step_cost(plan, shape)


def test_costs_add_up():
    one = Cost(weight_bytes=1, kv_bytes=2, operations={"int8": 3})
    other = Cost(weight_bytes=10, operations={"int8": 1, "float32": 5})
    added = Cost(weight_bytes=11, kv_bytes=2, operations={"float32": 5, "int8": 4})
    assert one + other == added
    assert total([]) == Cost()
