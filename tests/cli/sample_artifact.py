"""A small artifact made by hand: an embedding, a norm and a head, with kernels that are no code."""

from __future__ import annotations

import json
from pathlib import Path

from ingot.artifact.codec import encode_plan
from ingot.artifact.formats import Format
from ingot.artifact.layer_graphs import FILE as LAYERS
from ingot.artifact.layer_graphs import (
    Edit,
    LayerGraph,
    LayerGraphs,
    Stage,
    edits_between,
    encode_layers,
)
from ingot.artifact.manifest import (
    FORMAT_VERSION,
    GroupEntry,
    LedgerEntry,
    Manifest,
    ModelInfo,
    Numerics,
    ProgramEntry,
    TargetEntry,
)
from ingot.artifact.plan import Buffer, Instruction, Limits, MemoryPlan, Plan, Slot
from ingot.artifact.programs import STEP
from ingot.artifact.select import ABI
from ingot.artifact.spec import Array, Spec
from ingot.artifact.writer import ArtifactWriter

F32 = Format("float32")
LIMITS = Limits(
    max_model_len=64, max_num_seqs=4, max_num_batched_tokens=32, max_logit_rows=4, page_size=16
)


def sample_plan() -> Plan:
    """tokens -> embedding -> rms_norm -> linear -> logits; the arena holds two temporaries."""
    buffers = (
        Buffer(name="embed.weight", format=F32, shape=(48, 8), kind="weight"),
        Buffer(name="norm.weight", format=F32, shape=(8,), kind="weight"),
        Buffer(name="%0", format=F32, shape=("N", 8), kind="arena"),
        Buffer(name="%1<b>", format=F32, shape=("N", 8), kind="arena", offset=1024),
    )
    instructions = (
        Instruction(
            op="embedding",
            inputs={"tokens": "tokens", "weight": "embed.weight"},
            outputs={"out": "%0"},
            attrs={},
            origin="embed",
        ),
        Instruction(
            op="rms_norm",
            inputs={"x": "%0", "weight": "norm.weight"},
            outputs={"out": "%1<b>"},
            attrs={"eps": 1e-6},
            origin="norm",
        ),
        Instruction(
            op="linear",
            inputs={"x": "%1<b>", "weight": "embed.weight"},
            outputs={"out": "logits"},
            attrs={},
            origin="head",
        ),
    )
    slots = (
        Slot(name="%0", offset=0, nbytes=1024, first_use=0, last_use=1),
        Slot(name="%1<b>", offset=1024, nbytes=1024, first_use=1, last_use=2),
    )
    memory = MemoryPlan(arena_bytes=2048, slots=slots)
    logits = Array(name="logits", dtype="float32", shape=("N", 48))
    return Plan(
        limits=LIMITS,
        spec=Spec(inputs=STEP.inputs[:1], outputs=(logits,)),
        buffers=buffers,
        instructions=instructions,
        memory=memory,
    )


def sample_manifest() -> Manifest:
    """The manifest of the sample, with its target, a ledger of two passes and a golden error."""
    model = ModelInfo(
        name="sample",
        architecture="SampleForCausalLM",
        vocab_size=48,
        num_layers=1,
        num_parameters=392,
        bos_token_ids=(),
        eos_token_ids=(0,),
        kv_bytes_per_token=128,
    )
    target = TargetEntry(
        name="cpu:portable",
        requires=(),
        layout="cpu-float32",
        abi=ABI,
        programs={
            "step": ProgramEntry(
                plan="targets/cpu-portable/plan.json",
                kernels="targets/cpu-portable/kernels.so",
                groups=(GroupEntry(name="group_x", allowed=2, formed=1, reasons=(("odd", 1),)),),
            )
        },
    )
    ledger = (
        LedgerEntry(name="canonicalize", tier="exact", expected=None, matched=5),
        LedgerEntry(name="fuse_rms_norm", tier="exact", expected=1, matched=1),
    )
    return Manifest(
        format=FORMAT_VERSION,
        ingot_version="0.1.0",
        model=model,
        limits=LIMITS,
        numerics=Numerics(dtype="float32", quantization="none", tolerance=2e-3),
        targets=(target,),
        ledger=ledger,
    )


def sample_layers() -> LayerGraphs:
    """The graph of the norm, which a pass makes one line of two."""
    first = "float32[N, 8]  %1<b> = aten.mul(%0, %0)  # norm.deep"
    exported = (first, f"{'':<27} x = input  # norm")
    fused = Edit(first=0, removed=1, added=("float32[N, 8]  %1<b> = rms_norm(%0)  # norm",))
    stages = (
        Stage(name="export", edits=edits_between((), exported)),
        Stage(name="fuse_rms_norm", edits=(fused,)),
    )
    return LayerGraphs(layers=(LayerGraph(layer="norm", alike=(0,), stages=stages),))


def write_sample(path: Path, layers: LayerGraphs | None = None) -> Path:
    """Writes the sample artifact to `path`; without `layers`, as an older ingot did."""
    manifest = sample_manifest()
    with ArtifactWriter(path) as writer:
        writer.write(manifest.targets[0].main.plan, encode_plan(sample_plan()))
        writer.write(manifest.targets[0].main.kernels, b"no code")
        writer.write("weights/cpu-float32.safetensors", weights_file())
        if layers is not None:
            writer.write(LAYERS, encode_layers(layers))
        writer.commit(manifest)
    return path


def weights_file() -> bytes:
    tensors = {
        "embed.weight": {"dtype": "F32", "shape": [384], "data_offsets": [0, 1536]},
        "norm.weight": {"dtype": "F32", "shape": [16], "data_offsets": [1536, 1600]},
    }
    header = json.dumps(tensors).encode()
    header += b" " * (-(8 + len(header)) % 64)
    return len(header).to_bytes(8, "little") + header + bytes(1600)
