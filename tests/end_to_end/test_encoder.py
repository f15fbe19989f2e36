"""A program without a cache, from plain modules to kernels: an encoder of texts side by side.

The encoder is the bundled model with attention that sees both ways. Its program, its attention and
the pass that names that attention are of this test alone; all else is what decoders have.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.fx import GraphModule
from torch.nn.functional import scaled_dot_product_attention

from bench.experts import Layers
from ingot.artifact.host import host_flags
from ingot.artifact.plan import Plan
from ingot.artifact.programs import HIDDEN, LEADS_TO, Program
from ingot.artifact.target import Target
from ingot.compiler.export import export
from ingot.compiler.interpret import interpret, plan_weights
from ingot.compiler.lower import lower
from ingot.compiler.program_graphs import graph_of, last_hidden_state
from ingot.models import registry
from ingot.models.blocks.attention import Attention
from ingot.models.blocks.rotary import RopeTables, rotate
from ingot.models.checkpoints.checkpoint import Checkpoint, materialize
from ingot.models.model_dir import ModelDir
from ingot.passes import invariants, pipeline, runner
from ingot.passes.declaration import Pass
from ingot.passes.fuse_attention import fuse_attention
from ingot.passes.graph import aten, call, call_op, calls, replace, value
from ingot.passes.lower_dtypes import lower_dtypes
from ingot.passes.rewrite_attention import step_inputs
from ingot.passes.select_logit_rows import select_logit_rows
from ingot.runtime.devices.cpu_kernels import step_struct
from ingot.targets.cpu.levels import native_target
from ingot.targets.cuda.kind import KIND as CUDA
from ingot.targets.target import kind_of, target_named
from tests.compiler.plans import LIMITS, MODEL
from tests.ops.sample_inputs import segments

TEXTS = [[11, 700, 3, 42, 900], [5], [(i * 37) % 2048 for i in range(40)]]
ENCODE = Program(
    name="encode",
    meaning="gives hidden states of texts that see themselves whole",
    inputs=tuple(each for each in HIDDEN.inputs if each.name not in LEADS_TO),
    outputs=HIDDEN.outputs,
)


class EncoderAttention(Attention):
    """The same projections, norms and rotations; every token sees all others."""

    def forward(self, x_1TC: Tensor, tables: RopeTables) -> Tensor:
        rows, size = x_1TC.shape[:2], self.mixer.head_dim
        projections = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (project(x_1TC).view(*rows, -1, size) for project in projections)
        turned = (
            rotate(x, *tables[self.mixer.rope], self.mixer.rope.pairs)
            for x in self.normed_heads(q, k)
        )
        heads = (x.transpose(1, 2) for x in (*turned, v))
        mixed = scaled_dot_product_attention(*heads, scale=self.mixer.scale, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(*rows, -1))


def name_segments(gm: GraphModule) -> int:
    """Attention that sees both ways becomes that of segments."""
    spans, found = step_inputs(gm, "paged")["spans"], 0
    for node in calls(gm, aten.scaled_dot_product_attention.default):
        with node.graph.inserting_before(node):
            q, k, v = (
                call(gm.graph, aten.transpose.int, x, 1, 2, like=node) for x in node.args[:3]
            )
            words = {"scale": node.kwargs["scale"], "causal": False, "window": 0, "softcap": 0.0}
            given = {"q": q, "k": k, "v": v, "spans": spans, **words}
            new = call_op(gm.graph, "segment_attention", like=node, **given)
            back = call(gm.graph, aten.transpose.int, new, 1, 2, like=node, val=value(node))
            replace(node, back)
        found += 1
    return found


def passes(dtype: torch.dtype) -> list[Pass]:
    """Those of decoders, without a cache."""
    mixing = Pass(function=name_segments, gives=(invariants.step_inputs,))
    primitives = [
        mixing if each.function is fuse_attention else each for each in pipeline.PRIMITIVES
    ]
    rows = next(each for each in pipeline.PAGES if each.function is select_logit_rows)
    narrow = Pass(function=partial(lower_dtypes, narrow=dtype))
    rounding = () if dtype == torch.float32 else (narrow,)
    return [*pipeline.SPELLINGS, *primitives, *pipeline.PRODUCTS, rows, *rounding]


@cache
def encoder(on_meta: bool) -> nn.Module:
    config = registry.load_config(ModelDir.open(MODEL))
    module = registry.build(config, max_model_len=LIMITS.max_model_len)
    for layer in module.model.layers:
        layer.self_attn.__class__ = EncoderAttention
    if not on_meta:
        with Checkpoint.open(ModelDir.open(MODEL), config, module) as checkpoint:
            materialize(module, checkpoint)
    return module


@cache
def plan_of(dtype: torch.dtype) -> Plan:
    exported = export(encoder(on_meta=True), registry.load_config(ModelDir.open(MODEL)))
    gm = graph_of(exported, ENCODE, last_hidden_state(exported).name)
    runner.run(gm, passes(dtype), None)
    return lower(gm, LIMITS)


def inputs() -> dict[str, Tensor]:
    arrays = {
        "tokens": torch.tensor([token for text in TEXTS for token in text]),
        "positions": torch.cat([torch.arange(len(text)) for text in TEXTS]),
        "spans": segments([*map(len, TEXTS)]),
        "hidden_rows": torch.arange(sum(map(len, TEXTS))),
    }
    return {name: x.int() for name, x in arrays.items()}


def expected() -> Tensor:
    """By the plain module, one text after the other."""
    model = encoder(on_meta=False).model
    with torch.no_grad():
        made = [model(torch.tensor([t]), torch.arange(len(t))[None])[0] for t in TEXTS]
    return torch.cat(made)


def read(name: str) -> Tensor:
    return encoder(on_meta=False).get_parameter(name).detach()


def interpreted(plan: Plan) -> Tensor:
    return interpret(plan, plan_weights(buffer_reader(plan)), inputs(), {})[-1]["hidden"]


def buffer_reader(plan: Plan) -> Callable[[str], Tensor]:
    """Parameters and constants of the model, by name."""
    tensors = dict(encoder(on_meta=False).named_buffers())
    return lambda name: tensors[name] if name in tensors else read(name)


def run_on_cpu(plan: Plan, target: Target, folder: Path, threads: int = 2) -> Tensor:
    """What the plan's kernels give."""
    kind = kind_of(target)
    placed = kind.place(kind.group(kind.rewrite(plan))[0])
    for name, text in kind.sources(placed, target).items():
        (folder / name).write_text(text)
    kind.build(folder, folder / "kernels.so", target)
    kind.pack(folder / "weights.safetensors", placed, buffer_reader(placed), None)
    given = inputs()
    out = np.zeros((len(given["tokens"]), 256), np.float32)
    with Layers(placed, folder, threads) as layers:
        for name, x in given.items():
            layers.inputs[name][: len(x)] = x.numpy()
        layers.inputs.num_tokens = layers.inputs.num_rows = len(out)
        layers.inputs.num_seqs = len(TEXTS)
        assert layers.kernels.run(step_struct(layers.inputs, [out.ctypes.data])) == 0
    return torch.from_numpy(out)


