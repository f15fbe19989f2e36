"""A folder that shows a finding by itself: for a bug report, without the model.

    reproduce.py               runs the kernel alone and prints the error
    finding.json               what was found, and what to run
    step/, given/              the arrays of the step; the temporaries and states that it was given
    weights/                   the packed weights of this kernel, as bytes
    expected/                  what it should have left, by the references
    got/                       what it left when it was found
    plan.json, kernels.so      the whole plan, and the kernels as they were compiled

A finding that is not of a kernel has what is there and what should be, and nothing to run.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ingot.artifact.codec import decode_plan, encode_plan
from ingot.artifact.plan import Buffer
from ingot.compare.alone import shaped
from ingot.compare.bisect import TracedFinding
from ingot.compare.cpu_step import CpuStep
from ingot.compare.differences import Difference, difference, differences, parts
from ingot.compare.kernel_check import SAME, KernelError, WatchedKernels
from ingot.compare.plan_check import BOUNDS, Strayed
from ingot.compiler.interpret import Value
from ingot.errors import IngotError, UsageError
from ingot.ops.registry import KernelTolerance
from ingot.ops.scaled import Scaled
from ingot.version import __version__

NARROW = ".bfloat16"  # at the end of a name: numpy has no such dtype, its bits lie as uint16
FINDING, PLAN, KERNELS = "finding.json", "plan.json", "kernels.so"
SCRIPT = '''"""Runs kernel {number}, {kernel} of {origin}, alone on the inputs beside this file.

