"""Effect of rounding on the outputs of a model: its graph runs with the roundings of a plan.

The exported graph runs as it is, and beside that once for each plan, with every value rounded that
the plan rounds. A weight that runs share is read and widened once, so that a run costs little more
than its products.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from ingot.artifact.formats import Format
from ingot.artifact.plan import Instruction, Plan
from ingot.artifact.traits import Role, traits_of
from ingot.compiler.reference import Interpreter, ReadParameter
from ingot.ops import OPS
from ingot.ops.attention import SoftmaxScope, attend, bias_of
from ingot.ops.dtypes import TORCH_DTYPES
from ingot.ops.paged_attention import attend_rounded
from ingot.ops.registry import Args
from ingot.ops.scaled import Operand, Scaled, round_to, round_to_int8
from ingot.ops.stacks import matrix_name
from ingot.passes.graph import arguments
from ingot.passes.verification import steadied

ROUTE = OPS["route"]
FLOAT32 = Format("float32")
LAST_DIGITS = 2.0**-20  # of a sum of float32, relative to it
FUNCTIONS = 0.5  # binary digits of a float32 that functions such as exp lose


@dataclass(frozen=True, slots=True)
class Roundings:
    """The formats in which a plan has what the exported graph has in float32.

    Attributes:
        weights: matrices and tables, by the names of the model's parameters.
        products: what is multiplied with a matrix, by the name of the matrix.
        queries: of attention.
        cache: keys and values.
        rounds_queries: to int8, as keys of the cache are.
    """

    weights: Mapping[str, Format]
    products: Mapping[str, Format]
    queries: Format = FLOAT32
    cache: Format = FLOAT32
    rounds_queries: bool = False


@dataclass(frozen=True, slots=True)
class Rounded:
    """A way to run a model: what is rounded, and the weights, in integers where they are so.

    `draw`: draws differ in the last digits of embeddings, as sums in another order differ. One of
    them alone says little where a rounding that falls the other way moves all that follows.
    """

    roundings: Roundings
    read: ReadParameter
    draw: int = 0


def roundings_of(plan: Plan) -> Roundings:
    """Roundings of a plan, before or after a target's rewriting."""
    weights, products = dict[str, Format](), dict[str, Format]()
    queries = cache = FLOAT32
    rounds_queries = False
    for step in plan.instructions:
        traits = traits_of(step)
        if traits.attends:
            keys, *_ = traits.arguments(Role.SEQUENCE, Role.SEGMENT)
            queries, cache = (_format(plan, step, name) for name in ("q", keys))
            rounds_queries = bool(step.attrs.get("rounds_queries"))
        for argument in traits.integers:
            weight = plan.buffer(step.inputs[argument])
            names = weight.sources or (weight.name,)
            weights.update(dict.fromkeys(names, weight.format))
            if argument == traits.matrix:
                products.update(dict.fromkeys(names, _format(plan, step, traits.multiplied)))
    return Roundings(weights, products, queries, cache, rounds_queries)


def fine_products(plan: Plan) -> set[str]:
    """The parameters that multiply rows of 16 bits in a rewritten plan."""
    return {n for n, form in roundings_of(plan).products.items() if form.dtype == "int16"}


def _format(plan: Plan, step: Instruction, argument: str) -> Format:
    return plan.buffer(step.inputs[argument]).format


def rounded_logits(
    gm: GraphModule,
    read: ReadParameter,
    prompts: Sequence[Sequence[int]],
    ways: Sequence[Rounded],
    first: Sequence[int] = (),
) -> list[list[Tensor]]:
    """Logits of the float32 reference, as `reference_logits` gives them, and those of each way;
    of each prompt from its `first` wanted position on."""
    starts = zip(prompts, first or [0] * len(prompts), strict=True)
    counts = [len(tokens) - start for tokens, start in starts]
    runs = SideBySide(gm, read, prompts, ways, first=first).run()
    return [[*logits[0].split(counts)] for logits in runs]


