"""A plan for Graphviz and for Netron, read again by the libraries of both formats."""

from __future__ import annotations

import builtins
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pydot
import pytest

from ingot.artifact.plan import Plan
from ingot.artifact.traits import Role, traits_of
from ingot.cli.inspect.dot import plan_dot, quoted
from ingot.cli.inspect.onnx import plan_onnx
from ingot.cli.inspect.view import ArtifactView, kernels_of, layer_of, read_artifact
from ingot.cli.main import main
from tests.cli.sample_artifact import sample_manifest, sample_plan, write_sample


@pytest.fixture(scope="module")
def view(shakespeare_artifact: Path) -> ArtifactView:
    return read_artifact(shakespeare_artifact)


@pytest.fixture(scope="module")
def plan(view: ArtifactView) -> Plan:
    return next(iter(view.plans.values()))


@pytest.fixture(scope="module")
def beginning(plan: Plan) -> Plan:
    """The plan up to the end of its second layer: reading DOT takes long."""
    _, group = kernels_of(plan, 1)[-1]
    instructions = plan.instructions[: group.first + group.count]
    groups = tuple(each for each in plan.groups if each.first < len(instructions))
    return replace(plan, instructions=instructions, groups=groups)


@pytest.fixture(scope="module")
def drawn(beginning: Plan) -> pydot.Dot:
    return parsed(plan_dot(beginning, "all"))


def parsed(text: str) -> pydot.Dot:
    (graph,) = pydot.graph_from_dot_data(text)
    return graph


def boxes(graph: Any) -> list[pydot.Node]:
    """The nodes of a graph and of its frames, without defaults."""
    inside = [node for frame in graph.get_subgraphs() for node in boxes(frame)]
    names = ("node", "edge", "graph")
    return [n for n in graph.get_nodes() if n.get_name() not in names] + inside


def loaded(data: bytes) -> onnx.ModelProto:
    model = onnx.load_model_from_string(data)
    onnx.checker.check_model(model)
    return model


def reads(plan: Plan) -> Counter[tuple[int, int]]:
    """Which instruction reads what which other has made, by the definition of a plan."""
    found: Counter[tuple[int, int]] = Counter()
    makers: dict[str, int] = {}
    for index, each in enumerate(plan.instructions):
        written = {each.inputs[name] for name in traits_of(each).arguments(Role.WRITTEN)}
        for name in {*each.inputs.values()} - written:
            maker = makers.get(plan.root(name).name)
            if maker is not None:
                found[maker, index] += 1
        makers |= {plan.root(n).name: index for n in (*each.outputs.values(), *written)}
    return found


def test_dot_has_a_box_for_each_instruction_and_a_frame_for_each_group(
    beginning: Plan, drawn: pydot.Dot
) -> None:
    inside = [node for node in boxes(drawn) if node.get_name().startswith("i")]
    assert len(inside) == len(beginning.instructions)
    frames = {frame.get_name(): len(boxes(frame)) for frame in drawn.get_subgraphs()}
    assert frames == {
        f"cluster_{number}": group.count
        for number, group in enumerate(beginning.kernels)
        if group.count > 1
    }
    label = next(n for n in inside if n.get_name() == "i0").get("label")
    assert label.startswith('"embedding\\nmodel.embed_tokens\\n')


def test_dot_has_an_edge_for_each_value_that_is_read(beginning: Plan, drawn: pydot.Dot) -> None:
    ends = [(e.get_source(), e.get_destination()) for e in drawn.get_edges()]
    inside = Counter((int(a[1:]), int(b[1:])) for a, b in ends if a[0] == "i")
    assert inside == reads(beginning)
    outside = {n.get("label").strip('"') for n in boxes(drawn) if n.get_name()[0] == "o"}
    assert {"tokens", "positions", "slots", "spans", "page_table"} <= outside


def test_dot_of_a_layer_has_its_kernels_and_what_they_read_of_others(plan: Plan) -> None:
    graph = parsed(plan_dot(plan, "one", layer=1))
    members = [i for _, group in kernels_of(plan, 1) for i in plan.members(group)]
    assert {layer_of(each.origin) for each in members} == {1}
    shown = [node.get_name() for node in boxes(graph)]
    assert sum(name[0] == "i" for name in shown) == len(members)
    assert any(name[0] == "o" for name in shown)


@pytest.mark.parametrize("text", ['a "b"', "a\\", "a\nb", "<%1>", "é"])
def test_any_name_is_a_text_of_dot(text: str) -> None:
    graph = parsed(f"digraph g {{ n [label={quoted(text)}]; }}")
    (node,) = graph.get_nodes()
    assert node.get("label") == quoted(text)


