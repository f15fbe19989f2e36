"""Lets the plain module pick the experts that an artifact picks, where rounding explains them.

Rounding moves the logits of a router. Where two experts are nearly equal, another one is picked,
and the logits of that token are far from the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from ingot.ops import OPS
from tests.support.checkpoints import module_logits

ROUTE = OPS["route"].overload
# How far rounding moves the logits of a router, in standard deviations of the noise that is tried,
# as a part of their size. bfloat16 has 8 bits, and a row has been rounded some ten times before.
NOISE = 10 * 2.0**-8 / 4
DRAWS = 200
Pick = tuple[int, int]  # a router, and a token


class Routers(TorchDispatchMode):
    """What the routers of a plain module are given, and `nudges` that are added to it."""

    def __init__(self) -> None:
        super().__init__()
        self.nudges: dict[Pick, Tensor] = {}
        self.given: list[tuple[Tensor, Callable[[Tensor], Tensor]]] = []

    def logits(self, module: nn.Module, tokens: list[int]) -> np.ndarray:
        self.given = []
        with self:
            return module_logits(module, tokens)

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if func is not ROUTE:
            return func(*args, **kwargs or {})
        logits, *others = args
        for (router, token), nudge in self.nudges.items():
            if router == len(self.given):
                logits = logits.index_add(1, torch.tensor([token]), nudge)
        self.given.append((logits, lambda each: ROUTE(each, *others, **kwargs or {})))
        return ROUTE(logits, *others, **kwargs or {})

    def others(self, token: int) -> Iterator[tuple[Pick, Tensor]]:
        """The least noise that leads each router to each other choice of experts."""
        for router, (logits, route) in enumerate(self.given):
            own = logits[:, token : token + 1]
            rng = torch.Generator().manual_seed(router)
            noise = torch.randn(1, DRAWS, own.shape[-1], generator=rng)
            noise *= NOISE * own.square().mean().sqrt()
            known = [route(own) != 0]
            for at in noise.norm(dim=-1)[0].argsort():
                nudge = noise[:, at : at + 1]
                picked = route(own + nudge) != 0
                if not any(torch.equal(picked, each) for each in known):
                    known.append(picked)
                    yield (router, token), nudge


def by_token(got: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """The relative error of each token."""
    found: np.ndarray = np.linalg.norm(got - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return found


def with_picks_of(
    got: np.ndarray, module: nn.Module, tokens: list[int], limit: float, routers: Routers
) -> np.ndarray:
    """Logits of the plain module, where tokens beyond the limit have other experts if that makes
    their error less than half. The first tokens come first: later ones read them."""
    expected = routers.logits(module, tokens)
    for token in range(len(tokens)):
        while (error := by_token(got, expected)[token]) > limit:
            before, tried = dict(routers.nudges), {}
            for pick, nudge in list(routers.others(token)):
                routers.nudges = before | {pick: before.get(pick, 0) + nudge}
                tried[by_token(got, routers.logits(module, tokens))[token]] = routers.nudges
            least = min(tried, default=error)
            routers.nudges = tried[least] if least < error / 2 else before
            expected = routers.logits(module, tokens)
            if routers.nudges == before:
                break
    return expected
