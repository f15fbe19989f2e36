"""Small models for pass tests: an embedding, a body, a head, exported as any model is."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, replace
from functools import cache

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ingot.compiler.export import export
from ingot.passes.declaration import Pass
from ingot.passes.pipeline import PIPELINE
from ingot.passes.runner import run

SIZE, HEADS, HEAD, VOCAB = 24, 3, 8, 31
EXPERTS, INNER = 3, 8

Body = Callable[["Lab", Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Facts:
    """What an error says of a model."""

    architecture: str = "LabForCausalLM"


class Part(nn.Module):
    """The module that a body's nodes come from."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
        return self.body(lab, x, positions)


class Lab(nn.Module):
    """Weights that bodies use: `w` and `w2` [24], `head_w` [8], `by_head` [24], `one` [1], `q`, `k`
    and `v` [24, 24], `gate` and `up` [24, 24] with a bias, a router of 3 experts and their stacks,
    frequencies [4]."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, SIZE)
        self.head = nn.Linear(SIZE, VOCAB, bias=False)
        self.part = Part(body)
        for name, size in (("w", SIZE), ("w2", SIZE), ("head_w", HEAD), ("head_w2", HEAD)):
            self.register_parameter(name, nn.Parameter(torch.empty(size)))
        for name in ("q", "k", "v", "gate", "up"):
            bias = name in ("gate", "up")
            self.register_module(name, nn.Linear(SIZE, SIZE, bias=bias))
        self.router = nn.Linear(SIZE, EXPERTS, bias=False)
        self.experts = nn.Module()
        for name, shape in (("gate_up", (2 * INNER, SIZE)), ("down", (SIZE, INNER))):
            self.experts.register_parameter(name, nn.Parameter(torch.empty(EXPERTS, *shape)))
        self.by_head = nn.Parameter(torch.empty(SIZE))
        self.one = nn.Parameter(torch.empty(1))
        self.register_buffer("inv_freq", torch.empty(HEAD // 2))

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.head(self.part(self, self.embed(input_ids), positions))


def lab(body: Body) -> GraphModule:
    """The exported graph of a body, in a copy that can be edited."""
    gm = _exported(body)
    return GraphModule(gm, deepcopy(gm.graph))


@cache
def _exported(body: Body) -> GraphModule:
    with torch.device("meta"):
        return export(Lab(body), Facts())


def step(name: str) -> Pass:
    """A pass of the pipeline, without the counts of a whole model."""
    return replace(next(each for each in PIPELINE if each.name == name), expect=None)


def before(gm: GraphModule, name: str) -> GraphModule:
    """Runs every pass of a float32 compile that comes before this one."""
    names = [each.name for each in PIPELINE]
    passes = [step(n) for n in names[: names.index(name)]]
    run(gm, [each for each in passes if "float32" in each.dtypes], {})
    return gm


def heads(x: Tensor) -> Tensor:
    """[1, T, 24] -> [1, T, 3, 8]."""
    return x.view(1, x.shape[1], HEADS, HEAD)


def flat(x: Tensor) -> Tensor:
    """[1, T, 3, 8] -> [1, T, 24]."""
    return x.reshape(1, x.shape[1], SIZE)


def rms(x: Tensor, w: Tensor, eps: float = 1e-5) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w


def cos_sin(lab: Lab, positions: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    angles = positions[:, :, None].float() * lab.inv_freq
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos() * scale, angles.sin() * scale


def turn(x: Tensor, cos: Tensor, sin: Tensor, dim: int = 2) -> Tensor:
    half = x.shape[-1] // 2
    turned = torch.cat((-x[..., half:], x[..., :half]), dim=-1)
    return x * cos.unsqueeze(dim) + turned * sin.unsqueeze(dim)


def attend(q: Tensor, k: Tensor, v: Tensor, **kwargs: float) -> Tensor:
    return torch.ops.ingot.attention(q, k, v, 0.3, **kwargs)
