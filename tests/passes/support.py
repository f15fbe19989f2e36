"""Small models for pass tests: an embedding, a body, a head, exported as any model is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.fx import GraphModule

from ingot.artifact.formats import Storage
from ingot.artifact.target import Target
from ingot.compiler.export import export
from ingot.passes.pipeline import PIPELINE
from ingot.passes.runner import run
from ingot.passes.step import Step

TARGET = Target("cpu", "portable")
SIZE, HEADS, HEAD, VOCAB = 24, 3, 8, 31
WIDE = 64

Body = Callable[["Lab", Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Facts:
    """The facts of a model without any layer, and its name for errors."""

    num_layers: int = 0
    qk_norm: bool = False
    hidden_act: str = "silu"
    head_dim: int = 64
    intermediate_size: int = 128
    architecture: str = "LabForCausalLM"


class Part(nn.Module):
    """The module that a body's nodes come from."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, lab: Lab, x: Tensor, positions: Tensor) -> Tensor:
        return self.body(lab, x, positions)


class Lab(nn.Module):
    """Weights that bodies use: `w` and `w2` [24], `q`..`up` [24, 24], biases, frequencies;
    `wide` [128, 24] and `narrow` [24, 64], `qkv` [256, 24] with a bias, `wide_w` [64]."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.embed = nn.Embedding(VOCAB, SIZE)
        self.head = nn.Linear(SIZE, VOCAB, bias=False)
        self.part = Part(body)
        for name in ("w", "w2", "head_w", "head_w2"):
            size = HEAD if "head" in name else SIZE
            self.register_parameter(name, nn.Parameter(torch.empty(size)))
        for name in ("q", "k", "v", "gate", "up"):
            bias = name in ("gate", "up")
            self.register_module(name, nn.Linear(SIZE, SIZE, bias=bias))
        self.wide = nn.Linear(SIZE, 2 * WIDE, bias=False)
        self.narrow = nn.Linear(WIDE, SIZE, bias=False)
        self.qkv = nn.Linear(SIZE, 4 * WIDE)
        self.wide_w = nn.Parameter(torch.empty(WIDE))
        self.register_buffer("inv_freq", torch.empty(HEAD // 2))

    def forward(self, input_ids: Tensor, positions: Tensor) -> Tensor:
        return self.head(self.part(self, self.embed(input_ids), positions))


def lab(body: Body) -> GraphModule:
    """The exported graph of a body."""
    with torch.device("meta"):
        return export(Lab(body), Facts())


def step(name: str) -> Step:
    """A step of the pipeline, without the counts of a whole model."""
    return replace(next(s for s in PIPELINE if s.name == name), expect=None)


def before(gm: GraphModule, name: str) -> GraphModule:
    """Run every pass that comes before this one; quantizing only where this one needs it."""
    names = [s.name for s in PIPELINE]
    asked = ("", step(name).option)
    steps = [step(n) for n in names[: names.index(name)] if step(n).option in asked]
    steps = [quantizing(s) if s.option == "--quantize" else s for s in steps]
    run(gm, [s for s in steps if "float32" in s.dtypes], Facts(), target=TARGET)
    return gm


def quantizing(quantize: Step) -> Step:
    """The step that quantizes, told to store everything in groups of a head."""
    function = partial(quantize.function, choose=lambda name: Storage(8, HEAD))
    return replace(quantize, function=function)


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
