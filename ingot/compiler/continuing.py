"""Texts that the float32 reference continues token by token, each token computed once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch.fx import GraphModule, Node

from ingot.compiler.reference import Interpreter, ReadParameter
from ingot.ops.attention import SoftmaxScope, attend
from ingot.ops.registry import Args


class Continuing(Interpreter):
    """Sequences that grow. Attention keeps the keys and values of the tokens before, and other ops
    in which tokens meet keep all that they were given of them."""

    def __init__(self, gm: GraphModule, read: ReadParameter) -> None:
        super().__init__(gm, read, [])
        self.names: list[int] = []  # of the sequences that a step computes
        self._known: dict[int, int] = {}  # how many tokens each sequence has
        self._kept: dict[tuple[Node, int], tuple[torch.Tensor, torch.Tensor]] = {}
        self._given: dict[tuple[Node, int], dict[str, torch.Tensor]] = {}

    def step(self, tokens: Mapping[int, Sequence[int]]) -> dict[int, torch.Tensor]:
        """Appends tokens to sequences, by their names. Returns the logits [V] after each."""
        self.names = [*tokens]
        starts = [self._known.get(name, 0) for name in self.names]
        self.feed([*tokens.values()], starts, first=[len(each) - 1 for each in tokens.values()])
        (logits,) = self.run()
        for name, start in zip(self.names, starts, strict=True):
            self._known[name] = start + len(tokens[name])
        return dict(zip(self.names, logits[0], strict=True))

    def attend(self, node: Node, run: int, prompt: int, given: Args) -> torch.Tensor:
        key = (node, self.names[prompt])
        k, v = given.k, given.k[..., : given.value_size] if given.v is None else given.v
        first = 0
        if key in self._kept:
            first = self._kept[key][0].shape[1]
            k, v = (torch.cat(both, 1) for both in zip(self._kept[key], (k, v), strict=True))
        self._kept[key] = (k, v)
        scoring = SoftmaxScope(given.scale, given.window, given.softcap, given.sinks)
        return attend(given.q[0], k[0], v[0], first, scoring)[None]

    def meet(self, node: Node, run: int, prompt: int, given: Args) -> torch.Tensor:
        key = (node, self.names[prompt])
        rows = {n: x for n, x in vars(given).items() if isinstance(x, torch.Tensor)}
        before = self._given.get(key, {})
        whole = {n: torch.cat((before[n], x), 1) if before else x for n, x in rows.items()}
        self._given[key] = whole
        out = super().meet(node, run, prompt, Args(**(vars(given) | whole)))
        return out[:, -next(iter(rows.values())).shape[1] :]