def error(got: Tensor) -> float:
    wanted = expected()
    return ((got - wanted).norm() / wanted.norm()).item()


def test_the_plan_has_attention_over_segments_and_no_state() -> None:
    plan = plan_of(torch.bfloat16)
    ops = [i.op for i in plan.instructions]
    assert ops.count("segment_attention") == 6 and "attention" not in ops
    assert not plan.spec.states
    mixers = [i for i in plan.instructions if i.op == "segment_attention"]
    dtypes = {plan.buffer(i.inputs[name]).dtype for i in mixers for name in "qkv"}
    assert dtypes == {"bfloat16"}


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_the_plan_computes_the_encoder(dtype: torch.dtype, most: float) -> None:
    assert error(interpreted(plan_of(dtype))) < most


@pytest.mark.parametrize(("dtype", "most"), [(torch.float32, 1e-5), (torch.bfloat16, 3e-2)])
def test_kernels_compute_the_encoder(dtype: torch.dtype, most: float, tmp_path: Path) -> None:
    got = run_on_cpu(plan_of(dtype), native_target(host_flags()), tmp_path)
    assert error(got) < most


def test_a_gpu_has_launches_for_it() -> None:
    plan = CUDA.place(CUDA.group(CUDA.rewrite(plan_of(torch.bfloat16)))[0])
    sources = CUDA.sources(plan, target_named("cuda:sm_90"))
    assert any("segments.attend_segments" in text for text in sources.values())
