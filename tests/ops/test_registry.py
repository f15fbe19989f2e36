"""Every op of the vocabulary keeps the promises of its declaration."""

import copy
import inspect
from typing import get_args

import pytest
import torch

from ingot.artifact.formats import DType
from ingot.artifact.traits import TRAITS
from ingot.ops import OPS
from ingot.ops.dtypes import NAMES, TORCH_DTYPES
from ingot.ops.registry import Op
from tests.ops.sample_inputs import SAMPLES


def samples(op: Op) -> list[dict]:
    return SAMPLES[op.name](torch.Generator().manual_seed(0))


def results(value: object) -> tuple[torch.Tensor, ...]:
    return () if value is None else (value,)


def on_meta(kwargs: dict) -> dict:
    return {k: v.to("meta") if isinstance(v, torch.Tensor) else v for k, v in kwargs.items()}


def test_the_vocabulary_is_that_of_the_traits():
    assert OPS.keys() == TRAITS.keys()
    assert len(OPS) <= 32


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_file_bears_the_name_of_its_op(op):
    module = inspect.getmodule(op.reference)
    assert module.__name__ == f"ingot.ops.{op.name}"
    assert module.__doc__.startswith(f"{op.name}: ")


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_fake_agrees_with_reference(op):
    for kwargs in samples(op):
        expected = results(op.reference(**copy.deepcopy(kwargs)))
        fakes = results(op.fake(op.bind(**on_meta(kwargs))))
        assert len(expected) == len(fakes) == len(op.traits.outputs)
        for real, fake in zip(expected, fakes, strict=True):
            assert (real.shape, real.dtype) == (fake.shape, fake.dtype)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_op_through_the_dispatcher_is_its_reference(op):
    for kwargs in samples(op):
        through, direct = copy.deepcopy(kwargs), copy.deepcopy(kwargs)
        got, expected = results(op.overload(**through)), results(op.reference(**direct))
        for a, b in zip(got, expected, strict=True):
            assert torch.equal(a, b)
        for name in op.traits.mutates:
            if kwargs.get(name) is None:
                continue
            assert torch.equal(through[name], direct[name])
            assert not torch.equal(through[name], kwargs[name])


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_only_declared_arguments_are_mutated_and_none_is_returned(op):
    for kwargs in samples(op):
        before = copy.deepcopy(kwargs)
        outs = results(op.reference(**kwargs))
        for name, value in kwargs.items():
            if isinstance(value, torch.Tensor) and value.numel():
                assert name in op.traits.mutates or torch.equal(value, before[name])
                assert all(out.data_ptr() != value.data_ptr() for out in outs)


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
        op.bind(**kwargs, unknown=1)
    with pytest.raises(TypeError, match="missing"):
        op.bind()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_fake_takes_arguments_by_position_and_by_name(op):
    for kwargs in samples(op):
        meta = on_meta(kwargs)
        expected = [(out.shape, out.dtype) for out in results(op.fake(op.bind(**meta)))]
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
    assert torch.bfloat16 in dtypes or op.name in ("rope_table", "add")
    outs = [out for kwargs in first for out in results(op.fake(op.bind(**on_meta(kwargs))))]
    assert {out.dtype for out in outs} <= op.tolerance.keys()


def test_kernels_are_held_to_written_bounds():
    """A bound that is too wide lets a wrong kernel pass."""
    plain = {
        torch.float32: (1e-5, 1e-5),
        torch.bfloat16: (8e-3, 1e-4),
        torch.float16: (1e-3, 1e-4),
        torch.int32: (0.0, 0.0),
        torch.int16: (1e-5, 1.0),
        torch.int8: (0.0, 1.0),
    }
    others = {
        **dict.fromkeys(
            ("linear", "head_linear", "experts", "expert_gate", "expert_sum"),
            plain | {torch.float32: (1e-5, 5e-5)},
        ),
        **dict.fromkeys(
            ("paged_attention", "segment_attention"),
            plain | {torch.bfloat16: (8e-3, 2e-3), torch.float16: (1e-3, 2.5e-4)},
        ),
        "rope_table": plain | {torch.float32: (1e-5, 2e-6)},
    }
    for name, op in OPS.items():
        found = {dtype: (bound.rtol, bound.atol) for dtype, bound in op.tolerance.items()}
        assert found == others.get(name, plain), name


def test_dtypes_and_their_names():
    packed = {"int4", "int5", "int6"}  # no tensor has them
    assert {name: getattr(torch, name) for name in set(get_args(DType)) - packed} == TORCH_DTYPES
    assert {NAMES[dtype] for dtype in (torch.int32, torch.int64)} == {"int32"}
    assert all(NAMES[dtype] == name for name, dtype in TORCH_DTYPES.items())


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
