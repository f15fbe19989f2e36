"""Numeric verification: the graph before and after a pass, run by its references.

Weights and inputs are random and small, and depend on names alone, so that the same parameter has
the same values before and after any pass; a stacked parameter is stacked from its sources. A plain
graph is run once a sequence; a graph of a step runs all sequences at once, with pages handed out in
random order.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Interpreter, Node

from ingot.artifact.traits import TRAITS, Role
from ingot.errors import PassError
from ingot.ops.registry import OPS
from ingot.ops.stacks import stack_of
from ingot.ops.steps import paged_step
from ingot.passes.declaration import Pass
from ingot.passes.graph import (
    arguments,
    aten,
    final_users,
    is_op,
    op_calls,
    op_name,
    program_of,
    states_of,
    value,
)
from ingot.passes.weights import sources

LENGTHS = (6, 3)  # tokens of the two sequences
ROWS = (5, 0, 8, 7)  # the rows whose logits a step selects
PAGE_SIZE = 4
KEEP_BYTES = 2 << 30  # weights kept between runs; larger models make theirs anew


class Checker:
    """Holds the logits of the graph as it was, and compares them after every pass.

    `read` gives parameters by name; by default they are random.
    """

    def __init__(self, gm: GraphModule, read: Callable[[str], Tensor] | None = None) -> None:
        self.gm = gm
        self.weights = DrawnWeights(gm)
        self.read = read or self.weights.read
        self.logits, self.before = self._run()

    def check(self, step: Pass) -> None:
        """Run the graph and compare; the new logits are the reference of the next pass.

        Raises:
            PassError: the logits moved by more than the step's tolerance.
        """
        logits, now = self._run()
        reference = self.logits
        if logits.shape != reference.shape:
            reference = reference[list(ROWS)]
        error = relative_error(logits, reference)
        if not error <= step.tolerance and (now.given or now.read):
            steady, _ = self._run(self.before, step.tolerance)
            error = relative_error(steady, reference)
        if not error <= step.tolerance:
            allowed = f"at most {step.tolerance:.0e}" if step.tolerance else "not by one bit"
            raise PassError(
                step.name,
                f"moved the logits by {error:.1e} (relative)",
                hint=f"Allowed: {allowed}.",
            )
        self.logits, self.before = logits, now

    def _run(self, before: Routers | None = None, tolerance: float = 0.0) -> tuple[Tensor, Routers]:
        """Logits, and what routers were given and recurrences have read."""
        routers = Routers()
        if before is not None:
            routers = Routers(before.given, tolerance, read_before=before.read)
        return graph_logits(self.gm, self.read, routers), routers


def graph_logits(gm: GraphModule, read: Callable[[str], Tensor], routers: Routers) -> Tensor:
    """Logits [rows, V] of all sequences."""
    runner = GraphRunner(gm, read, routers)
    with torch.inference_mode():
        outputs = [runner.run(*inputs) for inputs in example_inputs(gm)]
    logits = [out[0] if isinstance(out, (tuple, list)) else out for out in outputs]
    return torch.cat(logits, dim=1)[0].float()


class Routers:
    """Runs the routers of a model, and keeps the logits [1, N, E] that each is given in its turn.

    `before` are those of another run. Rows are steadied by them within the tolerance. A router that
    was given others than now was given those that `rows` are picked from, or is left alone.

    It also keeps what each recurrence reads of its states, and gives what it read before instead
    where that differs by no more than the tolerance. What is read is normalised, so that a row
    where queries hardly meet keys is as large as others, and turns with any rounding.
    """

    def __init__(
        self,
        before: Sequence[Tensor] = (),
        tolerance: float = 0.0,
        rows: Sequence[int] = (),
        read_before: Sequence[Tensor] = (),
    ) -> None:
        self.before, self.tolerance, self.rows = before, tolerance, list(rows)
        self.read_before = read_before
        self.given: list[Tensor] = []
        self.read: list[Tensor] = []

    def run(self, route: Callable[[Tensor], Tensor], logits: Tensor) -> Tensor:
        """The shares of the experts, where `route` makes them of logits."""
        turn = len(self.given)
        self.given.append(logits)
        if turn < len(self.before):
            before = self.before[turn]
            if before.shape != logits.shape:
                before = before[:, self.rows]
            if before.shape == logits.shape:
                logits = steadied(route, logits, before, self.tolerance)
        return route(logits)

    def reference(self, logits: Tensor, **given: Any) -> Tensor:
        """The shares, as the reference of the op makes them."""
        return self.run(lambda each: OPS["route"].reference(each, **given), logits)

    def steady(self, read: Tensor) -> Tensor:
        """What a recurrence reads, or has read before."""
        turn = len(self.read)
        self.read.append(read)
        before = self.read_before[turn] if turn < len(self.read_before) else read
        return before if relative_error(read, before) <= self.tolerance else read


def steadied(
    route: Callable[[Tensor], Tensor], logits: Tensor, before: Tensor, tolerance: float
) -> Tensor:
    """The logits [..., E] to route by.

    Where two experts are nearly equal, rounding may pick the other one, which moves the row by far
    more. So a row that would pick other experts than `before` is routed by its logits of then, if
    these differ from its own by no more than the tolerance.
    """
    near = (logits - before).norm(dim=-1) <= tolerance * before.norm(dim=-1)
    others = ((route(logits) != 0) != (route(before) != 0)).any(-1)
    return torch.where((near & others)[..., None], before, logits)


def relative_error(got: Tensor, reference: Tensor) -> float:
    """|got - reference| / |reference|; infinite where shapes differ."""
    if got.shape != reference.shape:
        return float("inf")
    return float((got - reference).norm() / reference.norm())


def example_inputs(gm: GraphModule) -> list[tuple[Tensor, ...]]:
    """The inputs of every run: one a sequence for a plain graph, one in all for a step."""
    states, nodes = states_of(gm), gm.graph.find_nodes(op="placeholder")
    tokens = random_tokens(gm)
    if "spans" not in [node.name for node in nodes]:
        positions = torch.cat([torch.arange(n) for n in LENGTHS])[None]
        parts = (torch.split(x, list(LENGTHS), 1) for x in (tokens, positions))
        return list(zip(*parts, strict=True))
    rng = torch.Generator().manual_seed(2)
    step, num_pages = paged_step(rng, [(n, n) for n in LENGTHS], PAGE_SIZE)
    known = step | {"tokens": tokens[0]}
    if rows := program_of(gm).rows:
        known[rows.name] = torch.tensor(ROWS)
    known |= {array.name: known[array.name][None] for array in program_of(gm).inputs if array.plain}
    for name, state in states.items():
        _, *shape = state.shape(PAGE_SIZE)
        known[name] = torch.full((num_pages, *map(int, shape)), torch.nan)
    return [tuple(known[node.name].to(value(node).dtype) for node in nodes)]


def random_tokens(gm: GraphModule) -> Tensor:
    """Tokens of the sequences, one after the other: [1, T]."""
    rng = torch.Generator().manual_seed(1)
    return torch.randint(0, vocab_size(gm), (1, sum(LENGTHS)), generator=rng)


def vocab_size(gm: GraphModule) -> int:
    """Rows of the smallest table that ids are looked up in; without one, ids are small."""
    embeddings = gm.graph.find_nodes(op="call_function", target=torch.ops.aten.embedding.default)
    tables = [node.args[0] for node in embeddings]
    for node in gm.graph.nodes:
        if name := op_name(node):
            tables += [arguments(node)[table] for table in TRAITS[name].arguments(Role.TABLE)]
    return min((int(value(table).shape[0]) for table in tables), default=16)


class GraphRunner(Interpreter):
    """Runs a graph of meta parameters on the CPU; `read` gives every parameter by name."""

    def __init__(
        self, gm: GraphModule, read: Callable[[str], Tensor], routers: Routers | None = None
    ) -> None:
        super().__init__(gm)
        self.read, self.routers = read, routers or Routers()
        self.dtypes = {n.target: value(n).dtype for n in gm.graph.find_nodes(op="get_attr")}

    def get_attr(self, target: Any, args: Any, kwargs: Any) -> Tensor:
        assert isinstance(self.module, GraphModule)
        parts = [self.read(name) for name in sources(self.module, target)]
        return torch.cat(parts).to(self.dtypes[target])

    def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
        args, kwargs = ([on_cpu(a) for a in args], {k: on_cpu(v) for k, v in kwargs.items()})
        if target == OPS["route"].overload:
            logits, *others = args
            return self.routers.run(lambda given: target(given, *others, **kwargs), logits)
        result = super().call_function(target, tuple(args), kwargs)
        return self.routers.steady(result) if target == OPS["recurrence"].overload else result


def on_cpu(argument: Any) -> Any:
    """Devices that the export noted down are meta."""
    return torch.device("cpu") if isinstance(argument, torch.device) else argument


class DrawnWeights:
    """Random values for every parameter and constant of a graph, by name."""

    def __init__(self, gm: GraphModule) -> None:
        tensors = (*gm.named_parameters(remove_duplicate=False), *gm.named_buffers())
        self.shapes = {name: tuple(tensor.shape) for name, tensor in tensors}
        self.constants = {name for name, _ in gm.named_buffers()}
        self.taps = read_as(gm, "short_conv", "weight")
        self.norms = read_as(gm, "rms_norm", "weight")
        self.rates = read_as(gm, "scale", "weight", is_rate) | read_as(gm, "selective_scan", "rate")
        self.kept: dict[str, Tensor] = {}
        self.kept_bytes = 0

    def read(self, name: str) -> Tensor:
        """The values of one parameter, or of one matrix of a stack, float32."""
        if name not in self.shapes:
            stack, index = stack_of(name)
            return self.read(stack)[index]
        if name not in self.kept:
            made = self.make(name)
            self.kept_bytes += made.nbytes
            if self.kept_bytes > KEEP_BYTES:
                return made
            self.kept[name] = made
        return self.kept[name]

    def make(self, name: str) -> Tensor:
        """Matrices keep variance, norm weights lie around one, constants between 0 and 1.

        A norm with a constant weight gives rows of a length of at most one, and states decay: else
        they would grow from token to token.
        """
        rng = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        shape = self.shapes[name]
        if name in self.constants:
            unit = shape[-1] ** -0.5 if name in self.norms else 1.0
            return torch.rand(shape, generator=rng).mul_(unit)
        values: Tensor = torch.randn(shape, generator=rng)
        if name in self.rates:
            return values.abs_().neg_()
        if len(shape) > 1:
            return values.div_(shape[0 if name in self.taps else -1] ** 0.5)
        return values.mul_(0.1).add_(0.0 if name.endswith("bias") else 1.0)


def read_as(
    gm: GraphModule, op: str, argument: str, where: Callable[[Node], bool] = lambda node: True
) -> set[str]:
    """The names of the parameters and constants that such calls of an op have as that argument."""
    given = (arguments(node)[argument] for node in op_calls(gm, op) if where(node))
    return {str(each.target) for each in given if each.op == "get_attr"}


def is_rate(node: Node) -> bool:
    """Tells whether what a call gives is a decay of states."""
    return any(
        is_op(user, "recurrence") and arguments(user)["decay"] is x
        for user, x in final_users(node, aten.reshape.default, aten.view.default)
    )
