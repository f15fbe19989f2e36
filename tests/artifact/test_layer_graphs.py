"""Edits give back the lines that they were made of, and the file says no more than that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.artifact.layer_graphs import (
    Edit,
    LayerGraph,
    LayerGraphs,
    Stage,
    decode_layers,
    edited,
    edits_between,
    encode_layers,
)
from ingot.errors import ArtifactError

LINES = st.lists(st.sampled_from("abcd"), max_size=12)
EXPORTED = ("x = one()", "y = two(x)", "z = three(y)")


def sample() -> LayerGraphs:
    """A layer of three lines; the second stage makes one of the last two."""
    fused = Edit(first=1, removed=2, added=("z = both(x)",))
    stages = (
        Stage(name="export", edits=edits_between((), EXPORTED)),
        Stage(name="fuse", edits=(fused,)),
    )
    return LayerGraphs(layers=(LayerGraph(layer="layers.0", alike=(0, 1), stages=stages),))


@given(LINES, LINES)
def test_edits_make_one_list_of_the_other(before: list[str], after: list[str]) -> None:
    edits = edits_between(before, after)
    assert edited(before, edits) == after
    assert (edits == ()) == (before == after)


def test_the_graphs_of_a_layer_are_those_after_each_stage() -> None:
    (layer,) = sample().layers
    assert list(layer.graphs()) == [
        ("export", list(EXPORTED)),
        ("fuse", ["x = one()", "z = both(x)"]),
    ]


def test_the_file_is_text_of_short_lines_and_comes_back() -> None:
    data = encode_layers(sample())
    assert decode_layers(data) == sample()
    assert '"z = both(x)"' in data.decode()
    assert max(map(len, data.decode().splitlines())) < 40


@pytest.mark.parametrize("data", [b"", b"[]", b'{"layers": [{"layer": "a"}]}', b"\xff"])
def test_what_is_no_such_file_is_refused(data: bytes) -> None:
    with pytest.raises(ArtifactError, match=r"^layers\.json: "):
        decode_layers(data)


def test_an_edit_by_hand_is_refused() -> None:
    data = encode_layers(sample())
    with pytest.raises(ArtifactError, match="not what ingot writes"):
        decode_layers(data.replace(b"\n ", b"\n  ", 1))
    other = replace(sample(), layers=())
    assert encode_layers(other) != data
