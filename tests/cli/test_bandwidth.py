from __future__ import annotations

from dataclasses import replace

from ingot.artifact.plan import Buffer
from ingot.cli.bandwidth import decode_bytes, read_bandwidth
from tests.cli.sample_artifact import sample_plan


def test_a_tied_embedding_is_read_by_the_head():
    assert decode_bytes(sample_plan()) == 4 * (48 * 8 + 8)


def test_gathered_rows_of_an_embedding_are_not_counted():
    plan = sample_plan()
    embedding, *others = plan.instructions
    table = Buffer(name="table", dtype="bfloat16", shape=(1000, 8), kind="weight")
    untied = replace(embedding, inputs={**embedding.inputs, "weight": "table"})
    apart = replace(plan, buffers=(*plan.buffers, table), instructions=(untied, *others))
    assert decode_bytes(apart) == decode_bytes(plan)


def test_a_bandwidth_is_measured_for_any_size():
    assert read_bandwidth(1, rounds=1) > 0
