"""The runner: counts, invariants, verification and dumps, each with a negative control."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ingot.artifact.formats import Storage
from ingot.artifact.manifest import LedgerEntry
from ingot.errors import InternalError, PassError, UsageError
from ingot.passes.graph import aten, call, op_calls
from ingot.passes.pipeline import PIPELINE, pipeline
from ingot.passes.runner import run
from ingot.passes.step import Step
from ingot.passes.verify import INVARIANTS, canonical_views, only_known_ops
from tests.passes import cases
from tests.passes.support import TARGET, Facts, before, lab, rms, step

torch.set_num_threads(1)


def idle(gm, *, target):
    """Does nothing."""
    return 0


def scale_a_weight(gm, *, target):
    """Moves every number a little."""
    node = op_calls(gm, "linear")[0]
    with gm.graph.inserting_after(node):
        new = call(gm.graph, aten.mul.Tensor, node, 1.001, like=node)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return 1


def forget_an_operand(gm, *, target):
    """Builds a graph that no longer makes sense."""
    gm.graph.find_nodes(op="placeholder")[0].append(gm.graph.output_node())
    return 1


def fail(gm, *, target):
    """Fails."""
    raise KeyError("val")


def leave_a_chunk(gm, *, target):
    """Writes a view that is not canonical."""
    node = op_calls(gm, "linear")[0]
    with gm.graph.inserting_after(node):
        new = call(gm.graph, aten.view.default, node, [1, -1, 24], like=node)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return 1


def graph(body=cases.swiglu):
    return before(lab(body), "fuse_silu_mul")


def test_verification_names_the_pass_that_moved_the_numbers():
    steps = [step("fuse_silu_mul"), Step(function=scale_a_weight), step("lower_activations")]
    with pytest.raises(PassError, match=r"scale_a_weight: moved the logits by .*e-0") as caught:
        run(graph(), steps, Facts(), target=TARGET, verify=True)
    assert caught.value.pass_name == "scale_a_weight"
    run(graph(), steps, Facts(), target=TARGET)  # without verification nobody notices


def test_tolerance_of_a_numeric_step_is_used():
    loose = Step(function=scale_a_weight, tier="numeric", tolerance=1e-2)
    run(graph(), [loose], Facts(), target=TARGET, verify=True)
    with pytest.raises(PassError, match="at most 1e-05"):
        run(graph(), [replace(loose, tolerance=1e-5)], Facts(), target=TARGET, verify=True)


def test_numbers_that_are_not_finite_are_refused():
    def poison(gm, *, target):
        node = op_calls(gm, "linear")[0]
        node.replace_input_with(node.args[0], node.args[0])
        with gm.graph.inserting_after(node):
            new = call(gm.graph, aten.mul.Tensor, node, float("nan"), like=node)
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        return 1

    with pytest.raises(PassError, match="by nan"):
        run(graph(), [Step(function=poison, tolerance=1.0)], Facts(), target=TARGET, verify=True)


@pytest.mark.parametrize("expected", [1, 3])
def test_a_wrong_count_is_an_error_either_way(expected):
    wrong = replace(step("fuse_silu_mul"), expect=lambda facts: expected)
    with pytest.raises(PassError, match=f"matched 2 times, the model must have {expected}"):
        run(graph(), [wrong], Facts(), target=TARGET)


def test_a_missing_fusion_shows_the_nearest_miss_and_its_module():
    def body(lab, x, positions):
        return rms(x, lab.w) + cases.norm_of_sum(lab, x, positions)

    missing = replace(step("fuse_rms_norm"), expect=lambda facts: 2)
    with pytest.raises(PassError) as caught:
        run(before(lab(body), "fuse_rms_norm"), [missing], Facts(), target=TARGET)
    text = str(caught.value)
    assert "fuse_rms_norm: matched 1 times, the model must have 2" in text
    assert "at part:" in text and "aten.rsqrt(" in text and "aten.add(" in text


def test_a_missing_fusion_without_any_trace_says_so():
    missing = replace(step("fuse_rms_norm"), expect=lambda facts: 1)
    with pytest.raises(PassError, match="Nothing in the graph resembles"):
        run(graph(), [missing], Facts(), target=TARGET)


def test_a_broken_invariant_names_the_pass_and_the_node():
    steps = [Step(function=idle, gives=(canonical_views,)), Step(function=leave_a_chunk)]
    with pytest.raises(PassError, match="leave_a_chunk: after it, canonical_views") as caught:
        run(graph(), steps, Facts(), target=TARGET)
    assert "aten.view.default at gate" in str(caught.value)


def test_a_need_is_checked_before_the_pass():
    def body(lab, x, positions):
        return F.relu(x).sum(0, keepdim=True)

    steps = [Step(function=idle, needs=(only_known_ops,))]
    with pytest.raises(PassError, match="idle: before it, only_known_ops") as caught:
        run(before(lab(body), "rewrite_attention"), steps, Facts(), target=TARGET)
    assert "aten.sum.dim_IntList at part" in str(caught.value)


@pytest.mark.parametrize("function", [fail, forget_an_operand])
def test_a_pass_that_breaks_is_our_fault_and_named(function):
    with pytest.raises(InternalError, match=f"pass {function.__name__} failed"):
        run(graph(), [Step(function=function)], Facts(), target=TARGET)


def test_ledger_and_progress():
    seen = []
    steps = [replace(step("fuse_silu_mul"), expect=lambda facts: 2), step("lower_activations")]
    ledger = run(graph(), steps, Facts(), target=TARGET, progress=lambda *call: seen.append(call))
    assert ledger == (
        LedgerEntry(name="fuse_silu_mul", tier="exact", expected=2, matched=2),
        LedgerEntry(name="lower_activations", tier="exact", expected=None, matched=0),
    )
    assert seen == [("passes", "fuse_silu_mul", 0.0), ("passes", "lower_activations", 0.5)]


def test_dump_writes_what_changed_and_a_summary(tmp_path):
    steps = [Step(function=idle), step("fuse_silu_mul")]
    run(graph(), steps, Facts(), target=TARGET, dump_dir=tmp_path / "new" / "dump")
    folder = tmp_path / "new" / "dump"
    assert sorted(p.name for p in folder.iterdir()) == [
        "00_export.txt",
        "02_fuse_silu_mul.txt",
        "summary.txt",
    ]
    line = "float32[1, N, 24]           silu_mul = silu_mul(linear, linear_1)  # part\n"
    assert line in (folder / "02_fuse_silu_mul.txt").read_text()
    summary = (folder / "summary.txt").read_text().splitlines()
    assert summary[1].startswith("idle ") and summary[1].endswith("0  (unchanged)")
    assert summary[2].endswith("aten.mul 2 -> 0; aten.silu 2 -> 0; silu_mul 0 -> 2")


def test_options_are_checked():
    names = [s.name for s in PIPELINE]
    integers = {"quantize": {"w": Storage(4, 32)}, "kv_dtype": "int8"}
    assert [s.name for s in pipeline(dtype="bfloat16", **integers)] == names
    linears, caches = {"quantize_linears", "fuse_quantize"}, {"quantize_caches"}
    for option, own, others in (("quantize", linears, caches), ("kv_dtype", caches, linears)):
        found = [s.name for s in pipeline(dtype="bfloat16", **{option: integers[option]})]
        assert found == [n for n in names if n not in others] and own <= set(found)
    names = [n for n in names if n not in linears | caches]
    assert [s.name for s in pipeline(dtype="bfloat16")] == names
    assert [s.name for s in pipeline()] == [n for n in names if n != "lower_dtypes"]
    assert "merge_linears" not in [s.name for s in pipeline(disable=("merge_linears",))]
    for options in ({"dtype": "int8"}, {"disable": ("fuse_x",)}, {"disable": ("fuse_rope",)}):
        with pytest.raises(UsageError):
            pipeline(**options)


def test_there_are_few_invariants_and_all_are_used():
    used = {i for s in PIPELINE for i in (*s.needs, *s.gives)}
    assert used == set(INVARIANTS) and len(INVARIANTS) <= 8