Prints how what it leaves differs from what it should leave; ends with 1 if it does. Needs ingot of
version {version} with its extra `compile`, and a host that runs {target}.
"""

from pathlib import Path

from ingot.compare.reproducer import reproduce

raise SystemExit(reproduce(Path(__file__).parent))
'''


def save(folder: Path, found: TracedFinding, kernels: WatchedKernels) -> None:
    """Writes the folder, which must not be there yet or be empty; it is there whole or not at all.

    Raises UsageError where it cannot be written.
    """
    check_new(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            _write(made, found, kernels)
            os.chmod(made, 0o755)
            made.replace(folder)
        except BaseException:
            shutil.rmtree(made, ignore_errors=True)
            raise
    except OSError as error:
        raise UsageError(
            f"{folder} cannot be written: {error.strerror}", hint="--save needs a new folder."
        ) from error


def check_new(folder: Path) -> None:
    """Raises UsageError for a folder that is there and not empty."""
    if os.path.lexists(folder) and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{folder} is there already", hint="--save needs a new folder.")


def _write(folder: Path, found: TracedFinding, kernels: WatchedKernels) -> None:
    finding, evidence = asdict(found.finding), found.evidence
    about = {"target": kernels.target, "num_pages": kernels.steps.num_pages, "finding": finding}
    (folder / FINDING).write_text(json.dumps(about, indent=2) + "\n", encoding="utf-8")
    words = finding | {"version": __version__, "target": kernels.target}
    (folder / "reproduce.py").write_text(SCRIPT.format(**words), encoding="utf-8")
    if isinstance(evidence, KernelError):
        seen, step = evidence.seen, kernels.steps.parts[evidence.step]
        if evidence.overwritten:
            got = {name: seen.before[name] for name in evidence.wanted}
            expected = evidence.wanted
        else:
            got, expected = seen.after, evidence.wanted
            if kernels.code:
                _kernel(folder, evidence, kernels)
        save_values(folder / "given", seen.before)
        save_values(folder / "step", step)
    elif isinstance(evidence, Strayed):
        got = {evidence.difference.output: evidence.got}
        expected = {evidence.difference.output: evidence.expected}
    else:
        one, other = evidence
        got, expected = {"weight": one}, {"weight": other}
    save_values(folder / "got", got)
    save_values(folder / "expected", expected)


def _kernel(folder: Path, error: KernelError, kernels: WatchedKernels) -> None:
    """Writes what is needed to run a kernel by itself."""
    plan = kernels.plan
    read = [n for n in error.seen.work.reads if plan.buffer(n).kind == "weight"]
    save_values(folder / "weights", {n: kernels.stored.packed(n) for n in read})
    (folder / PLAN).write_bytes(encode_plan(plan))
    (folder / KERNELS).write_bytes(kernels.code)


def reproduce(folder: Path) -> int:
    """Runs what a folder holds and prints the errors; returns 1 where there are any, and what
    `ingot` would where it cannot run."""
    about = json.loads((folder / FINDING).read_text(encoding="utf-8"))
    finding = about["finding"]
    expected, got = (load_values(folder / name) for name in ("expected", "got"))
    print(f"{finding['kernel']} of {finding['origin']}: {finding['op']}")
    if not (folder / KERNELS).exists():
        print("Nothing runs: these are the values that were found, and those expected.")
        errors = _held(got, expected, BOUNDS if finding["where"] == "plan" else SAME)
    else:
        try:
            errors = _run(folder, about, expected)
        except IngotError as error:
            print(f"error: {error}")
            return error.exit_code
    for each in errors:
        print(line(each))
    return int(any(each.is_beyond for each in errors))


def _held(
    got: Mapping[str, Value], expected: Mapping[str, Value], bounds: KernelTolerance
) -> list[Difference]:
    """Values beside those expected."""
    return [
        difference(f"{name}{suffix}", one, other, bounds, by_rows=True)
        for name, value in expected.items()
        for (suffix, one), (_, other) in zip(parts(got[name]), parts(value), strict=True)
    ]


def _run(folder: Path, about: Mapping[str, Any], expected: Mapping[str, Value]) -> list[Difference]:
    """Runs the kernel; what it leaves, beside what it should leave."""
    plan = decode_plan((folder / PLAN).read_bytes(), file=PLAN)
    inputs, given, weights = (load_values(folder / n) for n in ("step", "given", "weights"))
    held = {
        name: _aligned(plan.buffer(name), data)
        for name, data in weights.items()
        if isinstance(data, Tensor)
    }
    names = [buffer.name for buffer in plan.of_kind("weight")]
    addresses = [held[n].data_ptr() if n in held else 0 for n in names]
    number = int(about["finding"]["number"])
    code = (folder / KERNELS).read_bytes()
    step = CpuStep(plan, code, KERNELS, addresses, int(about["num_pages"]))
    try:
        left = step.run_alone(number, inputs, given)  # type: ignore[arg-type]  # no integers
    finally:
        step.close()
    members = step.work[number].members
    found = []
    for name, value in expected.items():
        found += differences(plan, name, members, shaped(left[name], value), value)
    return found


def line(found: Difference) -> str:
    """A difference in a line."""
    return (
        f"{found.output}: {found.num_wrong} of {found.count} numbers leave their tolerance, "
        f"relative error {found.relative:.2e}; at {found.place} {found.here:.6g}, expected "
        f"{found.right:.6g} within {found.allowed:.2g}"
    )


def _aligned(buffer: Buffer, data: Tensor) -> Tensor:
    """Copies bytes to a multiple of 64; matrices of a stack to where kernels look for them."""
    matrices = data.reshape(-1, data.shape[-1])
    stride = buffer.row_stride if buffer.base else matrices.shape[1]
    size = len(matrices) * stride
    whole = torch.empty(size + 64, dtype=torch.uint8)
    start = -whole.data_ptr() % 64
    placed = whole[start : start + size]
    placed.view(-1, stride)[:, : matrices.shape[1]] = matrices
    return placed


def save_values(folder: Path, values: Mapping[str, Value]) -> None:
    """Writes a file for each array of each value: NAME.npy, or NAME.values.npy, NAME.scales.npy.

    NAME.widths.npy has the block and the group of integers.
    """
    folder.mkdir()
    for name, value in values.items():
        for suffix, part in parts(value):
            is_narrow = part.dtype == torch.bfloat16
            raw = part.detach().clone().contiguous()
            array = (raw.view(torch.int16) if is_narrow else raw).numpy()
            ending = NARROW if is_narrow else ""
            np.save(
                folder / f"{name}{suffix}{ending}.npy",
                array.view(np.uint16) if is_narrow else array,
            )
        if isinstance(value, Scaled):
            np.save(folder / f"{name}.widths.npy", np.array((value.block, value.group)))


def load_values(folder: Path) -> dict[str, Value]:
    """Reads what `save_values` wrote."""
    tensors = {}
    for path in sorted(folder.glob("*.npy")):
        array = np.load(path, allow_pickle=False)
        name = path.name.removesuffix(".npy")
        if name.endswith(NARROW):
            name, tensor = name.removesuffix(NARROW), torch.from_numpy(array.view(np.int16))
            tensors[name] = tensor.view(torch.bfloat16)
        else:
            tensors[name] = torch.from_numpy(array)
    names = {name.removesuffix(".values") for name in tensors if name.endswith(".values")}
    found: dict[str, Value] = {
        name: Scaled(
            tensors.pop(f"{name}.values"),
            tensors.pop(f"{name}.multipliers", None),
            tensors.pop(f"{name}.scales"),
            tensors.pop(f"{name}.zeros", None),
            tensors.pop(f"{name}.minimums", None),
            **dict(zip(("block", "group"), tensors.pop(f"{name}.widths").tolist(), strict=True)),
        )
        for name in names
    }
    return found | tensors
