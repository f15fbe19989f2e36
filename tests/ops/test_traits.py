"""Traits are true by experiment: what a row of a result depends on is found by changing rows."""

from __future__ import annotations

import copy
import inspect
from typing import Any

import pytest
import torch
from torch import Tensor

from ingot.artifact.traits import TRAITS, WEIGHTS, Role
from ingot.ops import OPS
from ingot.ops.registry import Op
from tests.ops.sample_inputs import SAMPLES

# Rows lie along the second dimension of what has the plain module's batch of one; a bare input of
# the step has them along the first.
STEP_ARRAYS = ("rows", "slots", "spans", "page_table", "records")
BY_RECORDS = ("token_shift", "short_conv", "recurrence", "selective_scan")
# Vectors with a row for each column: of a tap, and of an element of a record.
ROWS_OF_COLUMNS = (("short_conv", "weight"), ("selective_scan", "rate"))


def every(*roles: Role) -> list[Any]:
    """(op, argument) for every argument with one of these roles."""
    return [
        pytest.param(op, name, id=f"{op.name}-{name}")
        for op in OPS.values()
        for name in op.traits.arguments(*roles)
    ]


def read_by_all(*roles: Role) -> list[Any]:
    """The same without the bias of a router, which moves only what a row picks, and without buckets
    of distances, which not all rows have."""
    found = [each for each in every(*roles) if each.values[0].name != "route"]
    return [each for each in found if each.values[1] != "buckets"]


def calls(op: Op, argument: str) -> list[dict[str, Any]]:
    """The samples that give this argument and have several rows."""
    found = []
    for kwargs in SAMPLES[op.name](torch.Generator().manual_seed(1)):
        own = op.traits.multiplied
        if kwargs.get(argument) is not None and num_rows(own, kwargs[own]) > 1:
            found.append(kwargs)
    assert found, "a sample of several rows"
    return found


def num_rows(name: str, value: Tensor) -> int:
    return value.shape[0 if name in STEP_ARRAYS else 1]


def result(op: Op, kwargs: dict[str, Any]) -> Tensor:
    """What a call makes, rows first: its result, or all that it has written."""
    kwargs = copy.deepcopy(kwargs)
    out = op.reference(**kwargs)
    if out is not None:
        return out[0]
    written = [kwargs[name] for name in op.traits.mutates if kwargs[name] is not None]
    pages = [pages.transpose(1, 2).flatten(0, 1) for pages in written]
    return torch.stack(pages, 1)


def changed_rows(op: Op, kwargs: dict[str, Any], argument: str, changed: Tensor) -> set[int]:
    """The rows of the result that are others where an argument is."""
    before, after = result(op, kwargs), result(op, kwargs | {argument: changed})
    same = before.eq(after) | (before.isnan() & after.isnan())
    return set((~same.flatten(1).all(1)).nonzero().flatten().tolist())


def with_row(name: str, value: Tensor, row: int) -> Tensor:
    """The same values but for one row."""
    changed = value.clone()
    at = changed if name in STEP_ARRAYS else changed[0]
    if changed.is_floating_point():
        at[row] = at[row] * -1.5 + 1
    else:
        at[row] = (at[row] + 1).clamp(min=0)
    return changed


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_roles_are_those_of_the_tensors_of_the_reference(op):
    annotations = {n: p.annotation for n, p in op.signature.parameters.items()}
    tensors = [n for n, a in annotations.items() if "Tensor" in str(a) or "Operand" in str(a)]
    assert set(op.traits.roles) == set(tensors)


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_results_and_arguments_have_different_names(op):
    """Plans look operands up by name, arguments and results alike."""
    assert not set(op.traits.outputs) & op.signature.parameters.keys()


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_the_rows_of_a_result_are_those_of_its_own_arguments(op):
    """Lowering and targets take the number of rows from the first of them."""
    own = op.traits.arguments(Role.OWN, Role.PRECEDING)
    assert own
    for kwargs in SAMPLES[op.name](torch.Generator().manual_seed(1)):
        given = {name: kwargs.get(name) for name in own}
        rows = {num_rows(name, value) for name, value in given.items() if value is not None}
        assert len(rows) == 1
        if op.traits.outputs:
            assert result(op, kwargs).shape[0] == rows.pop()