class SideBySide(Interpreter):
    """The exact run, and then the rounded ones.

    Rounded runs are steadied by what the routers of the exact one are given, within `tolerance`.
    """

    def __init__(
        self,
        gm: GraphModule,
        read: ReadParameter,
        prompts: Sequence[Sequence[int]],
        ways: Sequence[Rounded],
        tolerance: float = 0.0,
        first: Sequence[int] = (),
    ) -> None:
        super().__init__(gm, read, prompts, first, runs=1 + len(ways))
        self.exact = Rounded(Roundings({}, {}), read)
        self.ways = [self.exact, *ways]
        self.tolerance = tolerance
        self.given: list[Tensor] = []  # the logits of each router in the exact run
        self.matrix: Operand | None = None  # of the linear that is being computed
        self.way = self.exact  # whose experts are being computed

    def apply(self, node: Node, run: int, args: list[Any], kwargs: dict[str, Any]) -> Any:
        if node.target is ROUTE.overload:
            return self._route(run, args, kwargs)
        return super().apply(node, run, args, kwargs)

    def attend(self, node: Node, run: int, prompt: int, given: Args) -> Tensor:
        way = self.ways[run]
        if way is self.exact:
            return super().attend(node, run, prompt, given)
        return _attention(way.roundings, given)

    def _route(self, run: int, args: list[Any], kwargs: dict[str, Any]) -> Tensor:
        def route(logits: Tensor) -> Tensor:
            shares: Tensor = ROUTE.overload(logits, *others, **kwargs)
            return shares

        logits, *others = args
        if run == 0:
            self.given.append(logits)
        else:
            logits = steadied(route, logits, self.given[-1], self.tolerance)
        return route(logits)

    def _linear(self, node: Node) -> list[Any]:
        """Rows of all ways that have the same weight are multiplied with it at once."""
        x, weight = node.args[:2]
        assert isinstance(x, Node) and isinstance(weight, Node)
        name, whole = str(weight.target), self.values
        found: dict[int, Tensor] = {}
        for matrix, ways in self._matrices(name):
            self.matrix = matrix
            self.values = {x: [self._rows(way, whole[x][way], name) for way in ways]}
            found |= zip(ways, super()._linear(node), strict=True)
        self.values, self.matrix = whole, None
        return [found[way] for way in sorted(found)]

    def weight_of(self, node: Node, rows: Tensor) -> Operand:
        assert self.matrix is not None
        return self.matrix

    def _experts(self, node: Node) -> list[Any]:
        """Each way by itself: its rows pick experts of their own."""
        whole, found = self.values, list[Any]()
        operands = [arguments(node)[name] for name in ("x", "shares")]
        for run, way in enumerate(self.ways):
            self.way = way
            self.values = {each: [whole[each][run]] for each in operands}
            found += super()._experts(node)
        self.values = whole
        return found

    def matrix_of(self, stack: str, index: int, rows: Tensor) -> Operand:
        matrix = self.way.read(matrix_name(stack, index))
        narrow = _narrower(matrix, self.way.roundings.weights.get(stack, FLOAT32))
        return matrix if narrow is None or isinstance(matrix, Scaled) else matrix.to(narrow)

    def rows_for(self, stack: str, rows: Tensor) -> Tensor:
        form = self.way.roundings.products.get(stack)
        return rows if form is None else _round(rows, form)

    def _rows(self, way: int, rows: Tensor, name: str) -> Tensor:
        """Rows that a way multiplies with a weight."""
        form = self.ways[way].roundings.products.get(name)
        return rows if form is None else _round(rows, form)

    def _matrices(self, name: str) -> list[tuple[Operand, list[int]]]:
        """The values that a weight has, each with the ways that have it so."""
        read = {way.read: self.fetched(way.read, name) for way in self.ways}
        found: dict[Any, tuple[Operand, list[int]]] = {}
        for index, way in enumerate(self.ways):
            whole = read[way.read]
            narrow = _narrower(whole, way.roundings.weights.get(name, FLOAT32))
            if narrow is not None and isinstance(whole, Tensor):
                whole = whole.to(narrow)
            _, ways = found.setdefault((way.read, narrow), (whole, []))
            ways.append(index)
        return [*found.values()]

    def _embedding(self, node: Node) -> list[Any]:
        weight, tokens = node.args[:2]
        assert isinstance(weight, Node) and isinstance(tokens, Node)
        found: dict[int, Tensor] = {}
        for table, ways in self._matrices(str(weight.target)):
            rows = table[self.values[tokens][0]]
            exact = rows.dequantize() if isinstance(rows, Scaled) else rows.float()
            found |= {way: _drawn(exact, self.ways[way].draw) for way in ways}
        return [found[way] for way in sorted(found)]


