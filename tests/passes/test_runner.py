"""The runner: counts, invariants, verification and dumps, each with a negative control."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ingot.artifact.manifest import LedgerEntry
from ingot.errors import InternalError, PassError, UsageError
from ingot.passes.declaration import Pass
from ingot.passes.graph import aten, call, op_calls
from ingot.passes.invariants import INVARIANTS, canonical_views, only_known_ops
from ingot.passes.pipeline import PIPELINE, check_disabled, optional_passes, pipeline
from ingot.passes.runner import run
from tests.passes import cases
from tests.passes.support import before, lab, rms, step

torch.set_num_threads(1)


def idle(gm):
    """Does nothing."""
    return 0


def scale_a_weight(gm):
    """Moves every number a little."""
    node = op_calls(gm, "linear")[0]
    with gm.graph.inserting_after(node):
        new = call(gm.graph, aten.mul.Tensor, node, 1.001, like=node)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return 1


def forget_an_operand(gm):
    """Builds a graph that no longer makes sense."""
    gm.graph.find_nodes(op="placeholder")[0].append(gm.graph.output_node())
    return 1


def fail(gm):
    """Fails."""
    raise KeyError("val")


def leave_a_chunk(gm):
    """Writes a view that is not canonical."""
    node = op_calls(gm, "linear")[0]
    with gm.graph.inserting_after(node):
        new = call(gm.graph, aten.view.default, node, [1, -1, 24], like=node)
    node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
    return 1


def graph(body=cases.swiglu):
    return before(lab(body), "fuse_gates")


def test_verification_names_the_pass_that_moved_the_numbers():
    steps = [step("fuse_gates"), Pass(function=scale_a_weight), step("lower_activations")]
    with pytest.raises(PassError, match=r"scale_a_weight: moved the logits by .*e-0") as caught:
        run(graph(), steps, {}, verify=True)
    assert caught.value.pass_name == "scale_a_weight"
    run(graph(), steps, {})  # without verification nobody notices


def test_tolerance_of_a_numeric_step_is_used():
    loose = Pass(function=scale_a_weight, tier="numeric", tolerance=1e-2)
    run(graph(), [loose], {}, verify=True)
    with pytest.raises(PassError, match="at most 1e-05"):
        run(graph(), [replace(loose, tolerance=1e-5)], {}, verify=True)


def test_numbers_that_are_not_finite_are_refused():
    def poison(gm):
        node = op_calls(gm, "linear")[0]
        node.replace_input_with(node.args[0], node.args[0])
        with gm.graph.inserting_after(node):
            new = call(gm.graph, aten.mul.Tensor, node, float("nan"), like=node)
        node.replace_all_uses_with(new, delete_user_cb=lambda user: user is not new)
        return 1

    with pytest.raises(PassError, match="by nan"):
        run(graph(), [Pass(function=poison, tolerance=1.0)], {}, verify=True)


def test_too_few_matches_are_an_error():
    expecting = replace(step("fuse_gates"), expect="gate")
    found = "fuse_gates: matched 2 times, but the model has 3 places for it\nNothing in the graph"
    with pytest.raises(PassError, match=found):
        run(graph(), [expecting], {"gate": 3})


def test_too_many_matches_are_an_error_in_words_of_their_own():
    expecting = replace(step("fuse_gates"), expect="gate")
    found = (
        "fuse_gates: matched 2 times, but the model's blocks account for 1\nA block computes more"
    )
    with pytest.raises(PassError, match=found):
        run(graph(), [expecting], {"gate": 1})


def test_what_no_block_becomes_must_not_be_found():
    expecting = replace(step("fuse_gates"), expect="gate")
    with pytest.raises(PassError, match="account for 0"):
        run(graph(), [expecting], {"linear": 2})


def test_a_number_is_expected_whatever_the_model_is():
    with pytest.raises(PassError, match="the model has 3 places"):
        run(graph(), [replace(step("fuse_gates"), expect=3)], {"gate": 2})


def test_a_missing_fusion_shows_the_nearest_miss_and_its_module():
    def body(lab, x, positions):
        return rms(x, lab.w) + cases.norm_of_sum(lab, x, positions)

    missing = replace(step("fuse_rms_norm"), expect="rms_norm")
    with pytest.raises(PassError) as caught:
        run(before(lab(body), "fuse_rms_norm"), [missing], {"rms_norm": 2})
    text = str(caught.value)
    assert "fuse_rms_norm: matched 1 times, but the model has 2 places for it" in text
    assert "at part:" in text and "aten.rsqrt(" in text and "aten.add(" in text


def test_only_a_few_near_misses_are_shown():
    def body(lab, x, positions):
        for _ in range(5):
            x = cases.norm_of_sum(lab, x, positions)
        return x

    missing = replace(step("fuse_rms_norm"), expect="rms_norm")
    with pytest.raises(PassError) as caught:
        run(before(lab(body), "fuse_rms_norm"), [missing], {"rms_norm": 5})
    assert caught.value.hint.count("at part:") == 3 and caught.value.hint.endswith("and 2 more")


def test_a_missing_fusion_without_any_trace_says_so():
    missing = replace(step("fuse_rms_norm"), expect=1)
    with pytest.raises(PassError, match="Nothing in the graph resembles"):
        run(graph(), [missing], {})


def test_a_broken_invariant_names_the_pass_and_the_node():
    steps = [Pass(function=idle, gives=(canonical_views,)), Pass(function=leave_a_chunk)]
    with pytest.raises(PassError, match="leave_a_chunk: after it, canonical_views") as caught:
        run(graph(), steps, {})
    assert "aten.view.default at gate" in str(caught.value)


def test_a_need_is_checked_before_the_pass():
    def body(lab, x, positions):
        return F.relu(x).sum(0, keepdim=True)

    steps = [Pass(function=idle, needs=(only_known_ops,))]
    with pytest.raises(PassError, match="idle: before it, only_known_ops") as caught:
        run(before(lab(body), "rewrite_attention"), steps, {})
    assert "aten.sum.dim_IntList at part" in str(caught.value)


def test_an_op_with_several_results_is_not_known():
    def body(lab, x, positions):
        return torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1)

    broken = " ".join(only_known_ops(before(lab(body), "canonicalize_views")))
    assert "aten.chunk" in broken and broken.count("built-in function getitem") == 2


def test_only_whole_columns_are_a_view_of_rows():
    def body(lab, x, positions):
        return lab.q(x)[..., :12].repeat(1, 1, 2) + x[..., ::2].repeat(1, 1, 2)

    broken = only_known_ops(before(lab(body), "rewrite_attention"))
    assert sum("aten.slice" in line for line in broken) == 1


@pytest.mark.parametrize("function", [fail, forget_an_operand])
def test_a_pass_that_breaks_is_our_fault_and_named(function):
    with pytest.raises(InternalError, match=f"pass {function.__name__} failed"):
        run(graph(), [Pass(function=function)], {})


def test_the_ledger_says_what_was_expected_and_found():
    steps = [replace(step("fuse_gates"), expect="gate"), step("lower_activations")]
    ledger = run(graph(), steps, {"gate": 2})
    assert ledger == (
        LedgerEntry(name="fuse_gates", tier="exact", expected=2, matched=2),
        LedgerEntry(name="lower_activations", tier="exact", expected=None, matched=0),
    )


def test_dump_writes_what_changed_and_a_summary(tmp_path):
    steps = [Pass(function=idle), step("fuse_gates")]
    run(graph(), steps, {}, dump_dir=tmp_path / "new" / "dump")
    folder = tmp_path / "new" / "dump"
    assert sorted(p.name for p in folder.iterdir()) == [
        "00_export.txt",
        "02_fuse_gates.txt",
        "summary.txt",
    ]
    line = "float32[1, N, 24]           gate = gate(linear, linear_1, kind=silu)  # part\n"
    assert line in (folder / "02_fuse_gates.txt").read_text()
    summary = (folder / "summary.txt").read_text().splitlines()
    assert summary[1].startswith("idle ") and summary[1].endswith("0  (unchanged)")
    assert summary[2].endswith("aten.mul 2 -> 0; aten.silu 2 -> 0; gate 0 -> 2")


def test_a_compile_takes_the_passes_of_its_dtype():
    names = [each.name for each in PIPELINE]
    for dtype, error in (("bfloat16", 3e-2), ("float16", 4e-3)):
        passes = pipeline(dtype=dtype)
        assert [each.name for each in passes] == names and passes[-1].tolerance == error
    assert [each.name for each in pipeline()] == [n for n in names if n != "lower_dtypes"]
    with pytest.raises(UsageError, match="float32, bfloat16, float16"):
        pipeline(dtype="int8")


def test_passes_are_left_out_by_name():
    assert optional_passes() == ("merge_linears",)
    for name in optional_passes():
        assert name not in [each.name for each in pipeline(disable=(name,))]
    check_disabled(("merge_linears", "a rule"), ("a rule",))
    for name, why in (("fuse_rope", "cannot be left out"), ("fuse", "does not exist")):
        with pytest.raises(UsageError, match=f"'{name}' {why}") as caught:
            check_disabled((name,), ("a rule",))
        assert caught.value.hint == "Optional: merge_linears, a rule."


def test_weights_that_become_integers_are_handed_to_the_pass_that_rounds():
    rounding = pipeline(dtype="bfloat16", integers={"head.weight"})[-1]
    assert rounding.name == "lower_dtypes" and rounding.doc == step("lower_dtypes").doc
    gm = before(lab(cases.two_layers), "lower_dtypes")
    run(gm, [rounding], {}, verify=True)
    assert gm.get_parameter("head.weight").dtype == torch.float32
    assert gm.get_parameter("q.weight").dtype == torch.bfloat16


def test_there_are_few_invariants_and_all_are_used():
    used = {i for s in PIPELINE for i in (*s.needs, *s.gives)}
    assert used == set(INVARIANTS) and len(INVARIANTS) <= 8
