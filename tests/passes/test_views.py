"""Views: the one spelling of each, written out, and the same numbers as before."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

from ingot.passes.canonicalize_views import canonicalize_views

torch.set_num_threads(1)

TOKENS = torch.arange(1.0, 6).view(1, 5, 1)


def heads(x):
    return x.view(1, -1, 3, 8)


FIRST = [("select", 0, 0), ("t",)]  # x[0].t()
# A function of x [1, N, 24], and the calls that are left of it, with what follows the tensor.
SPELLED = [
    (lambda x: x.view(1, -1, 3, 8), [("reshape", [1, -1, 3, 8])]),
    (lambda x: x.reshape(1, x.shape[1], 3, 8), [("reshape", [1, -1, 3, 8])]),
    (lambda x: heads(x).view(1, -1, 6, 4), [("reshape", [1, -1, 6, 4])]),
    (lambda x: heads(x).flatten(-2), []),
    (lambda x: heads(x).flatten(1, 2), [("reshape", [1, -1, 8])]),
    (lambda x: x.unflatten(-1, (3, 8)), [("reshape", [1, -1, 3, 8])]),
    (lambda x: x.view(1, -1, 24), []),
    (lambda x: x.squeeze(0), [("reshape", [-1, 24])]),
    (lambda x: x.squeeze((0, 2)), [("reshape", [-1, 24])]),
    (lambda x: x.squeeze(-1), []),
    (lambda x: x.chunk(2, -1), [("slice", 2, 0, 12), ("slice", 2, 12, 24)]),
    (lambda x: x.chunk(5, 2)[::2], [("slice", 2, s, min(s + 5, 24)) for s in (0, 10, 20)]),
    (lambda x: x.split(10, -1)[1:], [("slice", 2, 10, 20), ("slice", 2, 20, 24)]),
    (lambda x: x.split([4, 17, 3], 2)[1], [("slice", 2, 4, 21)]),
    (lambda x: x.split_with_sizes([4, 20], -1)[1], [("slice", 2, 4, 24)]),
    (lambda x: x.split(24, -1)[0], []),
    (lambda x: torch.ops.aten.split.sizes(x, [4, 20], -1)[0], [("slice", 2, 0, 4)]),
    (lambda x: (x @ x[0].t()).unflatten(0, (1, 1)), [*FIRST, ("unflatten", 0, [1, 1])]),
    (lambda x: x[0].t().split(9)[1], [*FIRST, ("slice", 0, 9, 18)]),
    (lambda x: x.permute(0, 2, 1), [("transpose", 1, 2)]),
    (lambda x: x.permute(0, -1, -2), [("transpose", 1, 2)]),
    (lambda x: x.permute(-3, 2, 1), [("transpose", 1, 2)]),
    (lambda x: x.permute(-1, 1, 0), [("transpose", 0, 2)]),
    (lambda x: x.transpose(-1, 1), [("transpose", 1, 2)]),
    (lambda x: x.transpose(2, 0), [("transpose", 0, 2)]),
    (lambda x: x.permute(0, 1, -1), []),
    (lambda x: x.transpose(-2, 1), []),
    (lambda x: x.permute(1, 2, 0), [("permute", [1, 2, 0])]),
    (lambda x: x[None].permute(1, 0, 3, 2), [("unsqueeze", 0), ("permute", [1, 0, 3, 2])]),
    (lambda x: x[..., 4:], [("slice", 2, 4, 24)]),
    (lambda x: x[..., :-4], [("slice", 2, 0, 20)]),
    (lambda x: x[..., -4:], [("slice", 2, 20, 24)]),
    (lambda x: x[..., -4:-1], [("slice", 2, 20, 23)]),
    (lambda x: x[..., -100:5], [("slice", 2, 0, 5)]),
    (lambda x: x[..., 2:100], [("slice", 2, 2, 24)]),
    (lambda x: x[..., 1::2], [("slice", 2, 1, 24, 2)]),
    (lambda x: torch.ops.aten.slice.Tensor(x, -1, 0, 24), []),
    (lambda x: x.unsqueeze(-1), [("unsqueeze", 3)]),
    (lambda x: x.unsqueeze(-4), [("unsqueeze", 0)]),
    (lambda x: x.unsqueeze(2), [("unsqueeze", 2)]),
    (lambda x: torch.cat((x, x), -1), [("cat", 2)]),
    (lambda x: torch.cat((x, x)), [("cat", 0)]),
    (lambda x: torch.stack((x, x), -1), [("stack", 3)]),
    (lambda x: torch.stack((x, x), 2), [("stack", 2)]),
    (lambda x: x.expand(1, -1, 24), []),
    (lambda x: x[..., :1].expand(1, -1, 3), [("slice", 2, 0, 1), ("expand", [1, -1, 3])]),
]  # fmt: skip


def traced(function) -> GraphModule:
    """Any number of tokens, of 24 columns each."""
    return make_fx(
        lambda tokens: function(tokens * torch.arange(24.0)),
        tracing_mode="symbolic",
        pre_dispatch=True,
    )(TOKENS)


def calls_of(gm: GraphModule) -> list[tuple[Any, ...]]:
    """Name and arguments, but for the first, of every call that the function makes."""
    found = [n for n in gm.graph.nodes if hasattr(n.target, "_schema")]
    named = [(n.target._schema.name.partition("::")[2], *n.args[1:]) for n in found]
    return [call for call in named if call[0] not in ("arange", "matmul", "mul", "sym_size")]


@pytest.mark.cases(core=12)
@pytest.mark.parametrize("function, left", SPELLED)
def test_every_view_has_one_spelling(function, left):
    gm, expected = traced(function), function(TOKENS * torch.arange(24.0))
    canonicalize_views(gm)
    gm.graph.eliminate_dead_code()
    gm.recompile()
    assert calls_of(gm) == left
    torch.testing.assert_close(gm(TOKENS), expected, rtol=0, atol=0)
    assert canonicalize_views(gm) == 0
