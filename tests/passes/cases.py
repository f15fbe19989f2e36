"""For every pass: a body where it fires, bodies that nearly fit, and the calls it must remove."""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps

import torch
import torch.nn.functional as F
from torch import Tensor

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
    x = (
        torch.cat((a, b), -1)
        .permute(0, 1, 2, 3)
        .transpose(-3, -2)
        .flatten(2)
        .unflatten(-1, (2, 12))
    )
    return x[..., :100].reshape(1, x.shape[1], -1)


def canonical_views(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.sin(x[..., 4:5]) * x.unsqueeze(1).transpose(1, 2).sum(2)


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


def swiglu(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = F.silu(lab.gate(x)) * lab.up(x)
    return lab.up(x) * F.silu(lab.gate(x))


def swiglu_sum(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.silu(lab.gate(x)) + lab.up(x)


def swiglu_broadcast(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.silu(lab.gate(x)) * lab.up(x)[..., :1]


def swiglu_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    gate = F.silu(lab.gate(x))
    return gate * lab.up(x) + gate


def reglu(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = F.relu(lab.gate(x)) * lab.up(x)
    return lab.up(x) * F.relu(lab.gate(x))


def reglu_sum(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.relu(lab.gate(x)) + lab.up(x)


def geglu(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = F.gelu(lab.gate(x)) * lab.up(x)
    return F.gelu(lab.gate(x), approximate="tanh") * lab.up(x)


def geglu_sum(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.gelu(lab.gate(x)) + lab.up(x)


def plain_mlp(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return F.silu(F.gelu(F.gelu(F.relu(x), approximate="tanh")))


def unknown_activation(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.tanh(x)


def normed_sums(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = x + lab.q(ops.rms_norm(x, lab.w, 1e-3))
    x = x + lab.k(ops.rms_norm(x, lab.w, 1e-3))
    return ops.rms_norm(x, lab.w2, 1e-5, 1.0)


def sum_without_norm(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return (lab.q(x) + x) * 2.0


def norm_of_scaled_sum(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return ops.rms_norm((lab.q(x) + x) * 2.0, lab.w, 1e-3)


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


def wide_heads(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    table = ops.rope_table(positions, lab.inv_freq)
    q, k, v = lab.qkv(x).split([128, 64, 64], -1)
    q, k, v = (part.reshape(1, -1, part.shape[2] // 64, 64) for part in (q, k, v))
    q, k = (ops.rope(ops.rms_norm(part, lab.wide_w, 1e-3), table) for part in (q, k))
    return lab.narrow(attend(q, k, v).reshape(1, -1, 128)[..., :64])


def wide_heads_in_another_order(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    table = ops.rope_table(positions, lab.inv_freq)
    k, q, v = (part.reshape(1, -1, 1, 64) for part in lab.qkv(x)[..., :192].split(64, -1))
    return lab.narrow(attend(ops.rope(q, table), ops.rope(k, table), v).reshape(1, -1, 64))


def wide_heads_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    table = ops.rope_table(positions, lab.inv_freq)
    q, k, v = (part.reshape(1, -1, 1, 64) for part in lab.qkv(x)[..., :192].split(64, -1))
    mixed = attend(ops.rope(q, table), ops.rope(k, table), v)
    return lab.narrow((mixed + v).reshape(1, -1, 64))


def after_attention(body: Body) -> Body:
    """The body after layers that make a step of the graph."""

    @wraps(body)
    def both(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
        return body(lab, two_layers(lab, x, positions), positions)

    return both


@after_attention
def gated(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    gate, up = lab.wide(x).chunk(2, dim=-1)
    x = lab.narrow(F.silu(gate) * up)
    gate, up = lab.wide(x).chunk(2, dim=-1)
    return lab.narrow(F.gelu(gate, approximate="tanh") * up)


@after_attention
def gated_in_parts(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    gate, up = lab.gate(x), lab.up(x)  # 24 columns each
    return F.relu(gate) * up


@after_attention
def gated_the_other_way(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    up, gate = lab.wide(x).chunk(2, dim=-1)
    return lab.narrow(F.silu(gate) * up)


@after_attention
def gate_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    gate, up = lab.wide(x).chunk(2, dim=-1)
    return lab.narrow(F.silu(gate) * up + gate)


def rounded(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = lab.v(flat(attend(heads(lab.q(x)), heads(lab.k(x)), heads(x))))
    gate, up = lab.wide(ops.rms_norm(x, lab.w, 1e-3)).chunk(2, dim=-1)
    x = heads(lab.narrow(F.silu(gate) * up))
    return flat(attend(x, x, x))


@after_attention
def rounded_and_read(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = ops.rms_norm(x, lab.w, 1e-3)
    x = heads(lab.q(x) + x)
    return flat(attend(x, x, x))


@after_attention
def residuals(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = x + lab.q(ops.rms_norm(x, lab.w, 1e-3))
    x = lab.k(ops.rms_norm(x, lab.w2, 1e-3)) + x
    return F.relu(x + lab.gate(x))


@after_attention
def residual_of_itself(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    x = lab.q(x)
    return F.relu(x + x)


@after_attention
def residual_of_a_product_read_twice(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    y = lab.q(x)
    return F.relu(x + y) + y


@after_attention
def residual_of_a_norm(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return x + ops.rms_norm(lab.q(x), lab.w, 1e-3)


def no_attention(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return lab.q(x)


def unturned(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return flat(attend(heads(lab.q(x)), heads(lab.k(x)), heads(lab.v(x))))


def turned_unlike(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    tables = [ops.rope_table(positions, lab.inv_freq, scale) for scale in (1.0, 2.0)]
    q, k = (ops.rope(heads(m(x)), t) for m, t in zip((lab.q, lab.k), tables, strict=True))
    return flat(attend(q, k, heads(x)))


def only_queries_normed(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    table = ops.rope_table(positions, lab.inv_freq)
    q = ops.rope(ops.rms_norm(heads(lab.q(x)), lab.head_w, 1e-3), table)
    return flat(attend(q, ops.rope(heads(lab.k(x)), table), heads(x)))


def identity(lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
    return torch.sin(x * 2.0)


CASES = {
    "canonicalize_casts": Case(
        casts, 5, {"aten.to": 1, "aten.dropout": 1, "aten.mul": 1}, {}, (identity,)
    ),
    "canonicalize_views": Case(
        views, 9, {"aten.permute": 2}, {"aten.reshape": 1}, (canonical_views,)
    ),
    "canonicalize_ops": Case(
        residual, 7, {"aten.linear": 2, "aten.add": 1}, {"linear": 2, "add": 1, "aten.pow": 1}, ()
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
        layer_norms, 2, {"aten.layer_norm": 2}, {"layer_norm": 2}, (bare_layer_norm,)
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
            turned_neighbours_by_halves,
        ),
    ),
    "fuse_attention": Case(
        attended,
        2,
        {"aten.scaled_dot_product_attention": 2, "aten.expand": 2},
        {"attention": 2},
        (attended_to_the_future, attended_with_mask),
    ),
    "canonicalize_heads": Case(heads_first, 2, {"aten.transpose": 2}, {}, (other_dims,)),
    "fuse_silu_mul": Case(
        swiglu,
        2,
        {"aten.silu": 2, "aten.mul": 2},
        {"silu_mul": 2},
        (swiglu_sum, swiglu_broadcast, swiglu_read_twice),
    ),
    "fuse_gelu_mul": Case(
        geglu, 2, {"aten.gelu": 2, "aten.mul": 2}, {"gelu_mul": 2}, (geglu_sum, swiglu_sum)
    ),
    "fuse_relu_mul": Case(
        reglu, 2, {"aten.relu": 2, "aten.mul": 2}, {"relu_mul": 2}, (reglu_sum, swiglu_sum)
    ),
    "lower_activations": Case(
        plain_mlp, 4, {"aten.gelu": 2}, {"activation": 4}, (unknown_activation,)
    ),
    "fuse_add_rms_norm": Case(
        normed_sums,
        2,
        {"add": 2, "rms_norm": 2},
        {"add_rms_norm": 2},
        (sum_without_norm, norm_of_scaled_sum),
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
    "quantize_linears": Case(
        two_layers,
        5,
        {"linear": 6, "embedding": 1},
        {"quantize": 4, "quantized_linear": 6, "quantized_embedding": 1},
        (),
    ),
    "lower_dtypes": Case(two_layers, 8, {}, {"cast": 2}, ()),
    "quantize_caches": Case(two_layers, 2, {}, {}, ()),
    "fuse_rope_kv_write": Case(
        two_layers,
        2,
        {"rope": 4, "rms_norm": 2, "kv_write": 2},
        {"rope_kv_write": 2},
        (unturned, turned_unlike, only_queries_normed),
    ),
    "fuse_linear_rope_kv_write": Case(
        wide_heads,
        1,
        {"linear": 1, "rope_kv_write": 1, "aten.slice": 3, "aten.reshape": 3},
        {"linear_rope_kv_write": 1},
        (two_layers, wide_heads_in_another_order, wide_heads_read_twice),
    ),
    "fuse_gated_linears": Case(
        gated,
        2,
        {"linear": 2, "silu_mul": 1, "gelu_mul": 1, "aten.slice": 4},
        {"gated_linear": 2},
        (gated_in_parts, gated_the_other_way, gate_read_twice),
    ),
    "fuse_residuals": Case(
        residuals,
        3,
        {"add": 2, "add_rms_norm": 1},
        {"rms_norm": 1},
        (residual_of_itself, residual_of_a_product_read_twice, residual_of_a_norm),
    ),
    "fuse_quantize": Case(
        rounded,
        3,
        {"quantize": 3, "rms_norm": 1, "paged_attention": 1, "quantized_gated_linear": 1},
        {
            "rms_norm_quantize": 1,
            "paged_attention_quantize": 1,
            "quantized_gated_linear_quantize": 1,
        },
        (two_layers, rounded_and_read),
    ),
}

# More bodies that must match, in other spellings.
SPELLINGS = (
    ("fuse_rope_table", table_by_matmul, 1),
    ("fuse_rope", turned_by_halves, 1),
    ("fuse_rope", turned_in_part, 1),
    ("fuse_rope", turned_neighbours, 2),
)
