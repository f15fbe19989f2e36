"""RWKV-7 in float64 and numpy, token by token, from the paper's formulas (arXiv 2503.14456).

It reads tensors by BlinkDL's names and keeps a state as his package does: a matrix of a head is
[value, key]. Nothing here is shared with ingot.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
State = list[tuple[Array, Array, Array]]  # of each layer: row before, matrices, row before


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def layer_norm(x: Array, weight: Array, bias: Array, eps: float = 1e-5) -> Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


class Reference:
    """A model: `logits` of tokens, from nothing or from a state, which it brings forward.

    `heads_eps` is the epsilon of the norms of heads.
    """

    def __init__(
        self, tensors: Mapping[str, NDArray[np.generic]], heads_eps: float = 64e-5
    ) -> None:
        self.heads_eps = heads_eps
        flat = {name: np.asarray(t, np.float64) for name, t in tensors.items()}
        self.z = {n: t.reshape(-1) if t.shape[:2] == (1, 1) else t for n, t in flat.items()}
        self.num_heads, self.head_dim = self.z["blocks.0.att.r_k"].shape
        self.width = self.num_heads * self.head_dim
        self.num_layers = 1 + max(int(n.split(".")[1]) for n in flat if n.startswith("blocks."))

    def begin(self) -> State:
        rows, square = np.zeros(self.width), (self.num_heads, self.head_dim, self.head_dim)
        return [(rows, np.zeros(square), rows) for _ in range(self.num_layers)]

    def logits(self, tokens: Sequence[int], state: State | None = None) -> Array:
        state = self.begin() if state is None else state
        return np.stack([self.step(token, state) for token in tokens])

    def step(self, token: int, state: State) -> Array:
        z, first = self.z, np.zeros(0)
        x = self.norm("blocks.0.ln0", z["emb.weight"][token])
        for i in range(self.num_layers):
            before, matrices, below = state[i]
            u = self.norm(f"blocks.{i}.ln1", x)
            mixed, matrices, first = self.mix(i, u, before, matrices, first)
            x = x + mixed
            c = self.norm(f"blocks.{i}.ln2", x)
            x = x + self.feed(i, c, below)
            state[i] = (u, matrices, c)
        return z["head.weight"] @ self.norm("ln_out", x)

    def norm(self, name: str, x: Array) -> Array:
        return layer_norm(x, self.z[f"{name}.weight"], self.z[f"{name}.bias"])

    def mix(
        self, i: int, u: Array, before: Array, matrices: Array, first: Array
    ) -> tuple[Array, Array, Array]:
        z = {n.removeprefix(f"blocks.{i}.att."): t for n, t in self.z.items()}
        r, w, k, v, a, g = (u + (before - u) * z[f"x_{name}"] for name in "rwkvag")
        receptance, key, value = (
            z[f"{name}.weight"] @ x for name, x in (("receptance", r), ("key", k), ("value", v))
        )
        decay = np.exp(-np.exp(-0.5) * sigmoid(z["w0"] + np.tanh(w @ z["w1"]) @ z["w2"]))
        rate = sigmoid(z["a0"] + a @ z["a1"] @ z["a2"])
        gate = sigmoid(g @ z["g1"]) @ z["g2"]
        if i == 0:
            first = value
        else:
            value = value + (first - value) * sigmoid(z["v0"] + v @ z["v1"] @ z["v2"])
        heads = (self.num_heads, self.head_dim)
        removed = (key * z["k_k"]).reshape(heads)
        removed = removed / np.maximum(np.linalg.norm(removed, axis=-1, keepdims=True), 1e-12)
        key = key * (1 + (rate - 1) * z["k_a"])
        r_, k_, v_, d_, a_ = (x.reshape(heads) for x in (receptance, key, value, decay, rate))
        matrices = (
            matrices * d_[:, None]
            - (matrices @ removed[:, :, None]) * (removed * a_)[:, None]
            + v_[:, :, None] * k_[:, None]
        )
        out = (matrices @ r_[:, :, None])[..., 0]
        weight, bias = (z[f"ln_x.{kind}"].reshape(heads) for kind in ("weight", "bias"))
        out = layer_norm(out, weight, bias, self.heads_eps)
        out = out + (r_ * k_ * z["r_k"]).sum(-1, keepdims=True) * v_
        return z["output.weight"] @ (out.reshape(-1) * gate), matrices, first

    def feed(self, i: int, c: Array, below: Array) -> Array:
        ffn = f"blocks.{i}.ffn"
        mixed = c + (below - c) * self.z[f"{ffn}.x_k"]
        return (
            self.z[f"{ffn}.value.weight"] @ np.maximum(self.z[f"{ffn}.key.weight"] @ mixed, 0) ** 2
        )
