"""What a summary says of each matrix."""

from __future__ import annotations

import pytest

from ingot.artifact.formats import Format, Storage
from ingot.artifact.matrices import in_words, stored_matrices


@pytest.mark.parametrize(
    ("storage", "columns", "words"),
    [
        (Storage(8, 128), 576, "int8, 4 groups of 128 and one of 64"),
        (Storage(8, 128), 1024, "int8, 8 groups of 128"),
        (Storage(8, 128), 228, "int8, one group of 128 and one of 100"),
        (Storage(8, 128), 100, "int8, one scale a row"),
        (Storage(8, 0), 577, "int8, one scale a row"),
        (Storage(4, 32), 36, "int4, one group of 32 and one of 4"),
        (Storage(4, 32), 20, "int4, one group of 20"),
        (Storage(4, 128), 1000, "int4, 7 groups of 128 and one of 104"),
    ],
)
def test_words(storage: Storage, columns: int, words: str) -> None:
    assert in_words(storage.of(columns), (3, columns)) == words


def test_matrices_that_differ_in_the_number_of_their_layer_are_one() -> None:
    form, plain = Storage(8, 128).of(576), Format("bfloat16")
    found = stored_matrices(
        [
            ("model.embed.weight", (100, 576), form),
            *((f"model.layers.{i}.mlp.up.weight", (1000, 576), form) for i in range(12)),
            ("model.layers.12.mlp.up.weight", (1000, 576), plain),
        ]
    )
    assert [(each.name, each.count, each.shape) for each in found] == [
        ("model.embed", 1, (100, 576)),
        ("model.layers.*.mlp.up", 12, (1000, 576)),
        ("model.layers.*.mlp.up", 1, (1000, 576)),
    ]
    assert found[2].stored == "bfloat16"


def test_nothing_is_said_where_nothing_is_in_integers() -> None:
    assert stored_matrices([("a.weight", (3, 4), Format("float32"))]) == ()
