"""The inputs of a step, laid out by hand."""

from __future__ import annotations

import torch

from ingot.artifact.programs import STEP
from ingot.ops.steps import paged_step, step_inputs


def test_a_step_says_where_every_token_stands_and_lies():
    step = step_inputs([[7, 8, 9], [5], [3, 2]], [0, 4, 6], [[2], [4, 1, 9], [0, 3]], 4)
    assert {name: x.tolist() for name, x in step.items()} == {
        "tokens": [7, 8, 9, 5, 3, 2],
        "positions": [0, 1, 2, 4, 6, 7],
        "slots": [8, 9, 10, 4, 14, 15],
        "spans": [[0, 3, 0], [3, 4, 4], [4, 6, 6]],
        "page_table": [[2, 0, 0], [4, 1, 9], [0, 3, 0]],
        "records": [0, 1, 2],
        "logit_rows": [0, 1, 2, 3, 4, 5],
    }
    assert step.keys() == {array.name for array in STEP.inputs}
    assert {x.dtype for x in step.values()} == {torch.int32}


def test_a_step_of_nothing_has_no_tokens():
    step = step_inputs([], [], [], 4)
    assert {x.numel() for x in step.values()} == {0}


def test_pages_are_no_ones_twice_and_in_no_order():
    sequences = [(1, 41), (7, 7), (1, 16), (5, 23)]
    step, num_pages = paged_step(torch.Generator().manual_seed(0), sequences, 8)
    assert num_pages == 6 + 1 + 2 + 3 + 1  # one is nobody's
    assert step["tokens"].tolist() == [0] * 14
    assert step["spans"].tolist() == [[0, 1, 40], [1, 8, 0], [8, 9, 15], [9, 14, 18]]
    rows = step["page_table"].tolist()
    pages = [p for row, count in zip(rows, (6, 1, 2, 3), strict=True) for p in row[:count]]
    assert len({*pages}) == 12 and {*pages} < set(range(13))
    assert pages != sorted(pages) and pages != sorted(pages, reverse=True)
    last = rows[0][5] * 8 + 40 % 8
    assert step["slots"][0] == last
