"""Chooses how matrices and the rows that they multiply are rounded: as asked, or by measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import fsum, prod

from torch.fx import GraphModule

from ingot.artifact.formats import DTYPE_BITS, DType, Format, Storage
from ingot.artifact.plan import Buffer
from ingot.compiler.model import OpenModel, keeps, storage_of
from ingot.compiler.options import AUTO, Clock, CompileOptions, activations_of
from ingot.compiler.quantization.budget import (
    FREE_ROWS,
    SHARE_OF_ROWS,
    Choice,
    Item,
    Rows,
    finer_rows,
    smallest,
    within_bytes,
    within_cost,
)
from ingot.compiler.quantization.choose import Matrices, choose_storage, ruled
from ingot.compiler.quantization.costs import Costs, Way
from ingot.compiler.quantization.graph_matrices import matrices_in, shares_of_stacks
from ingot.compiler.quantization.sensitivity import Sensitivity
from ingot.errors import UsageError
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.targets.target import all_fit, kind_of

# What a matrix may be stored as: bits, and the columns of a group.
CANDIDATES = ((4, 64), (4, 32), (5, 32), (6, 32), (8, 128), (8, 32))
GOOD_KL = 0.05  # what a good 4-bit file costs: the budget if none is given
# Of the text that tells what errors cost. More tokens change nothing that can be measured.
SEQUENCES, SEQUENCE_TOKENS = 4, 256


@dataclass(frozen=True, slots=True)
class Formats:
    """How matrices are stored, and those that multiply rows of 16 bits, by their parameters.

    `in_words` says what was chosen by measurement; empty if nothing was.
    """

    storage: dict[str, Storage]
    fine: frozenset[str] = frozenset()
    in_words: str = ""


def choose_formats(model: OpenModel, gm: GraphModule, clock: Clock) -> Formats:
    """Formats of the matrices of an exported graph.

    Raises:
        UsageError: options that contradict each other, or that nothing can meet.
    """
    _check_budget(model.options)
    activations = activations_of(model.options)
    if model.options.quantize == AUTO:
        return Chooser(model, gm).automatic(clock, activations)
    storage = storage_of(model, gm)
    if model.resolved.automatic and _text(model):
        return Chooser(model, gm).automatic(clock, activations, storage)
    if model.options.activations == AUTO and storage:
        return Chooser(model, gm).rows_alone(clock, storage)
    words = "one format, since no text tells what errors cost" if model.resolved.automatic else ""
    fine = frozenset(storage) if activations == "int16" else frozenset[str]()
    return Formats(storage, fine, words)


def _text(model: OpenModel) -> Sequence[Sequence[int]]:
    """The text that tells what errors cost; empty where the tokenizer encodes none of it."""
    return model.calibration or model.sample


def _check_budget(options: CompileOptions) -> None:
    """Raises UsageError for budgets that nothing reads, or for two of them."""
    given = [
        name
        for name, value in (("--bits", options.bits), ("--max-bytes", options.max_bytes))
        if value is not None
    ]
    if given and options.quantize != AUTO:
        raise UsageError(f"{given[0]} needs --quantize auto")
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} are given", hint="Give one of them.")


class Chooser:
    """Chooses by what errors in a model's matrices and rows are measured to cost."""

    def __init__(self, model: OpenModel, gm: GraphModule) -> None:
        self.model, self.gm = model, gm
        self.matrices = matrices_in(gm)
        self.sizes = Sizes(model, self.matrices)

    def automatic(
        self, clock: Clock, activations: str, one_format: Mapping[str, Storage] | None = None
    ) -> Formats:
        """Chooses the formats of matrices in the bytes that they take in one format, or under the
        budget of the options."""
        fixed = self._fixed()
        ways = {n: self._candidates(n) for n in self.matrices if n not in fixed}
        costs = self._measured(clock, ways, fixed)
        items = self._items(ways, costs)
        if one_format is None:
            choice = self._choice(items, fixed)
        else:
            choice = within_bytes(items, sum(self.sizes.of(n, one_format.get(n)) for n in ways))
        resolved = self.model.resolved
        storage = choose_storage(
            self.matrices,
            None,
            resolved.keep,
            resolved.dtype,
            resolved.int8,
            partial(all_fit, resolved.targets),
            {name: way for name, way in choice.ways.items() if way is not None},
        )
        all_ways = {name: storage.get(name) for name in self.matrices}
        taken = f"{self.sizes.whole(all_ways) / 1e6:.1f} MB of weights, "
        taken += f"{self.sizes.bits(all_ways):.2f} bits each in the mean"
        found = Formats(storage, frozenset(), taken)
        if activations == "int16":
            return replace(found, fine=frozenset(storage))
        return self._with_rows(found, costs, choice.cost, activations)

    def rows_alone(self, clock: Clock, storage: dict[str, Storage]) -> Formats:
        """Chooses which rows of given formats are rounded finely."""
        kept = {n for n in storage if keeps(self.model, {n: storage[n]})}
        ways = {n: [] if n in kept else [way] for n, way in storage.items()}
        costs = self._measured(clock, ways, storage)
        stored = fsum(cost for each in costs.values() for cost in each.stored.values())
        return self._with_rows(Formats(storage), costs, stored, AUTO)

    def _fixed(self) -> dict[str, Way]:
        """The matrices for which there are rules."""
        resolved = self.model.resolved
        rules = ruled(self.matrices, resolved.keep, None, resolved.int8, resolved.dtype)
        return {name: rules[name] for name in self.matrices if name in rules}

    def _candidates(self, name: str) -> list[Way]:
        """The ways to store a matrix that all targets take, and the plain one."""
        columns, asked = self.matrices[name].columns, self.model.options.group_size
        sizes = {(bits, int(asked)) for bits, _ in CANDIDATES} if asked else CANDIDATES
        storages = [Storage(bits, group, zeros=bits < 8) for bits, group in sorted(sizes)]
        targets = self.model.resolved.targets
        return [*(s for s in storages if all_fit(targets, columns, s.of(columns))), None]

    def _measured(
        self, clock: Clock, ways: Mapping[str, Sequence[Way]], fixed: Mapping[str, Way]
    ) -> dict[str, Costs]:
        text = _text(self.model)
        if not text:
            raise UsageError(
                "the tokenizer encodes none of the bundled text, so nothing tells what errors cost",
                hint="Give a text by --calibrate, or --quantize int4.",
            )
        asked: dict[str, Sequence[Way]] = {**{name: [] for name in fixed}, **ways}
        blocks = {
            name: {w.of(self.matrices[name].columns).block for w in [*found, fixed.get(name)] if w}
            for name, found in asked.items()
        }
        numbers = {name: prod(self.sizes.shapes[name]) for name in asked}
        detail = "what errors in each matrix cost"
        with clock.stage_over("measure", detail, numbers) as begins:
            return Sensitivity(
                self.gm,
                self.model.checkpoint.read,
                [tokens[:SEQUENCE_TOKENS] for tokens in text[:SEQUENCES]],
                asked,
                blocks,
                TORCH_DTYPES[self.sizes.dtype],
                begins,
            ).measured()

    def _items(self, ways: Mapping[str, Sequence[Way]], costs: Mapping[str, Costs]) -> list[Item]:
        """Matrices that read the same become one, and are stored alike."""
        return [
            Item(
                names,
                {way: sum(self.sizes.of(n, way) for n in names) for way in ways[names[0]]},
                {way: fsum(costs[n].stored[way] for n in names) for way in ways[names[0]]},
            )
            for names in self._together(ways)
        ]

    def _together(self, names: Mapping[str, object]) -> list[tuple[str, ...]]:
        found: dict[str, list[str]] = {}
        for name in names:
            found.setdefault(self.matrices[name].reads, []).append(name)
        return [tuple(each) for each in found.values()]

    def _choice(self, items: Sequence[Item], fixed: Mapping[str, Way]) -> Choice:
        options, numbers = self.model.options, self.sizes.numbers
        bits, beside = options.bits, sum(self.sizes.of(n, way) for n, way in fixed.items())
        if options.max_bytes is not None:
            beside, most = beside + self.sizes.others, options.max_bytes
        elif bits is not None:
            most = int(numbers * bits / 8)
        else:
            return self._within_kl(items, GOOD_KL if options.max_kl is None else options.max_kl)
        least = smallest(items).nbytes + beside
        if least <= most:
            return within_bytes(items, most - beside)
        if options.max_bytes is not None:
            raise UsageError(
                f"--max-bytes is {most}, but the weights take {least} bytes at the least",
                hint=f"Give --max-bytes {least} or more"
                + ", or keep fewer matrices by --keep." * bool(fixed),
            )
        fewest = 8 * least / numbers
        raise UsageError(
            f"--bits is {bits:g}, but the weights take {fewest:.2f} bits at the least",
            hint=f"Give --bits {fewest + 0.005:.2f} or more.",
        )

    def _within_kl(self, items: Sequence[Item], most: float) -> Choice:
        """Leaves a part of what may be lost to the rounding of rows."""
        for_matrices = max((most - FREE_ROWS) / (1 + SHARE_OF_ROWS), most / 4)
        choice = within_cost(items, for_matrices)
        if choice.cost > most:
            raise UsageError(
                f"--max-kl is {most:g}, but the finest formats are expected to cost "
                f"{choice.cost:.2g}",
                hint=f"Give --max-kl {2 * choice.cost:.1g} or more, or --dtype float32.",
            )
        return choice

    def _with_rows(
        self, found: Formats, costs: Mapping[str, Costs], stored: float, activations: str
    ) -> Formats:
        """The same with the rows that are rounded finely, where a target rounds rows at all."""
        if not any(kind.rounds_rows for kind in self.sizes.kinds):
            words = f"expected to cost {stored:.2g} nats"
            return replace(found, in_words=_joined(found.in_words, words))
        shares, rows = shares_of_stacks(self.gm), list[Rows]()
        for names in self._together(found.storage):
            blocks = {n: found.storage[n].of(self.matrices[n].columns).block for n in names}
            cost = fsum(costs[n].rows.get(blocks[n], 0.0) for n in names)
            products = sum(prod(self.sizes.shapes[n]) * shares.get(n, 1.0) for n in names)
            rows.append(Rows(names, cost, products))
        fine = finer_rows(rows, stored) if activations == AUTO else frozenset[str]()
        left = fsum(each.cost for each in rows if fine.isdisjoint(each.names))
        words = f"expected to cost {stored:.2g} nats, and their rows {left:.2g}"
        if not stored:
            words = f"rows expected to cost {left:.2g} nats"
        if fine:
            words += f"; rows of 16 bits for {len(fine)} of {len(found.storage)} matrices"
        return replace(found, fine=fine, in_words=_joined(found.in_words, words))


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


