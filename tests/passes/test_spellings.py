"""Calls that look alike: which are rewritten, and which must stay as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ingot.passes.dump import op_counts
from ingot.passes.graph import aten, calls
from ingot.passes.runner import run
from tests.passes.support import before, heads, lab, rms, step

torch.set_num_threads(1)

# By pass: an expression of lab, x, positions, and how many of some calls are left of it.
KEPT = {
    "canonicalize_casts": [
        (lambda lab, x, p: F.dropout(x, 0.5, True), {"aten.dropout": 1}),
        (lambda lab, x, p: F.dropout(x, 0.0, True), {"aten.dropout": 0}),
        (lambda lab, x, p: F.dropout(x, 0.5, False), {"aten.dropout": 0}),
        (lambda lab, x, p: x * 1, {"aten.mul": 0}),
        (lambda lab, x, p: x / 1.0, {"aten.div": 0}),
        (
            lambda lab, x, p: aten.div.Scalar(aten.mul.Scalar(x, 1), 1),
            {"aten.mul": 0, "aten.div": 0},
        ),
        (lambda lab, x, p: 1.0 / x, {"aten.reciprocal": 1}),
        (lambda lab, x, p: p * 1.0, {"aten.mul": 1}),
        (lambda lab, x, p: p / 1, {"aten.div": 1}),
        (lambda lab, x, p: x * -1.0, {"aten.mul": 1}),
        (lambda lab, x, p: p.type_as(x), {"aten.to": 1, "aten.type_as": 0}),
        (lambda lab, x, p: x.type_as(x), {"aten.to": 0, "aten.type_as": 0}),
        (lambda lab, x, p: aten.alias(x).detach(), {"aten.alias": 0, "aten.detach": 0}),
        (lambda lab, x, p: x.bfloat16(), {"aten.to": 1}),
    ],
    "canonicalize_heads": [
        (lambda lab, x, p: heads(x).transpose(1, 3).transpose(1, 3), {"aten.transpose": 2}),
        (lambda lab, x, p: heads(x).transpose(1, 2).transpose(1, 2), {"aten.transpose": 0}),
        (lambda lab, x, p: heads(x).transpose(2, 3).transpose(1, 2), {"aten.transpose": 2}),
        (lambda lab, x, p: heads(x).transpose(1, 2).sin().transpose(1, 2), {"aten.transpose": 2}),
    ],
    "canonicalize_ops": [
        (lambda lab, x, p: p + p.flip(0), {"aten.add": 1, "add": 0}),
        (lambda lab, x, p: torch.add(x, lab.q(x), alpha=-1), {"aten.add": 1, "add": 0}),
        (lambda lab, x, p: x + 1, {"aten.add": 1, "add": 0}),
        (
            lambda lab, x, p: torch.square(x) + x * x,
            {"aten.pow": 2, "aten.square": 0, "aten.mul": 0, "add": 1},
        ),
        (lambda lab, x, p: F.linear(x, lab.q.weight, bias=lab.w), {"linear": 2, "aten.linear": 0}),
    ],
    "fuse_rms_norm": [
        (lambda lab, x, p: F.rms_norm(x, (x.shape[-1],)), {"aten.rms_norm": 1}),
        (lambda lab, x, p: F.rms_norm(heads(x), (3, 8), lab.w.view(3, 8)), {"aten.rms_norm": 1}),
        (lambda lab, x, p: F.rms_norm(x, (24,), lab.w, 0.0), {"rms_norm": 1}),
        (lambda lab, x, p: rms(x, lab.w.view(1, 24)), {"rms_norm": 0}),
        (lambda lab, x, p: rms(x, lab.w[:1]), {"rms_norm": 0}),
        (lambda lab, x, p: rms(x, lab.q.weight[:1]), {"rms_norm": 0}),
        (lambda lab, x, p: rms(x, lab.w, lab.w2), {"rms_norm": 0}),
        (lambda lab, x, p: rms(x, lab.w + lab.w2), {"rms_norm": 1}),
        (lambda lab, x, p: rms(x, lab.w, 1) + rms(x, lab.w2, 0), {"rms_norm": 2}),
    ],
    "fuse_layer_norm": [
        (
            lambda lab, x, p: F.layer_norm(heads(x), (3, 8), lab.w.view(3, 8)),
            {"aten.layer_norm": 1, "layer_norm": 0},
        ),
        (lambda lab, x, p: F.layer_norm(x * 1e-3, (24,), lab.w), {"layer_norm": 1}),
        (lambda lab, x, p: F.layer_norm(x, (24,), lab.w, lab.w2, 0.0), {"layer_norm": 1}),
    ],
    "fuse_attention": [
        (lambda lab, x, p: sdpa(x, dropout_p=0.5), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, is_causal=False), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, values=lambda v: v[..., :4]), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, dims=lambda y: y[0]), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, dims=lambda y: torch.cat((y, 2 * y))), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, keys=over_one_head), {"attention": 1}),
        (lambda lab, x, p: sdpa(x, keys=over_wide_heads), {"attention": 1}),
    ],
    "fuse_gates": [
        (lambda lab, x, p: F.silu(lab.gate(x)) * F.relu(lab.up(x)), {"gate": 1}),
        (lambda lab, x, p: F.silu(x) * x, {"gate": 1}),
        (lambda lab, x, p: F.silu(lab.gate(x)[..., :1]) * lab.up(x), {"gate": 0}),
        (lambda lab, x, p: F.silu(lab.gate(x)) / lab.up(x), {"gate": 0}),
    ],
    "fuse_soft_cap": [
        (lambda lab, x, p: torch.tanh(x / 3) * 3, {"soft_cap": 1}),
        (lambda lab, x, p: torch.tanh(x / 3.0) * lab.w, {"soft_cap": 0}),
    ],
    "lower_scales": [
        (lambda lab, x, p: (x * 3)[..., :5] + (p * 2)[..., None], {"mul": 1, "aten.mul": 1}),
        (lambda lab, x, p: x * 0.0, {"mul": 1}),
    ],
}
FOUND = [(name, *case) for name, listed in KEPT.items() for case in listed]


def sdpa(x, *, keys=None, values=None, dims=None, **given):
    """Causal attention of x over itself, as its arguments were changed."""
    q = k = v = heads(x).transpose(1, 2)
    k, v = (keys(y) if keys else y for y in (k, v))
    v = values(v) if values else v
    q, k, v = (dims(y) if dims else y for y in (q, k, v))
    out = F.scaled_dot_product_attention(q, k, v, **{"is_causal": True, **given})
    return out.flatten(0, -3).transpose(0, 1).flatten(1)[None]


def over_one_head(y):
    return y[:, :1].repeat_interleave(3, dim=1)


def over_wide_heads(y):
    """Not heads are repeated, but the tokens' parts: to a group that is none."""
    return y[..., :4].repeat_interleave(2, dim=-1)


@pytest.mark.parametrize("name, expression, left", FOUND)
def test_only_what_means_the_same_is_rewritten(name, expression, left):
    gm = before(lab(lambda lab, x, p: x - expression(lab, x, p).mean(dtype=torch.float32)), name)
    random = any(n.args[1:] == (0.5, True) for n in calls(gm, aten.dropout.default))
    random |= any(n.args[4:5] == (0.5,) for n in calls(gm, *step("fuse_attention").anchors[:1]))
    run(gm, [replace(step(name), gives=())], {}, verify=not random)
    found = op_counts(gm)
    assert {call: found[call] for call in left} == left