def _drawn(rows: Tensor, draw: int) -> Tensor:
    """Rows that may differ in their last digits; those of draw 0 do not."""
    if not draw:
        return rows
    signs = torch.randn(rows.shape, generator=torch.Generator().manual_seed(draw)).sign()
    return rows * (1 + LAST_DIGITS * signs)


def _narrower(weight: Operand, form: Format) -> torch.dtype | None:
    """The dtype that a weight is rounded to; None if it stays as it is."""
    if isinstance(weight, Scaled) or form.is_scaled or form == FLOAT32:
        return None
    dtype = TORCH_DTYPES[form.dtype]
    return None if weight.dtype == dtype else dtype


def _attention(roundings: Roundings, given: Args) -> Tensor:
    """`attention` over a cache: weights are rounded like queries, see `attend_rounded`."""
    form, cache = roundings.queries, roundings.cache
    q, k, v, value_size = given.q, given.k, given.v, given.value_size
    added = bias_of(given.bias, given.q_bias, given.k_bias, given.buckets)
    scoring = SoftmaxScope(
        given.scale, given.window, given.softcap, given.sinks, given.causal, added
    )
    if form == cache == FLOAT32:
        q, k = _round(q, form), _round(k, form)
        v = k[..., :value_size] if v is None else _round(v, form)
        return attend(q[0], k[0], v[0], 0, scoring)[None]
    dtype = TORCH_DTYPES[form.dtype]
    queries = q[0].to(dtype)
    if v is None:  # rows of the cache are read in the dtype of queries
        keys = _round(_round(k, cache), form)[0].transpose(0, 1)
        values, scales = keys[..., :value_size], None
    else:
        keys = _round(k, cache)[0].transpose(0, 1)
        values, scales = _stored(v[0].transpose(0, 1), cache)
    if roundings.rounds_queries:
        queries = _round(queries, cache)
    out = attend_rounded(queries, keys, values, scales, 0, scoring, dtype)
    return out.unsqueeze(0)


def _stored(values: Tensor, cache: Format) -> tuple[Tensor, Tensor | None]:
    """Values as a cache has them, and their scales where it has some."""
    if not cache.is_scaled:
        return _round(values, cache), None
    stored = round_to_int8(values, cache.block)
    return stored.values.float(), stored.scales.squeeze(-1)


def _round(values: Tensor, form: Format) -> Tensor:
    """Values [..., K] as a format holds them, float32.

    Where it is float32, what is lost are the last digits of sums of K products, each of which is
    rounded: as much as if each product had log2(K) / 2 digits less. Functions such as exp and tanh
    lose about half a digit more.
    """
    if form.is_scaled:
        return round_to(values, form).dequantize()
    if form != FLOAT32:
        return values.to(TORCH_DTYPES[form.dtype]).float()
    lost = max(1.0, math.log2(values.shape[-1]) / 2 + FUNCTIONS)
    large = values * (2.0**lost + 1)  # Dekker's way to leave so many digits off
    kept: Tensor = large - (large - values)
    return kept
