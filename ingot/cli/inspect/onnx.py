"""A plan as an ONNX file for viewers such as Netron: a node for each kernel. It cannot be run.

The nodes are of the domain `ingot`, and weights are named by shape alone: the file holds no number.
Source: onnx.proto and IR.md of the ONNX project.
"""

from __future__ import annotations

from typing import Any

from ingot.artifact.manifest import Manifest
from ingot.artifact.plan import Buffer, Group, Instruction, Plan
from ingot.artifact.traits import Role, origin_of, traits_of
from ingot.cli.inspect.view import kernels_of, shape_text
from ingot.errors import UsageError

DOMAIN, DOMAIN_VERSION = "ingot", 1
OPSET = 23
IR_VERSION = 11
WRITTEN = "_written"  # follows the name of a state from where a step has written into it


def plan_onnx(manifest: Manifest, plan: Plan, target: str, layer: int | None = None) -> bytes:
    """The file, of a layer or of all of a plan.

    Raises UsageError where the package onnx is missing.
    """
    try:
        import onnx
    except ImportError as error:
        raise UsageError(
            "--onnx needs the package onnx", hint="Install it: pip install 'ingot-lm[onnx]'"
        ) from error
    model = onnx.helper.make_model(
        _graph(onnx, plan, manifest.model.name, layer),
        producer_name="ingot",
        producer_version=manifest.ingot_version,
        ir_version=IR_VERSION,
        opset_imports=[
            onnx.helper.make_opsetid("", OPSET),
            onnx.helper.make_opsetid(DOMAIN, DOMAIN_VERSION),
        ],
        doc_string="The kernels of a step, to be looked at. Weights are left out.",
    )
    facts = {"target": target, "artifact": manifest.digest, "dtype": manifest.numerics.dtype}
    onnx.helper.set_model_props(model, facts | {"quantization": manifest.numerics.quantization})
    onnx.checker.check_model(model)
    data: bytes = model.SerializeToString(deterministic=True)
    return data


class _Values:
    """The values of the graph by name; a state has another name once it was written into."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.made: dict[str, Buffer] = {}
        self.given: dict[str, Buffer] = {}
        self.read: set[str] = set()
        self._written: dict[str, str] = {}

    def reads(self, name: str) -> str:
        """The value that a kernel reads where it names a buffer."""
        root = self.plan.root(name)
        value = self._written.get(root.name, root.name)
        if value not in self.made:
            self.given.setdefault(value, root)
        self.read.add(value)
        return value

    def writes(self, name: str) -> str:
        """The value that a kernel makes of a buffer."""
        root = self.plan.root(name)
        value = f"{root.name}{WRITTEN}" if root.kind == "state" else root.name
        self._written[root.name] = value
        self.made[value] = root
        return value


def _graph(onnx: Any, plan: Plan, name: str, layer: int | None) -> Any:
    values = _Values(plan)
    nodes = [_node(onnx, values, number, group) for number, group in kernels_of(plan, layer)]
    ends = [
        value
        for value, buffer in values.made.items()
        if buffer.kind in ("output", "state") or value not in values.read
    ]
    return onnx.helper.make_graph(
        nodes,
        name,
        inputs=[_info(onnx, value, buffer) for value, buffer in values.given.items()],
        outputs=[_info(onnx, value, values.made[value]) for value in ends],
        value_info=[
            _info(onnx, value, buffer) for value, buffer in values.made.items() if value not in ends
        ],
    )


def _node(onnx: Any, values: _Values, number: int, group: Group) -> Any:
    """A kernel: its instructions with their scalars, and its weights, are attributes."""
    plan = values.plan
    members = plan.members(group)
    reads, writes, weights = _operands(plan, group)
    node = onnx.helper.make_node(
        group.kernel,
        list(dict.fromkeys(values.reads(name) for name in reads)),
        list(dict.fromkeys(values.writes(name) for name in writes)),
        name=f"{number} {origin_of(members)}".strip(),
        domain=DOMAIN,
        instructions=[_text(instruction) for instruction in members],
    )
    if weights:
        texts = [f"{each.name}: {shape_text(each)}" for each in weights]
        node.attribute.append(onnx.helper.make_attribute("weights", texts))
    return node


def _text(instruction: Instruction) -> str:
    """`rms_norm(eps=1e-06, offset=0.0): model.norm`."""
    scalars = ", ".join(f"{name}={value}" for name, value in instruction.attrs.items())
    return f"{instruction.op}({scalars}): {instruction.origin}"


def _operands(plan: Plan, group: Group) -> tuple[list[str], list[str], list[Buffer]]:
    """Operands of a kernel: what it reads from others, what it makes for others, its weights."""
    reads: list[str] = []
    writes: list[str] = []
    weights: dict[str, Buffer] = {}
    for instruction in plan.members(group):
        into = traits_of(instruction).arguments(Role.WRITTEN)
        for argument, name in instruction.inputs.items():
            buffer = plan.buffer(name)
            if buffer.kind == "weight":
                weights[name] = buffer
            elif plan.root(name).kind != "inner" and plan.root(name).name not in writes:
                reads.append(name)
            if argument in into:
                writes.append(name)
        writes += (n for n in instruction.outputs.values() if plan.buffer(n).kind != "inner")
    return reads, writes, list(weights.values())


def _info(onnx: Any, value: str, buffer: Buffer) -> Any:
    """The type of a value; sizes that differ from step to step keep their letters."""
    number = getattr(onnx.TensorProto, buffer.dtype.upper().replace("FLOAT32", "FLOAT"))
    text = shape_text(buffer) if buffer.format.is_scaled else ""
    return onnx.helper.make_tensor_value_info(value, number, _dims(buffer), doc_string=text)


def _dims(buffer: Buffer) -> list[int | str]:
    """The sizes; the first of a state, the pages of the pool, is known when it runs."""
    return list(("pages", *buffer.shape[1:]) if buffer.kind == "state" else buffer.shape)
