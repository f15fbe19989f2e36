"""The plan, run word for word by an interpreter, against the float32 reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ingot.artifact.codec import decode_plan, encode_plan
from ingot.artifact.formats import Storage
from ingot.artifact.plan import Limits, Plan
from ingot.artifact.target import Target
from ingot.compiler.export import export
from ingot.compiler.lower import lower
from ingot.compiler.quantization.choose import choose_storage
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.reference import reference_logits
from ingot.errors import CodegenError
from ingot.models import registry
from ingot.models.checkpoint import Checkpoint
from ingot.passes import runner
from ingot.passes.pipeline import pipeline
from tests.support.plan_interpreter import PlanInterpreter, Step

torch.set_num_threads(1)

MODEL = Path(__file__).parents[2] / "golden" / "models" / "shakespeare"
LIMITS = Limits(
    max_model_len=256, max_num_seqs=4, max_num_batched_tokens=64, max_logit_rows=64, page_size=16
)
TARGET = Target("cpu", "portable")
PROMPTS = [[(i * 37) % 2048 for i in range(33)], [5], [(i * 91) % 2048 for i in range(17)]]


def graph() -> torch.fx.GraphModule:
    config = registry.load_config(MODEL)
    return export(registry.build(config, max_model_len=256), config)


def plan_for(
    dtype: str,
    disable: tuple[str, ...] = (),
    base: Storage | None = None,
    keep: tuple[str, ...] = (),
) -> Plan:
    gm = graph()
    steps = pipeline(dtype=dtype, disable=disable, quantize=choose_storage(gm, base, keep, dtype))
    runner.run(gm, steps, registry.load_config(MODEL), target=TARGET)
    return lower(gm, LIMITS)


@pytest.fixture(scope="module")
def checkpoint() -> Checkpoint:
    config = registry.load_config(MODEL)
    return Checkpoint.open(MODEL, config, registry.build(config, max_model_len=256))


@pytest.fixture(scope="module")
def reference(checkpoint: Checkpoint) -> list[torch.Tensor]:
    return reference_logits(graph(), checkpoint.read, PROMPTS)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def plan(request: pytest.FixtureRequest) -> Plan:
    return plan_for(request.param)


def step_by_step(interpreter: PlanInterpreter) -> list[torch.Tensor]:
    """All prompts together, in two steps: the second continues the first and the third prompt."""
    pages = [[3, 7, 1], [2], [9, 4]]
    first = [PROMPTS[0][:20], PROMPTS[1], PROMPTS[2][:1]]
    rows = interpreter.run(Step(first, [0, 0, 0], pages)).split([20, 1, 1])
    rest = [PROMPTS[0][20:], PROMPTS[2][1:]]
    more = interpreter.run(Step(rest, [20, 1], [pages[0], pages[2]])).split([13, 16])
    return [torch.cat([rows[0], more[0]]), rows[1], torch.cat([rows[2], more[1]])]


def largest_error(got: list[torch.Tensor], reference: list[torch.Tensor]) -> float:
    errors = [float((g - r).norm() / r.norm()) for g, r in zip(got, reference, strict=True)]
    return max(errors)


def test_the_plan_computes_the_model(
    plan: Plan, checkpoint: Checkpoint, reference: list[torch.Tensor]
) -> None:
    got = step_by_step(PlanInterpreter(plan, checkpoint.read))
    limit = 1e-5 if plan.buffer("k_cache_0").dtype == "float32" else 3e-2
    assert largest_error(got, reference) <= limit


def test_the_plan_without_optional_passes_computes_the_same(
    checkpoint: Checkpoint, reference: list[torch.Tensor]
) -> None:
    optional = tuple(step.name for step in pipeline() if step.optional)
    plan = plan_for("float32", disable=optional)
    assert {"add", "kv_write", "rope"} <= {i.op for i in plan.instructions}
    got = step_by_step(PlanInterpreter(plan, checkpoint.read))
    assert largest_error(got, reference) <= 1e-5


@pytest.mark.parametrize(
    "base, dtype",
    [(Storage(8, 32), "bfloat16"), (Storage(4, 32), "float32"), (Storage(8, 0), "bfloat16")],
)
def test_a_quantized_plan_computes_what_its_integers_stand_for(
    base: Storage, dtype: str, checkpoint: Checkpoint
) -> None:
    storage = choose_storage(graph(), base, (), dtype)

    def read(name: str) -> torch.Tensor:
        weight = checkpoint.read(name)
        if name not in storage:
            return weight
        stored = storage[name]
        return quantize_rows(
            weight, bits=stored.bits, spans=stored.of(weight.shape[1])
        ).dequantize()

    got = step_by_step(PlanInterpreter(plan_for(dtype, base=base), checkpoint.read))
    expected = reference_logits(graph(), read, PROMPTS)
    assert largest_error(got, expected) <= 3e-2


def test_a_quantized_plan_says_what_each_tensor_is() -> None:
    plan = plan_for("bfloat16", base=Storage(4, 64), keep=("layers.2.mlp.*=bf16",))
    buffers = plan.by_name()
    table, scales = "model.embed_tokens.weight", "model.embed_tokens.weight_scales"
    assert (buffers[table].dtype, buffers[table].shape) == ("int8", (2048, 256))
    assert (buffers[scales].dtype, buffers[scales].shape) == ("float16", (2048, 4))
    assert buffers[scales].base == table and buffers[scales].sources == buffers[table].sources
    merged = buffers["model.layers.0.self_attn.q_k_v_proj.weight"]
    assert (merged.dtype, len(merged.sources)) == ("int4", 3)
    multipliers = buffers[f"{merged.name}_multipliers"]
    assert (multipliers.dtype, multipliers.base) == ("int4", merged.name)
    assert multipliers.shape == (merged.shape[0], int(merged.shape[1]) // 64)
    assert buffers["model.layers.2.mlp.down_proj.weight"].dtype == "bfloat16"
    dtypes = {name: b.dtype for name, b in buffers.items() if b.kind == "arena"}
    assert dtypes["rms_norm_quantize_out"] == "int8"
    assert dtypes["rms_norm_quantize_out_scales"] == "float32"
    # q, k, v read one rounded norm, gate and up another, and the head its own; what comes out of a
    # gate is rounded there. Blocks of 128 are two heads of this model.
    counts = Counter(instruction.op for instruction in plan.instructions)
    assert counts["rms_norm_quantize"] == 2 * 6 - 1 + 1
    assert (counts["quantize"], counts["quantized_gated_linear_quantize"]) == (6, 5)


def test_a_misplaced_temporary_shows(checkpoint: Checkpoint, reference: list[torch.Tensor]) -> None:
    plan = plan_for("float32")
    total = next(i.outputs["out"] for i in plan.instructions if "residual" in i.inputs)
    broken = replace(
        plan, buffers=tuple(replace(b, offset=0) if b.name == total else b for b in plan.buffers)
    )
    got = step_by_step(PlanInterpreter(broken, checkpoint.read))
    assert not largest_error(got, reference) <= 1e-3  # NaN counts


def test_plans_survive_json_and_repeat(plan: Plan) -> None:
    assert decode_plan(encode_plan(plan)) == plan
    dtype = plan.buffer("k_cache_0").dtype
    assert encode_plan(plan_for(dtype)) == encode_plan(plan)


def test_every_instruction_says_where_it_comes_from(plan: Plan) -> None:
    origins = [i.origin for i in plan.instructions]
    assert all(origins)
    assert "model.layers.5.mlp.down_proj" in origins


def test_merged_weights_name_their_sources(plan: Plan) -> None:
    attention = "model.layers.0.self_attn"
    weight = plan.buffer(f"{attention}.q_k_v_proj.weight")
    assert weight.sources == tuple(f"{attention}.{p}_proj.weight" for p in "qkv")
    assert weight.shape == (512, 256)


def test_an_unknown_operation_is_refused_by_name() -> None:
    gm = graph()
    runner.run(gm, pipeline(), registry.load_config(MODEL), target=TARGET)
    node = next(n for n in gm.graph.nodes if n.name == "linear_6")
    with gm.graph.inserting_after(node):
        relu = gm.graph.call_function(torch.ops.aten.relu.default, (node,))
    relu.meta = dict(node.meta)
    node.replace_all_uses_with(relu, delete_user_cb=lambda user: user is not relu)
    with pytest.raises(CodegenError, match=r"relu.*layers\.0\.mlp\.down_proj"):
        lower(gm, LIMITS)
