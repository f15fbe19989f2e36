"""For every pass: a body where it fires, bodies that nearly fit, and the calls it must remove."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.passes import foreign_cases as foreign
from tests.passes.support import Body, Lab, attend, cos_sin, flat, heads, rms, turn

ops = torch.ops.ingot


@dataclass(frozen=True)
class Case:
    """`fires` makes `count` matches that turn `gone` into `made`; `misses` make none."""

    fires: Body
    count: int
    gone: dict[str, int]
    made: dict[str, int]
    misses: tuple[Body, ...]


def casts(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.dropout(x.to(torch.float32).contiguous() * 1.0, 0.5, False).clone()


def views(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    a, b = heads(x).permute(0, 2, 1, 3).chunk(2, dim=-1)
    parts = (
        torch.cat((a, b), -1)
        .permute(0, 1, 2, 3)
        .transpose(-3, -2)
        .flatten(2)
        .unflatten(-1, (2, 12))
    )
    return parts[..., :100].reshape(1, x.shape[1], -1) * parts[..., 1, :].sum(-1, keepdim=True)


def canonical_views(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    first = x.reshape(1, -1, 2, 12).select(3, 0).sum(-1, keepdim=True)
    return torch.sin(x[..., 4:5]) * x.unsqueeze(1).transpose(1, 2).sum(2) * first


def residual(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.w * (x + lab.q(x)) * (x * x).mean(2, keepdim=True)


def no_residual(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.add(x + lab.w, x, alpha=2) * 2.0


def norms(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = rms(x, lab.w, 0.25)
    x = lab.w2 * (x.float() * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-3)).float()
    x = rms(x, 1.5 + lab.w)
    x = flat(rms(heads(x), lab.head_w))
    return F.rms_norm(x, (x.shape[-1],), lab.w, 1e-2)


def norm_of_sum(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + 1e-5) * lab.w


def norm_of_cube(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(4).mean(-1, keepdim=True) + 1e-5) * lab.w


def norm_of_another(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return (x + 1) * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * lab.w


def norm_with_exposed_mean(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    mean = x.pow(2).mean(-1, keepdim=True)
    return x * torch.rsqrt(mean + 1e-5) * lab.w + mean


def norm_without_weight(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5)


def layer_norms(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = F.layer_norm(x, x.shape[-1:], lab.w, lab.w2, 1e-3)
    return F.layer_norm(x, x.shape[-1:], lab.w)


def bare_layer_norm(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def layer_norm_of_heads(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    weight = lab.by_head.view(3, 8)
    x = flat(F.layer_norm(heads(x), (8,), lab.head_w))
    return flat(F.layer_norm(heads(x), (8,), None, None, 1e-3) * weight)


def layer_norm_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    normed = F.layer_norm(heads(x), (8,))
    return flat(normed * lab.by_head.view(3, 8) + normed)


def layer_norm_times_another(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * lab.embed.weight[:1]


def tables(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions, 1.3)
    angles = positions.unsqueeze(-1) * lab.inv_freq
    return x * (cos + sin).sum(-1, keepdim=True) * (angles.cos() - angles.sin())[..., :1]


def table_by_matmul(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    expanded = lab.inv_freq[None, :, None].float().expand(1, -1, 1)
    angles = (expanded @ positions[:, None, :].float()).transpose(1, 2)
    return x * (angles.cos() + angles.sin()).sum(-1, keepdim=True)


def only_cosines(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x * (positions[..., None] * lab.inv_freq).cos()[..., :1]


def unlike_scales(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[..., None] * lab.inv_freq
    return x * (angles.cos() * 2.0 + angles.sin() * 3.0)[..., :1]


def turned(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)
    x = turn(turn(heads(x), cos, sin).transpose(1, 2), cos, sin, dim=1)
    return flat(x.transpose(1, 2))


def turned_by_halves(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    angles = positions[:, :, None] * lab.inv_freq
    a, b = heads(x).chunk(2, dim=-1)
    cos, sin = angles.cos()[:, :, None], angles.sin()[:, :, None]
    return flat(torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1))


def turned_in_part(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)
    x = x.view(1, x.shape[1], 2, 12)
    return flat(torch.cat((turn(x[..., :8], cos, sin), x[..., 8:]), dim=-1))


def turned_neighbours(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    angles = torch.repeat_interleave(positions[:, :, None] * lab.inv_freq, 2, dim=-1)
    cos, sin, x = angles.cos(), angles.sin(), heads(x)
    for dim in (2, 1):
        turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
        x = x * cos.unsqueeze(dim) + turned * sin.unsqueeze(dim)
        x = x.transpose(1, 2)
    return flat(x)


def turned_neighbours_in_part(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    angles = torch.repeat_interleave(positions[:, :, None] * lab.inv_freq, 2, dim=-1)
    cos, sin = angles.cos().unsqueeze(2), angles.sin().unsqueeze(2)
    x = x.view(1, x.shape[1], 2, 12)
    part = x[..., :8]
    turned = torch.stack((-part[..., 1::2], part[..., ::2]), dim=-1).flatten(-2)
    return flat(torch.cat((part * cos + turned * sin, x[..., 8:]), dim=-1))


def turned_neighbours_by_halves(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)
    x = heads(x)
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), dim=-1).flatten(-2)
    return flat(x * cos.unsqueeze(2) + turned * sin.unsqueeze(2))


def turned_other_way(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)
    x = heads(x)
    turned = torch.cat((x[..., 4:], -x[..., :4]), dim=-1)
    return flat(x * cos.unsqueeze(2) + turned * sin.unsqueeze(2))


def turned_twice_as_fast(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)[0], cos_sin(lab, positions + 1)[1]
    return flat(turn(heads(x), cos, sin))


def turned_by_swapped_waves(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)
    return flat(turn(heads(x), sin, cos))


def turned_unevenly(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    cos, sin = cos_sin(lab, positions)
    x = heads(x)
    turned = torch.cat((-x[..., 2:], x[..., :2]), dim=-1)
    return flat(x * cos.unsqueeze(2) + turned * sin.unsqueeze(2))


def swapped(x: Tensor) -> Tensor:
    return heads(x).transpose(1, 2)


def repeated(x: Tensor) -> Tensor:
    """Key heads, each for a group of query heads, as other libraries repeat them."""
    one = swapped(x)[:, :1]
    return one[:, :, None].expand(1, 1, 3, x.shape[1], 8).reshape(1, 3, x.shape[1], 8)


def attended(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    sdpa = F.scaled_dot_product_attention
    q = sdpa(swapped(x), repeated(lab.k(x)), repeated(lab.v(x)), is_causal=True)
    k, v = swapped(lab.k(x))[:, :1], swapped(lab.v(x))[:, :1]
    return flat(sdpa(q, k, v, is_causal=True, scale=0.2, enable_gqa=True).transpose(1, 2))


def tiled(x: Tensor) -> Tensor:
    """Two key heads in turn for six query heads: they belong to no group."""
    two = x.view(1, x.shape[1], 6, 4).transpose(1, 2)[:, :2]
    return two[:, None].expand(1, 3, 2, x.shape[1], 4).reshape(1, 6, x.shape[1], 4)


def attended_in_turn(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q = x.view(1, x.shape[1], 6, 4).transpose(1, 2)
    k, v = tiled(lab.k(x)), tiled(lab.v(x))
    return flat(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2))


def attended_to_the_future(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q = swapped(x)
    return flat(F.scaled_dot_product_attention(q, q, q).transpose(1, 2))


def attended_with_mask(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    q = swapped(x)
    mask = positions[0][:, None] >= positions[0][None]
    return flat(F.scaled_dot_product_attention(q, q, q, attn_mask=mask).transpose(1, 2))


def heads_first(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return flat(ops.rms_norm(swapped(x), lab.head_w, 1e-3).transpose(1, 2))


def other_dims(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return flat(torch.sin(heads(x).transpose(2, 3)).transpose(2, 3))


def gated(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = F.silu(lab.gate(x)) * lab.up(x)
    x = lab.up(x) * F.silu(lab.gate(x))
    x = F.gelu(lab.gate(x)) * lab.up(x)
    x = F.gelu(lab.gate(x), approximate="tanh") * lab.up(x)
    x = F.relu(lab.gate(x)) * lab.up(x)
    return lab.up(x) * F.relu(lab.gate(x))


def swiglu(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = F.silu(lab.gate(x)) * lab.up(x)
    return lab.up(x) * F.silu(lab.gate(x))


def gate_added(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.silu(lab.gate(x)) + F.gelu(lab.gate(x)) + F.relu(lab.up(x))


def gate_broadcast(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.silu(lab.gate(x)) * lab.up(x)[..., :1]


def gate_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    gate = F.silu(lab.gate(x))
    return gate * lab.up(x) + gate


def gate_without_activation(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.tanh(lab.gate(x)) * lab.up(x)


def capped(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = torch.tanh(x / 30.0) * 30.0
    return 2.5 * torch.tanh(lab.q(x) / 2.5)


def capped_by_other_numbers(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.tanh(x / 30.0) * 20.0


def capped_the_other_way(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.tanh(x * 30.0) * 30.0


def capped_by_a_tensor(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.tanh(x / lab.w) * lab.w


def cap_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    bounded = torch.tanh(x / 30.0)
    return bounded * 30.0 + bounded


def scaled(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.q(x * 4.899) * 0.5


def scaled_by_parameters(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.one * lab.q(x * lab.one)


def parameters_multiplied(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x + lab.one * lab.one


def scaled_by_a_tensor(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x * lab.w


def scaled_integers(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x + (positions * 3)[..., None]


def plain_mlp(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.silu(F.gelu(F.gelu(F.relu(x), approximate="tanh")))


def unknown_activation(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.tanh(x)


def projections(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = lab.q(x) * lab.k(x) * lab.v(x)
    return lab.gate(x) * lab.up(x)


def one_by_one(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.v(lab.k(lab.q(x)))


def shared_weight(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.q(x) * F.linear(x, lab.q.weight)


def mixed_biases(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.q(x) * lab.gate(x)


def two_layers(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    table = ops.rope_table(positions, lab.inv_freq)
    q, k = (ops.rms_norm(heads(m(x)), lab.head_w, 1e-3) for m in (lab.q, lab.k))
    x = attend(ops.rope(q, table), ops.rope(k, table), heads(lab.v(x)), window=3)
    q, k = (ops.rope(heads(m(flat(x))), table) for m in (lab.q, lab.k))
    return flat(attend(q, k, x, softcap=4.0))


def no_attention(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.q(x)


def identity(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.sin(x * 2.0)


def mixture(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    shares = ops.route(lab.router(x), None, "softmax", 2)
    weights = lab.experts.gate_up, lab.experts.down
    return x + ops.experts(x, shares, *weights, None, None, "silu", 2)


def mixture_of_attended(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return mixture(lab, two_layers(lab, x, positions), positions)


def inner_of_experts(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = two_layers(lab, x, positions)
    shares = ops.route(lab.router(x), None, "sigmoid", 3)
    return ops.expert_gate(x, shares, lab.experts.gate_up, None, "silu", 3).flatten(2)


CASES = {
    "canonicalize_casts": Case(
        casts, 5, {"aten.to": 1, "aten.dropout": 1, "aten.mul": 1}, {}, (identity,)
    ),
    "canonicalize_views": Case(
        views, 10, {"aten.permute": 2, "aten.select": 1}, {"aten.reshape": 2}, (canonical_views,)
    ),
    "canonicalize_rows": Case(
        foreign.rows_without_batch,
        1,
        {"aten.reshape": 2},
        {},
        (foreign.rows_that_meet, foreign.rows_with_others),
    ),
    "canonicalize_positions": Case(
        foreign.counted,
        2,
        {"aten.arange": 1, "aten.cumsum": 1, "aten.ones": 1},
        {},
        (foreign.counted_otherwise,),
    ),
    "canonicalize_ops": Case(
        residual, 7, {"aten.linear": 2, "aten.add": 1}, {"linear": 2, "add": 1, "aten.pow": 1}, ()
    ),
    "canonicalize_spellings": Case(
        foreign.gelus,
        3,
        {"aten.tanh": 2, "aten.rsqrt": 1},
        {"aten.gelu": 2, "aten.layer_norm": 1},
        (foreign.another_gelu, foreign.norm_of_another_mean),
    ),
    "fuse_rms_norm": Case(
        norms,
        5,
        {"aten.rsqrt": 4, "aten.rms_norm": 1, "aten.mul": 8},
        {"rms_norm": 5},
        (
            norm_of_sum,
            norm_of_cube,
            norm_of_another,
            norm_with_exposed_mean,
            norm_without_weight,
        ),
    ),
    "fuse_layer_norm": Case(
        layer_norms,
        2,
        {"aten.layer_norm": 2},
        {"layer_norm": 2},
        (bare_layer_norm, layer_norm_read_twice, layer_norm_times_another),
    ),
    "fuse_rope_table": Case(
        tables, 2, {"aten.cos": 2, "aten.sin": 2}, {"rope_table": 2}, (only_cosines, unlike_scales)
    ),
    "fuse_rope": Case(
        turned,
        2,
        {"aten.neg": 2, "add": 2},
        {"rope": 2},
        (
            turned_other_way,
            turned_twice_as_fast,
            turned_unevenly,
            turned_by_swapped_waves,
            turned_neighbours_by_halves,
        ),
    ),
    "fuse_attention": Case(
        attended,
        2,
        {"aten.scaled_dot_product_attention": 2, "aten.expand": 2},
        {"attention": 2},
        (
            attended_to_the_future,
            attended_with_mask,
            foreign.unmasked,
            foreign.masked_otherwise,
            foreign.masked_twice,
            foreign.capped_before_the_scale,
            foreign.softmax_of_queries,
        ),
    ),
    "canonicalize_heads": Case(heads_first, 2, {"aten.transpose": 2}, {}, (other_dims,)),
    "fuse_gates": Case(
        gated,
        6,
        {"aten.silu": 2, "aten.gelu": 2, "aten.relu": 2, "aten.mul": 6},
        {"gate": 6},
        (gate_added, gate_broadcast, gate_read_twice, gate_without_activation),
    ),
    "lower_activations": Case(
        plain_mlp, 4, {"aten.gelu": 2}, {"activation": 4}, (unknown_activation,)
    ),
    "fuse_soft_cap": Case(
        capped,
        2,
        {"aten.tanh": 2, "aten.div": 2, "aten.mul": 2},
        {"soft_cap": 2},
        (capped_by_other_numbers, capped_the_other_way, capped_by_a_tensor, cap_read_twice),
    ),
    "lower_quotients": Case(
        foreign.quotients, 2, {"aten.div": 2}, {"aten.mul": 2}, (foreign.quotient_of_tensors,)
    ),
    "lower_scalars": Case(
        scaled_by_parameters,
        2,
        {"aten.mul": 2},
        {"scale": 2},
        (scaled, scaled_by_a_tensor, parameters_multiplied),
    ),
    "lower_scales": Case(
        scaled, 2, {"aten.mul": 2}, {"mul": 2}, (scaled_by_a_tensor, scaled_integers)
    ),
    "merge_linears": Case(
        projections, 2, {"linear": 3}, {"aten.slice": 5}, (one_by_one, shared_weight, mixed_biases)
    ),
    "rewrite_attention": Case(
        two_layers,
        2,
        {"attention": 2},
        {"kv_write": 2, "paged_attention": 2},
        (no_attention,),
    ),
    "select_logit_rows": Case(two_layers, 1, {}, {"select_rows": 1}, ()),
    "lower_experts": Case(
        mixture_of_attended,
        1,
        {"experts": 1},
        {"expert_gate": 1, "expert_sum": 1},
        (inner_of_experts,),
    ),
    "lower_dtypes": Case(two_layers, 8, {}, {"cast": 2}, ()),
}

# More bodies that must match, in other spellings.
SPELLINGS = (
    ("fuse_rope_table", table_by_matmul, 1),
    ("fuse_rope", turned_by_halves, 1),
    ("fuse_rope", turned_in_part, 1),
    ("fuse_layer_norm", layer_norm_of_heads, 2),
    ("fuse_rope", turned_neighbours, 2),
    ("fuse_rope", turned_neighbours_in_part, 1),
    ("fuse_attention", attended_in_turn, 1),
    ("fuse_attention", foreign.spelled, 2),
    ("fuse_attention", foreign.spelled_with_a_late_scale, 1),
)
