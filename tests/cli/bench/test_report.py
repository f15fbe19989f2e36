"""What `ingot bench` prints of measurements that are made up: figures to check by hand."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ingot.artifact.cost import Cost
from ingot.artifact.host import processor_name
from ingot.artifact.plan import Plan
from ingot.cli.bench.phases import PhaseResult, Trace, decode, prefill
from ingot.cli.bench.report import as_object, kernel_rows, kernels_text, text
from ingot.cli.output import json_text
from ingot.runtime.limits import MachineLimits
from tests.cli.sample_artifact import sample_manifest, sample_plan


def limits(read: float, arithmetic: float) -> MachineLimits:
    return MachineLimits(
        threads=3,
        read_bytes_per_second=read,
        operations_per_second={"float32": arithmetic, "int8": 4 * arithmetic},
    )


def result(**changed: object) -> PhaseResult:
    """The limits of its rounds allow 0.26, 0.4 and 0.8 ms; it has 6.5, 40 and 40 % of them."""
    measured = PhaseResult(
        phase=decode(2, 8),
        cost=Cost(weight_bytes=2_000_000, kv_bytes=600_000, operations={"float32": 400_000_000}),
        tokens=2,
        round_seconds=[0.004, 0.001, 0.002],
        round_limits=[limits(1e10, 2e12), limits(8e9, 1e12), limits(9e9, 5e11)],
    )
    return replace(measured, **changed)


def cells(shown: str) -> list[list[str]]:
    """The columns of each line."""
    return [re.split("  +", line.strip()) for line in shown.splitlines() if line]


def artifact(plan: Plan | None = None) -> SimpleNamespace:
    manifest = sample_manifest()
    return SimpleNamespace(
        path="m.ingot", manifest=manifest, target=manifest.targets[0], plan=plan or sample_plan()
    )


def test_figures_are_medians_beside_the_limits_of_their_rounds():
    found = result()
    assert (found.seconds, found.tokens_per_second) == (0.002, 1000)
    assert found.share == pytest.approx(0.4)
    assert found.limits == limits(1e10, 2e12)
    assert found.bound == "memory"
    more = replace(found.cost, operations={"float32": 600_000_000})
    assert result(cost=more).bound == "arithmetic"


def test_text_has_the_best_limits_and_a_line_a_phase():
    slow = result(phase=prefill(20), tokens=20, round_limits=[limits(2e10, 1e12)] * 3)
    assert cells(text(artifact(), [result(), slow])) == [
        ["m.ingot: float32 on cpu:portable, 3 threads"],
        ["reads", "20.0 GB/s"],
        ["computes", "float32 2.00 TOP/s, int8 8.00 TOP/s"],
        ["phase", "tok/s", "GB/s", "TOP/s", "of limit", "bound by", "a step"],
        ["decode 2 at once, context 8", "1000.0", "1.3", "0.200", "40 %", "memory",
         "2 ms, 2.60 MB"],
        ["prefill 20", "10000.0", "1.3", "0.200", "20 %", "arithmetic", "2 ms, 2.60 MB"],
    ]  # fmt: skip


def timed() -> tuple[Plan, PhaseResult]:
    """A lookup, and a product in each of two layers."""
    plan = sample_plan()
    lookup, _, product = plan.instructions
    layers = [replace(product, origin=f"layers.{n}.mlp") for n in (0, 11)]
    return replace(plan, instructions=(lookup, *layers)), result(
        traces=[
            Trace(limits(1e10 * n, 1e12), [0.001 * n, 0.003 * n, 0.004 * n]) for n in (1, 2, 1)
        ],
        kernel_costs=[
            Cost(weight_bytes=32),
            Cost(weight_bytes=10_000_000, operations={"float32": 1_000_000}),
            Cost(weight_bytes=20_000_000, operations={"float32": 3_000_000}),
        ],
    )


def test_kernels_of_all_layers_are_a_line_and_the_slowest_is_first():
    plan, found = timed()
    product, lookup = kernel_rows(plan, found)
    assert (product.kernel, product.origin, product.count) == ("linear", "layers.*.mlp", 2)
    assert product.seconds == pytest.approx(0.007)
    assert product.cost == Cost(weight_bytes=30_000_000, operations={"float32": 4_000_000})
    assert product.share == pytest.approx(0.003 / 0.007), "by the limits of its own round"
    assert (lookup.kernel, lookup.count, lookup.share) == ("embedding", 1, None)
    assert cells(kernels_text(plan, found)) == [
        ["decode 2 at once, context 8: 8 ms in 3 kernels"],
        ["kernel", "from", "count", "ms", "% of step", "MB", "GOP", "% of limit"],
        ["linear", "layers.*.mlp", "2", "7.000", "87.5", "30.00", "0.004", "43"],
        ["embedding", "embed", "1", "1.000", "12.5", "0.00", "0.000", "-"],
    ]


def test_an_object_has_every_figure():
    plan, found = timed()
    made = json.loads(json_text(as_object(artifact(plan), [found, result()])))
    phase, untimed = made.pop("phases")
    assert made.pop("limits")["read_bytes_per_second"] == 1e10
    assert made == {
        "artifact": "m.ingot", "model": "sample", "dtype": "float32", "quantization": "none",
        "kv_dtype": "", "target": "cpu:portable", "digest": "", "processor": processor_name(),
    }  # fmt: skip
    assert [kernel["count"] for kernel in phase.pop("by_kernel")] == [2, 1]
    kernels = [(k["kernel"], k["seconds"], k["cost"]["weight_bytes"]) for k in phase.pop("kernels")]
    assert kernels == [
        ("embedding", 0.001, 32), ("linear", 0.003, 10_000_000), ("linear", 0.004, 20_000_000),
    ]  # fmt: skip
    assert phase == untimed
    assert phase.pop("limits")["operations_per_second"] == {"float32": 2e12, "int8": 8e12}
    assert phase.pop("limit_seconds") == pytest.approx(0.0008)
    assert phase.pop("share") == pytest.approx(0.4)
    assert phase == {
        "name": "decode 2 at once, context 8", "sequences": 2, "prompt_tokens": 8, "tokens": 2,
        "seconds": 0.002, "round_seconds": [0.004, 0.001, 0.002], "tokens_per_second": 1000,
        "weight_bytes": 2_000_000, "kv_bytes": 600_000, "operations": {"float32": 400_000_000},
        "bound": "memory",
    }  # fmt: skip


def test_a_phase_says_how_long_its_sequences_become():
    assert (decode(1, 8).tokens(2), prefill(20).tokens(9)) == (8 + 2 * 2 * 8 + 1, 21)
    assert [phase.name for phase in (decode(1, 8), prefill(20))] == [
        "decode context 8", "prefill 20",
    ]  # fmt: skip
