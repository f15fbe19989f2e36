"""Refuses formats that ruin a model, and says which matrix carries the error and what helps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.fx import Node

from ingot.artifact.formats import Format, Storage
from ingot.artifact.quality import MAX_KL, Quality
from ingot.compiler.model import OpenModel
from ingot.compiler.needs import Use, ways_to_store
from ingot.compiler.options import AUTO, Better
from ingot.compiler.quality import Setting, measure
from ingot.compiler.quantization.graph_matrices import EXPERTS, weight_node
from ingot.compiler.quantization.search import quantize_rows
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, SideBySide
from ingot.errors import QualityError
from ingot.models import registry
from ingot.models.foreign.config import ForeignConfig
from ingot.ops.scaled import Operand
from ingot.ops.stacks import stack_of
from ingot.passes.graph import arguments

FINE = Storage(8, 32)
FINE_ROWS = Format("int8", FINE.group, FINE.group)
# A matrix stands out whose error is so many times that of the one in the middle.
STANDS_OUT = 2.0
SHOWN = 3


def check_quality(
    quality: Quality, max_kl: float | None, vocab_size: int, setting: Setting
) -> None:
    """Raises QualityError for a divergence beyond `max_kl`; by default for ruin.

    By default a model that predicts text no better than by guessing is let pass: nothing that it
    says can be ruined.
    """
    if quality.kl <= (MAX_KL if max_kl is None else max_kl):
        return
    if max_kl is None and not quality.knows(vocab_size) and quality.kl < float("inf"):
        return
    raise _refusal(quality, MAX_KL if max_kl is None else max_kl, setting)


def better_way(model: OpenModel, weight_bytes: int) -> Better | None:
    """The way to store a model that takes the fewest bytes more than so many; None where there is
    none, or nothing tells."""
    config, options = model.config, model.options
    if isinstance(config, ForeignConfig) or options.quantize == AUTO:
        return None  # nothing tells the sizes, or the budget was asked for
    blueprint = registry.blueprint(config)
    ways = ways_to_store(config, blueprint, options, Use(), model.resolved.kept)
    finer = [way for way in ways if not way.refused and way.weight_bytes > 1.05 * weight_bytes]
    best = min(finer, key=lambda way: way.weight_bytes, default=None)
    return None if best is None else Better(" ".join(best.options), best.weight_bytes)


def _refusal(quality: Quality, limit: float, setting: Setting) -> QualityError:
    errors = ErrorsByMatrix(setting).found()
    order = sorted(errors, key=lambda name: errors[name], reverse=True)
    middle = sorted(errors.values())[len(errors) // 2]
    worst = [name for name in order if errors[name] > STANDS_OUT * middle][:SHOWN]
    told = ", ".join(f"{name} ({errors[name]:.0%})" for name in worst or order[:SHOWN])
    spread = "stands out" if len(worst) == 1 else "stand out"
    where = f"of the matrices {told} {spread}" if worst else f"no matrix stands out; most in {told}"
    return QualityError(
        f"the quality gate refuses this format: mean KL {quality.kl:.3g} to the checkpoint's own "
        f"numbers, at most {limit:g} allowed. Errors of products, relative: {where}",
        hint=_remedy(limit, worst, setting),
    )


def _remedy(limit: float, worst: Sequence[str], setting: Setting) -> str:
    """Options that were tried and pass."""
    for options, read_as in _remedies(worst, setting):
        ways = [_with(way, read_as, setting.read) for way in setting.ways]
        kl = measure(replace(setting, ways=ways)).kl
        if kl <= limit:
            return f"Tried, and it passes with a mean KL of {kl:.2g}: {options}"
    return "Nothing that was tried passes, not even --quantize none. Look at the checkpoint."


def _remedies(
    worst: Sequence[str], setting: Setting
) -> Iterator[tuple[str, dict[str, Storage | None]]]:
    """Options, and what they store otherwise: None is bfloat16."""
    stored = {
        name: form
        for way in setting.ways
        for name, form in way.roundings.weights.items()
        if form.is_scaled
    }
    for count in range(1, len(worst) + 1):
        names = worst[:count]
        if set(names) < set(stored):
            rules = " ".join(f"--keep '{name.removesuffix('.weight')}=bf16'" for name in names)
            yield rules, dict.fromkeys(names)
    if any(form.bits < FINE.bits or form.block > FINE.group for form in stored.values()):
        yield "--quantize int8 --group-size 32", dict.fromkeys(stored, FINE)
    if stored:
        yield "--quantize none", dict.fromkeys(stored)


def _with(way: Rounded, read_as: dict[str, Storage | None], exact: ReadParameter) -> Rounded:
    """A way with some matrices stored otherwise, made anew from the checkpoint's numbers."""

    def read(name: str) -> Operand:
        owner = name if name in read_as else stack_of(name)[0]
        if owner not in read_as:
            return way.read(name)
        storage, value = read_as[owner], exact(name)[:]
        assert isinstance(value, torch.Tensor)
        return value if storage is None else quantize_rows(value, storage.of(value.shape[-1]))

    def changed(forms: Mapping[str, Format]) -> dict[str, Format]:
        new = {
            name: FINE_ROWS if storage else Format("bfloat16")
            for name, storage in read_as.items()
            if name in forms and forms[name].is_scaled
        }
        return {**forms, **new}

    old = way.roundings
    return Rounded(replace(old, weights=changed(old.weights), products=changed(old.products)), read)


class ErrorsByMatrix(SideBySide):
    """Error that each matrix adds: how far its product is off when its inputs are exact."""

    def __init__(self, setting: Setting) -> None:
        tokens = [text.tokens for text in setting.texts]
        last = [len(each) - 1 for each in tokens]  # enough of the head, the widest of products
        super().__init__(setting.gm, setting.read, tokens, setting.ways, first=last)
        self.errors: dict[str, float] = {}

    def found(self) -> dict[str, float]:
        """The relative error of each matrix's product, in the worst of the ways, by its name."""
        self.run()
        return self.errors

    def _call(self, node: Node) -> list[Any]:
        exact, *rounded = super()._call(node)
        if name := _matrix(node):
            size = exact.norm().clamp_min(1e-30)
            worst = max(float((each - exact).norm() / size) for each in rounded)
            self.errors[name] = max(worst, self.errors.get(name, 0.0))
        return [exact] * self.runs


def _matrix(node: Node) -> str:
    """The name of the matrix that a node multiplies with or looks up in; "" for other nodes."""
    if node.target is EXPERTS:
        return str(arguments(node)["gate_up"].target)
    weight = weight_node(node)
    return "" if weight is None else str(weight.target)