@pytest.mark.parametrize("op, argument", every(Role.OWN))
def test_a_row_of_an_own_argument_reaches_that_row_alone(op, argument):
    for kwargs in calls(op, argument):
        value = kwargs[argument]
        for row in {0, num_rows(argument, value) // 2, num_rows(argument, value) - 1}:
            moved = changed_rows(op, kwargs, argument, with_row(argument, value, row))
            if op.traits.outputs:
                assert moved <= {row}
            else:
                assert len(moved) <= 2  # where the row went, and where it goes now


def sequences_of(kwargs: dict[str, Any], rows: int) -> list[tuple[range, int | None]]:
    """The rows of each sequence of a call, and where its record lies, if it has one."""
    if kwargs.get("records") is None:
        return [(range(rows), None)]
    places = zip(kwargs["spans"].tolist(), kwargs["records"].tolist(), strict=True)
    return [(range(begin, end), slot) for (begin, end, _), slot in places]


@pytest.mark.parametrize("op, argument", every(Role.PRECEDING))
def test_a_row_of_a_preceding_argument_reaches_no_row_before_it_and_no_other_sequence(op, argument):
    """Of every argument some row reaches another: such an op is no op of rows."""
    further = 0
    for kwargs in calls(op, argument):
        value = kwargs[argument]
        for rows, slot in sequences_of(kwargs, num_rows(argument, value)):
            for row in rows:
                other = with_row(argument, value, row)
                moved = changed_rows(op, kwargs, argument, other)
                assert moved <= {r for r in rows if r >= row}
                assert changed_records(op, kwargs, argument, other) <= {slot}
                further += len(moved - {row})
    alone = (op.name, argument) == ("recurrence", "q")  # what a token reads with, it does not leave
    alone |= (op.name, argument) == ("selective_scan", "c")
    assert (further == 0) == alone


def changed_records(op: Op, kwargs: dict[str, Any], argument: str, changed: Tensor) -> set[int]:
    """The slots where a call leaves other records if an argument is another."""
    left = []
    for given in (kwargs, kwargs | {argument: changed}):
        given = copy.deepcopy(given)
        op.reference(**given)
        left.append([given[name] for name in op.traits.mutates if given.get(name) is not None])
    return {
        slot
        for before, after in zip(*left, strict=True)
        for slot in (before != after).flatten(1).any(1).nonzero().flatten().tolist()
    }


@pytest.mark.parametrize("name", BY_RECORDS)
def test_a_record_reaches_the_rows_of_its_sequence_where_that_goes_on(name):
    op = OPS[name]
    (state,) = op.traits.mutates
    reached = set()
    for kwargs in calls(op, state):
        goes_on = kwargs["spans"][:, 2] > 0
        sequences = sequences_of(kwargs, int(kwargs["spans"][:, 1].max()))
        for (rows, slot), later in zip(sequences, goes_on.tolist(), strict=True):
            changed = kwargs[state].clone()
            changed[slot] += 1.0
            moved = changed_rows(op, kwargs, state, changed)
            assert moved <= {*rows} and (later or not moved)
            assert bool(moved) == (later and len(rows) > 0)
            reached |= moved
    assert len(reached) > 1


@pytest.mark.parametrize("op, argument", every(Role.OWN))
def test_an_own_argument_is_read(op, argument):
    """The control: a change of every row is seen."""
    for kwargs in calls(op, argument)[:1]:
        value = kwargs[argument]
        changed = value
        for row in range(num_rows(argument, value)):
            changed = with_row(argument, changed, row)
        assert changed_rows(op, kwargs, argument, changed)


@pytest.mark.parametrize("op, argument", every(Role.CHOSEN))
def test_a_row_of_a_chosen_argument_reaches_rows_that_name_it(op, argument):
    """Other rows than its own: such an op is no op of rows."""
    reached = set()
    for kwargs in calls(op, argument):
        for row in range(num_rows(argument, kwargs[argument])):
            changed = with_row(argument, kwargs[argument], row)
            reached |= {(row, out) for out in changed_rows(op, kwargs, argument, changed)}
    assert any(row != out for row, out in reached)


@pytest.mark.parametrize(
    "op", [op for op in OPS.values() if op.traits.attends], ids=lambda o: o.name
)
def test_what_a_sequence_has_left_reaches_rows_of_other_tokens(op):
    """Some argument of the role does; the tables only say where."""
    reached = 0
    for argument in op.traits.arguments(Role.SEQUENCE, Role.SEGMENT):
        for kwargs in calls(op, argument):
            value = kwargs[argument]
            if value.is_floating_point():
                plain = argument in ("k", "v", "k_bias")  # with the batch of one
                for row in range(value.shape[1] if plain else value.shape[0]):
                    changed = value.clone()
                    (changed[0] if plain else changed)[row] += 1.0
                    reached = max(reached, len(changed_rows(op, kwargs, argument, changed)))
    assert reached > 1


@pytest.mark.parametrize("op, argument", read_by_all(*WEIGHTS))
def test_weights_are_shared_by_all_rows(op, argument):
    """Every row reads a weight that is a matrix or a vector, and some rows one that is a table."""
    for kwargs in calls(op, argument):
        value = kwargs[argument]
        role = op.traits.roles[argument]
        rows_of_it = op.traits.stacked or (op.traits.attends and argument == "bias")
        rows_of_it |= (op.name, argument) in ROWS_OF_COLUMNS
        dims = {Role.VECTOR: 2 if rows_of_it else 1, Role.STACK: 3}.get(role, 2)
        assert value.dim() == dims
        other = value.flip(0) if argument == "order" else value * 1.5 + 0.5
        moved = changed_rows(op, kwargs, argument, other)
        rows = set(range(result(op, kwargs).shape[0]))
        # Position 0 turns by no angle, and a record of zeros decays to zeros.
        but_one = op.name in ("rope_table", "selective_scan")
        assert moved == rows or (but_one and len(moved) >= len(rows) - 1)


@pytest.mark.parametrize("op, argument", read_by_all(Role.MATRIX, Role.VECTOR))
def test_a_weight_that_is_read_whole_has_no_row_of_its_own_for_each_token(op, argument):
    for kwargs in calls(op, argument):
        changed = kwargs[argument].clone()
        if op.name == "short_conv":  # the last tap is that of the row itself
            changed[-1] += 1.0
        else:
            changed[0] = changed[-1] if argument == "order" else changed[0] * -1.5 + 1.0
        moved = changed_rows(op, kwargs, argument, changed)
        # Position 0 turns by no angle; of experts' weights only some rows read the first.
        some = 1 if op.traits.stacked else result(op, kwargs).shape[0] - 1
        assert len(moved) >= some


def test_a_table_is_read_by_the_rows_that_name_it():
    op = OPS["embedding"]
    (kwargs,) = calls(op, "weight")[:1]
    tokens = kwargs["tokens"][0].tolist()
    changed = kwargs["weight"].clone()
    changed[tokens[0]] += 1.0
    expected = {row for row, token in enumerate(tokens) if token == tokens[0]}
    assert changed_rows(op, kwargs, "weight", changed) == expected


@pytest.mark.parametrize("op, argument", every(Role.SEGMENT))
def test_a_row_of_a_segment_reaches_all_rows_of_it_and_no_other(op, argument):
    """Where neither a mask nor a window keeps some away."""
    for kwargs in calls(op, argument):
        value = kwargs[argument]
        if not value.is_floating_point():
            continue
        for begin, end, _ in kwargs["spans"].tolist():
            for row in {begin, end - 1} if end > begin else ():
                moved = changed_rows(op, kwargs, argument, with_row(argument, value, row))
                sees = kwargs.get("causal") or kwargs.get("window")
                # With one key, any has all the weight.
                whole = not sees and (argument == "v" or end - begin > 1)
                segment = set(range(begin, end))
                assert moved <= segment
                assert moved == segment or not whole


def test_what_follows_from_the_roles():
    mixers = {"attention", "paged_attention", "segment_attention"}
    by_rows = {name for name, traits in TRAITS.items() if traits.by_rows}
    assert by_rows == TRAITS.keys() - {"select_rows", "pool", "kv_write", *mixers, *BY_RECORDS}
    assert {n for n, traits in TRAITS.items() if traits.meets_tokens} == mixers | {*BY_RECORDS}
    assert {name for name, traits in TRAITS.items() if traits.attends} == mixers
    assert {name: traits.matrix for name, traits in TRAITS.items() if traits.matrix} == {
        "linear": "weight",
        "experts": "gate_up",
        "expert_gate": "weight",
        "expert_sum": "weight",
        "head_linear": "weight",
    }
    stacked = {name for name, traits in TRAITS.items() if traits.stacked}
    assert stacked == {"experts", "expert_gate", "expert_sum"}
    integers = {name for name, traits in TRAITS.items() if traits.integers}
    assert integers == {"linear", "head_linear", "embedding", *stacked}
    assert TRAITS["kv_write"].mutates == ("k_cache", "v_cache")
    written = {name: t.mutates for name, t in TRAITS.items() if t.mutates}
    assert written.keys() == {"kv_write", *BY_RECORDS}
    assert all(len(written[name]) == 1 for name in BY_RECORDS)
    assert not TRAITS["kv_write"].outputs


@pytest.mark.parametrize("op", OPS.values(), ids=OPS)
def test_a_schema_says_what_the_traits_say(op):
    """PyTorch must know of every write, or it removes and reorders calls."""
    written = [a.name for a in op.overload._schema.arguments if a.alias_info is not None]
    assert tuple(written) == op.traits.mutates
    assert len(op.overload._schema.returns) == len(op.traits.outputs)
    assert [a.name for a in op.overload._schema.arguments] == list(
        inspect.signature(op.reference).parameters
    )
