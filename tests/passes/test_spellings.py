"""Calls that look alike: which are rewritten, and which must stay as they are."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ingot.passes.dump import op_counts
from ingot.passes.graph import aten, calls
from ingot.passes.runner import run
from tests.passes import cases
from tests.passes.support import before, cos_sin, heads, lab, rms, step, turn
from tests.support.core import core

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
    "fuse_rope_table": [
        (lambda lab, x, p: x * waves(angles(lab, p), 2)[..., :1], {"rope_table": 1}),
        (
            lambda lab, x, p: x * read_twice(angles(lab, p))[..., :1],
            {"rope_table": 1, "aten.cos": 0},
        ),
        (lambda lab, x, p: x * waves(angles(lab, p) * lab.head_w[:4])[..., :1], {"rope_table": 0}),
        (lambda lab, x, p: x * across(lab, p)[:, 0][..., None], {"rope_table": 0, "aten.cos": 1}),
        *(
            (lambda lab, x, p, double=double: x * waves(double(angles(lab, p))).mean(), kept)
            for double, kept in (
                (lambda a: torch.cat((a, a), -1), {"rope_table": 1}),
                (lambda a: torch.cat((a, a), 1), {"rope_table": 0}),
                (lambda a: torch.cat((a, a, a), -1), {"rope_table": 0}),
                (lambda a: torch.cat((a, 2 * a), -1), {"rope_table": 0}),
                (lambda a: a.repeat_interleave(2, -1), {"rope_table": 1}),
                (lambda a: a.repeat_interleave(2, 2), {"rope_table": 1}),
                (lambda a: a.repeat_interleave(2, 1), {"rope_table": 0}),
                (lambda a: a.repeat_interleave(3, -1), {"rope_table": 0}),
            )
        ),
    ],
    "fuse_rope": [
        (lambda lab, x, p: cases.turned_in_part(lab, x, p), {"rope": 1}),
        (lambda lab, x, p: part_of_a_part(lab, x, p), {"rope": 1, "aten.cat": 1}),
        (lambda lab, x, p: half_of_wider_heads(lab, x, p), {"rope": 0}),
        (lambda lab, x, p: by_two_tables(lab, x, p), {"rope": 0}),
        (lambda lab, x, p: halves_by_pairs(lab, x, p), {"rope": 0}),
        (lambda lab, x, p: turn(x[..., :8], *cos_sin(lab, p)).mean(), {"rope": 0}),
        (lambda lab, x, p: turn(square(x), *cos_sin(lab, p)).mean(), {"rope": 1}),
        (lambda lab, x, p: turn(square(x), *cos_sin(lab, p), dim=3).mean(), {"rope": 0}),
        (lambda lab, x, p: turned_across(lab, x, p), {"rope": 0}),
    ],
    "lower_activations": [
        (lambda lab, x, p: F.gelu(x, approximate="none"), {"activation": 1}),
        (lambda lab, x, p: torch.sigmoid(x) + F.leaky_relu(x), {"activation": 0}),
        (lambda lab, x, p: F.relu(F.silu(x)), {"activation": 2}),
    ],
    "merge_linears": [
        (lambda lab, x, p: lab.q(x) + lab.gate(x) * (lab.k(x) + lab.up(x)), {"linear": 3}),
        (
            lambda lab, x, p: F.linear(x, lab.q.weight * 2) * F.linear(x, -lab.k.weight),
            {"linear": 3},
        ),
        (lambda lab, x, p: lab.q(x) * lab.k(x * 2), {"linear": 3}),
        (lambda lab, x, p: lab.q(x)[..., :5] * F.linear(x, lab.k.weight[:5]), {"linear": 3}),
    ],
    "fuse_attention": [
        (lambda lab, x, p: sdpa(x, keys=twice_the_tokens), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, keys=tokens_as_heads), {"attention": 0}),
        (lambda lab, x, p: sdpa(x, keys=over_one_head, values=three_heads), {"attention": 0}),
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


def three_heads(y):
    """Of one head that is repeated, three that are not alike."""
    return torch.cat((y[:, :1], 2 * y[:, :1], 3 * y[:, :1]), 1)


def twice_the_tokens(y):
    return torch.cat((y, y), 2)


def tokens_as_heads(y):
    """Repeated as heads are, but what is repeated is read as more tokens."""
    return y[:, :, None].expand(-1, -1, 2, -1, -1).reshape(1, 3, -1, 8)


def angles(lab, positions):
    return positions[..., None] * lab.inv_freq


def waves(angles, scale=1.5):
    return angles.cos() * scale + angles.sin() * scale


def read_twice(angles):
    """As they are, and scaled."""
    cos, sin = angles.cos(), angles.sin()
    return cos * 3 + cos + sin * 3 - sin


def across(lab, positions):
    """Angles [1, D, N], which stay so."""
    angles = positions[:, None] * lab.inv_freq[None, :, None]
    return angles.cos() + angles.sin()


def part_of_a_part(lab, x, positions):
    """Some columns are neither turned nor handed on."""
    x = x.view(1, x.shape[1], 2, 12)
    turned = turn(x[..., :8], *cos_sin(lab, positions))
    return torch.cat((turned, x[..., 8:10]), dim=-1).mean()


def half_of_wider_heads(lab, x, positions):
    x = x.view(1, x.shape[1], 2, 12)
    a, b = x[..., :4], x[..., 4:8]
    cos, sin = (
        wave[:, :, None] for wave in (angles(lab, positions).cos(), angles(lab, positions).sin())
    )
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1).mean()


def by_two_tables(lab, x, positions):
    (cos, other_sin), (other_cos, sin) = cos_sin(lab, positions), cos_sin(lab, positions + 1)
    return turn(heads(x), cos, sin).mean() + (other_cos + other_sin).mean()


def halves_by_pairs(lab, x, positions):
    pairs = angles(lab, positions).repeat_interleave(2, -1)
    return turn(heads(x), pairs.cos(), pairs.sin()).mean()


def square(x):
    """As many heads as they have columns."""
    return torch.cat((x, 2 * x, 3 * x), -1)[..., :64].reshape(1, -1, 8, 8)


def turned_across(lab, x, positions):
    """Heads are turned, each as a whole, instead of their columns."""
    cos, sin = (wave.unsqueeze(2) for wave in cos_sin(lab, positions))
    x = square(x)[:, None]
    turned = torch.cat((-x[:, :, :, 4:8], x[:, :, :, :4]), dim=3)
    return (x * cos + turned * sin).mean()


def over_one_head(y):
    return y[:, :1].repeat_interleave(3, dim=1)


def over_wide_heads(y):
    """Not heads are repeated, but the tokens' parts: to a group that is none."""
    return y[..., :4].repeat_interleave(2, dim=-1)


@pytest.mark.cases(core=5, thorough=20)
@pytest.mark.parametrize("name, expression, left", core(*FOUND[::6], further=FOUND))
def test_only_what_means_the_same_is_rewritten(name, expression, left):
    gm = before(lab(lambda lab, x, p: x - expression(lab, x, p).mean(dtype=torch.float32)), name)
    random = any(n.args[1:] == (0.5, True) for n in calls(gm, aten.dropout.default))
    random |= any(n.args[4:5] == (0.5,) for n in calls(gm, *step("fuse_attention").anchors[:1]))
    run(gm, [replace(step(name), gives=())], {}, verify=not random)
    found = op_counts(gm)
    assert {call: found[call] for call in left} == left