class Sizes:
    """Sizes of a model's weights as targets pack them.

    Attributes:
        shapes: of all parameters; dtype: of matrices that are stored plain.
        numbers: in all matrices; others: bytes of all other parameters.
    """

    def __init__(self, model: OpenModel, matrices: Matrices) -> None:
        self.dtype: DType = model.resolved.dtype  # type: ignore[assignment]
        self.kinds = [kind_of(target) for target in model.resolved.targets]
        parameters = dict(model.module.named_parameters())
        self.shapes = {name: tuple(each.shape) for name, each in parameters.items()}
        self.numbers = sum(prod(self.shapes[name]) for name in matrices)
        plain = [shape for name, shape in self.shapes.items() if name not in matrices]
        width = DTYPE_BITS[self.dtype] // 8
        self.others = sum(prod(s) * (width if len(s) > 1 else 4) for s in plain)

    def of(self, name: str, way: Way) -> int:
        """Bytes of a matrix, in the target that needs most."""
        shape = self.shapes[name]
        form = Format(self.dtype) if way is None else way.of(shape[-1])
        weight = Buffer(name=name, format=form, shape=shape, kind="weight")
        return max(kind.packed(weight, multiplied=True)[1] for kind in self.kinds)

    def whole(self, ways: Mapping[str, Way]) -> int:
        """Bytes of all weights."""
        return self.others + sum(self.of(name, way) for name, way in ways.items())

    def bits(self, ways: Mapping[str, Way]) -> float:
        """Mean bits of a number in the matrices."""
        return 8 * sum(self.of(name, way) for name, way in ways.items()) / self.numbers