def test_onnx_has_a_node_for_each_kernel(view: ArtifactView, plan: Plan) -> None:
    model = loaded(plan_onnx(view.manifest, plan, "cpu:x"))
    graph = model.graph
    assert [node.op_type for node in graph.node] == [group.kernel for group in plan.kernels]
    assert {node.domain for node in graph.node} == {"ingot"}
    assert not graph.initializer
    assert {"target": "cpu:x", "artifact": view.manifest.digest}.items() <= {
        each.key: each.value for each in model.metadata_props
    }.items()
    for node, group in zip(graph.node, plan.kernels, strict=True):
        said = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        ops = [text.decode().partition("(")[0] for text in said["instructions"]]
        assert ops == [i.op for i in plan.members(group)]
        weights = [text.decode().partition(": ")[0] for text in said.get("weights", ())]
        used = {n for i in plan.members(group) for n in i.inputs.values()}
        assert {*weights} == {n for n in used if plan.buffer(n).kind == "weight"}


def test_onnx_is_connected_as_the_plan_is(view: ArtifactView, plan: Plan) -> None:
    """From node to node as from instruction to instruction, and every value has a type."""
    graph = loaded(plan_onnx(view.manifest, plan, "cpu:x")).graph
    makers = {name: number for number, node in enumerate(graph.node) for name in node.output}
    found = {
        (makers[name], number)
        for number, node in enumerate(graph.node)
        for name in node.input
        if name in makers
    }
    kernel = [n for n, group in enumerate(plan.kernels) for _ in range(group.count)]
    between = {(kernel[a], kernel[b]) for a, b in reads(plan)}
    assert found == {(a, b) for a, b in between if a != b}
    typed = {each.name for each in (*graph.input, *graph.output, *graph.value_info)}
    assert {n for node in graph.node for n in (*node.input, *node.output)} == typed
    assert "logits" in {each.name for each in graph.output}
    shapes = {each.name: each.type.tensor_type for each in (*graph.input, *graph.value_info)}
    assert [dim.dim_param for dim in shapes["tokens"].shape.dim] == ["N"]
    assert shapes["tokens"].elem_type == onnx.TensorProto.INT32
    (first, *_) = shapes["k_cache_0"].shape.dim
    assert first.dim_param == "pages"


def test_onnx_of_a_layer_is_whole(view: ArtifactView, plan: Plan) -> None:
    graph = loaded(plan_onnx(view.manifest, plan, "cpu:x", layer=1)).graph
    assert len(graph.node) == len(kernels_of(plan, 1))
    assert {node.name.split()[1].split(".")[2] for node in graph.node} == {"1"}


def test_files_have_the_same_bytes_each_time() -> None:
    plan, manifest = sample_plan(), sample_manifest()
    assert plan_onnx(manifest, plan, "t") == plan_onnx(manifest, sample_plan(), "t")
    assert plan_dot(plan, "t") == plan_dot(sample_plan(), "t")


def test_the_command_writes_both(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = str(write_sample(tmp_path / "sample.ingot"))
    file = tmp_path / "plan.onnx"
    assert main(["inspect", sample, "--onnx", str(file), "--dot", "-"]) == 0
    captured = capsys.readouterr()
    assert len(onnx.load(str(file)).graph.node) == 3
    assert len(boxes(parsed(captured.out))) == 4
    assert captured.err == f"wrote {file}\n"


def test_a_layer_that_is_not_there_is_refused(tmp_path: Path, shakespeare_artifact, capsys) -> None:
    file = tmp_path / "plan.dot"
    found = ["inspect", str(shakespeare_artifact), "--layer", "6", "--dot", str(file)]
    assert main(found) == 2
    assert "no layer 6 in the plan\n  It has 0 to 5." in capsys.readouterr().err
    sample = str(write_sample(tmp_path / "sample.ingot"))
    assert main(["inspect", sample, "--layer", "0", "--plan"]) == 2
    assert "It has no layers with numbers." in capsys.readouterr().err
    assert not file.exists()


def test_without_the_package_the_error_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    real = builtins.__import__

    def lacking(name: str, *rest: Any, **named: Any) -> Any:
        if name == "onnx":
            raise ImportError("No module named 'onnx'")
        return real(name, *rest, **named)

    sample, file = str(write_sample(tmp_path / "sample.ingot")), tmp_path / "plan.onnx"
    monkeypatch.delitem(sys.modules, "onnx")
    monkeypatch.setattr(builtins, "__import__", lacking)
    assert main(["inspect", sample, "--onnx", str(file), "--html", str(tmp_path / "p.html")]) == 2
    assert "pip install 'ingot-lm[onnx]'" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["sample.ingot"]
