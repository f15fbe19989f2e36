"""Brings the quotations in docs/layout.md up to date; `make docs` runs it.

A quotation is a block of code whose first line names a file and a pattern, `# FILE: PATTERN`. Its
other lines are those of that file in which the pattern is found; of C++, whole paragraphs. The
files are what a compile of the bundled model leaves; only the machine code is not made.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable
from pathlib import Path
from unittest.mock import patch

from ingot.artifact.codec import encode_plan
from ingot.artifact.manifest import GroupEntry
from ingot.artifact.reader import Artifact
from ingot.artifact.writer import ArtifactWriter
from ingot.compiler.compile import write_parts
from ingot.compiler.describe import describe
from ingot.compiler.lower_model import lower_model
from ingot.compiler.model import read_model
from ingot.compiler.options import Clock, CompileOptions, silent
from ingot.models.model_dir import ModelDir
from ingot.ops.steps import step_inputs
from ingot.targets.compilers import Builder
from ingot.targets.cpu import toolchain

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "layout.md"
MODEL = ROOT / "golden" / "models" / "shakespeare"
QUOTATION = re.compile(r"(```\w+ made\n(?:#|//) (\S+): ([^\n]+)\n).*?(?=```)", re.S)
PROMPT = "First Citizen:"
PAGES = ((3,), (7, 5))  # of the prompt, and of a sequence that is further on
CONTEXT = 20  # tokens that it has in its pages
LATEST = 42


def page(text: str) -> str:
    """The text of the page with every quotation as it must be."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        compile_bundled(folder)
        return QUOTATION.sub(lambda m: m[1] + quotation(folder / m[2], m[3]), text)


def quotation(file: Path, pattern: str) -> str:
    """What the page quotes of a file. Raises ValueError where that is nothing."""
    text = file.read_text()
    whole = file.suffix == ".cpp"
    parts = text.split("\n\n") if whole else text.splitlines()
    found = [part.strip("\n") for part in parts if re.search(pattern, part)]
    if not found:
        raise ValueError(f"{file.name} has nothing like {pattern}")
    return ("\n\n" if whole else "\n").join(found) + "\n"


def compile_bundled(folder: Path) -> None:
    """Leaves what each stage makes of the bundled model in files of the folder."""
    options = CompileOptions(
        targets=("cpu:x86-64-v4",), quantize="int4", group_size=32, dump_dir=folder / "passes"
    )
    clock, out = Clock(silent), folder / "shakespeare.ingot"
    model = read_model(ModelDir.open(MODEL), options, clock)
    front = lower_model(model, clock)
    with (
        patch.object(toolchain, "build", lambda source, out, target, **_: out.write_bytes(b"")),
        model.checkpoint,
        Builder() as compiler,
        ArtifactWriter(out) as writer,
    ):
        (part,), _ = write_parts(writer, model, front, compiler, clock)
        writer.seal(describe(model, front, [part]))
        writer.publish()
    prompt = model.tokenizer.encode(PROMPT, add_special_tokens=False).ids
    artifact = Artifact.open(out)
    for name, text in {
        "config.json": (MODEL / "config.json").read_text(),
        "plan.json": encode_plan(front.plan).decode(),
        "target.json": encode_plan(part.plan).decode(),
        "ledger.txt": ledger(part.entry.main.groups),
        **sources(artifact),
        "weights.txt": weights(artifact, part.entry.layout),
        "artifact.txt": "\n".join(["manifest.json", *sorted(artifact.manifest.files)]),
        "arrays.txt": arrays(prompt),
    }.items():
        (folder / name).write_text(text)


def sources(artifact: Artifact) -> dict[str, str]:
    """The units of the step, and one text of all functions."""
    folder = "targets/cpu-x86-64-v4/source"
    names = ("kernels_0.cpp", "kernels_1.cpp")
    kernels = "\n".join(artifact.read(f"{folder}/{name}").decode() for name in names)
    return {"step.cpp": artifact.read(f"{folder}/step.cpp").decode(), "kernels.cpp": kernels}


def ledger(entries: Iterable[GroupEntry]) -> str:
    """How many groups there are of each kind, and why not more."""
    return "\n".join(
        f"{e.name}: {e.formed} of {e.allowed}" + "".join(f"; {n} x {why}" for why, n in e.reasons)
        for e in entries
    )


def weights(artifact: Artifact, layout: str) -> str:
    """The tensors of the weights file."""
    fd, file = artifact.open_weights(layout)
    os.close(fd)
    return "\n".join(f"{name}: {tensor.nbytes} bytes" for name, tensor in file.tensors.items())


def arrays(prompt: list[int]) -> str:
    """The inputs of a step: a new prompt, and one token more of another sequence."""
    inputs = step_inputs([prompt, [LATEST]], [0, CONTEXT], PAGES, page_size=16)
    inputs["logit_rows"] = inputs["spans"][:, 1] - 1
    return "\n".join(f"{name} = {array.tolist()}" for name, array in inputs.items())


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
