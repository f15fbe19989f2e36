"""Every op of the vocabulary keeps the promises of its declaration."""

import copy
import inspect

import pytest
import torch

from ingot.ops import OPS
from ingot.ops.registry import Op

TABLE = [
    "embedding",
    "rms_norm",
    "add_rms_norm",
    "layer_norm",
    "linear",
    "gated_linear",
    "rope_table",
    "rope",
    "attention",
    "silu_mul",
    "gelu_mul",
    "relu_mul",
    "activation",
    "add",
    "select_rows",
    "cast",
    "kv_write",
    "paged_attention",
    "rope_kv_write",
    "linear_rope_kv_write",
    "quantize",
    "rms_norm_quantize",
    "quantized_linear",
    "quantized_gated_linear_quantize",
    "paged_attention_quantize",
    "quantized_gated_linear",
    "quantized_linear_rope_kv_write",
    "quantized_embedding",
]


def samples(op: Op) -> list[dict]:
    return op.sample_inputs(torch.Generator().manual_seed(0))


def results(value: object) -> tuple[torch.Tensor, ...]:
    return () if value is None else value if isinstance(value, tuple) else (value,)


def test_vocabulary_is_the_documented_one():
    assert sorted(OPS) == sorted(TABLE)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_fake_agrees_with_reference(op):
    for kwargs in samples(op):
        expected = results(op.reference(**copy.deepcopy(kwargs)))
        fakes = op.empty_results(**kwargs)
        assert len(expected) == len(fakes) == len(op.outputs)
        for real, fake in zip(expected, fakes, strict=True):
            assert (real.shape, real.dtype) == (fake.shape, fake.dtype)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_op_through_the_dispatcher_is_its_reference(op):
    for kwargs in samples(op):
        through, direct = copy.deepcopy(kwargs), copy.deepcopy(kwargs)
        got, expected = results(op.overload(**through)), results(op.reference(**direct))
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)
        for name in (name for name in op.mutates if name in kwargs):
            assert torch.equal(through[name], direct[name])
            assert not torch.equal(through[name], kwargs[name])


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_only_declared_arguments_are_mutated_and_none_is_returned(op):
    for kwargs in samples(op):
        before = copy.deepcopy(kwargs)
        outs = results(op.reference(**kwargs))
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor) and value.numel():
                assert name in op.mutates or torch.equal(value, before[name])
                assert all(out.data_ptr() != value.data_ptr() for out in outs)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_results_have_names_of_their_own(op):
    """Plans look operands up by name, arguments and results alike."""
    assert not set(op.outputs) & op.signature.parameters.keys()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_cost_is_counted_from_shapes_alone(op):
    for kwargs in samples(op):
        assert op.bytes(**kwargs) >= 0 and op.flops(**kwargs) >= 0
        meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        assert op.bytes(**meta) >= op.bytes(**kwargs) or "context_lens" not in kwargs
        assert isinstance(op.flops(**meta), int)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_call_binds_by_position_and_by_name_with_defaults(op):
    names = list(inspect.signature(op.reference).parameters)
    assert "out_dtype" not in names or names[-1] == "out_dtype"
    for kwargs in samples(op):
        by_name = op.bind(**kwargs)
        assert list(vars(by_name)) == names
        assert all(getattr(by_name, name) is given for name, given in kwargs.items())
        by_position = op.bind(*vars(by_name).values())
        assert all(getattr(by_position, name) is getattr(by_name, name) for name in names)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_call_with_missing_or_unknown_arguments_is_refused(op):
    kwargs = samples(op)[0]
    with pytest.raises(TypeError, match="unexpected"):
        op.bytes(**kwargs, unknown=1)
    with pytest.raises(TypeError, match="missing"):
        op.flops()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_fake_takes_arguments_by_position_and_by_name(op):
    for kwargs in samples(op):
        meta = {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}
        expected = [(out.shape, out.dtype) for out in op.empty_results(**kwargs)]
        for outs in (op.overload(**meta), op.overload(*vars(op.bind(**meta)).values())):
            assert [(out.shape, out.dtype) for out in results(outs)] == expected


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_samples_are_seeded_and_cover_bfloat16(op):
    first, second = samples(op), samples(op)
    for a, b in zip(first, second, strict=True):
        for name, value in a.items():
            tensor = isinstance(value, torch.Tensor)
            assert torch.equal(value, b[name]) if tensor else value == b[name]
    dtypes = {v.dtype for kw in first for v in kw.values() if isinstance(v, torch.Tensor)}
    dtypes |= {kw["out_dtype"] for kw in first if "out_dtype" in kw}
    assert torch.bfloat16 in dtypes or op.name in ("rope_table", "add") or torch.int8 in dtypes
    assert all(dtype in op.tolerance for dtype in samples_out_dtypes(op, first))


def samples_out_dtypes(op: Op, kwargs_list: list[dict]) -> set[torch.dtype]:
    return {out.dtype for kwargs in kwargs_list for out in op.empty_results(**kwargs)}


def test_ops_trace_with_symbolic_rows():
    class Block(torch.nn.Module):
        def forward(self, x, weight, norm):
            h = torch.ops.ingot.rms_norm(x, norm, 1e-6)
            return torch.ops.ingot.linear(h, weight)

    args = (torch.empty(1, 8, 16), torch.empty(24, 16), torch.empty(16))
    meta = tuple(a.to("meta") for a in args)
    tokens = torch.export.Dim("tokens", min=1)
    program = torch.export.export(
        Block(), meta, dynamic_shapes=({1: tokens}, None, None), strict=False
    )
    output = next(n for n in program.graph.nodes if n.op == "output").args[0][0]
    assert isinstance(output.meta["val"].shape[1], torch.SymInt)
    assert output.meta["val"].shape[2] == 24
