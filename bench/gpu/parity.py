"""Does the device compute what the references and the CPU compute?"""

from __future__ import annotations

from dataclasses import asdict

import numpy as np

from bench.gpu.setting import Setting
from bench.gpu.ways import prompt
from ingot.artifact.target import kind_of_name
from ingot.runtime.arrays import Float32
from ingot.runtime.verify import replay

TOKENS = 100
# Relative errors of logits between devices, by the bits of the weights. CPUs round activations to
# int8 where weights are integers, and GPUs do not.
ALLOWED = {"none": 3e-2, "int8": 1e-1, "int4": 1e-1}


def verify(setting: Setting, name: str) -> None:
    """What `ingot verify` does. Raises VerificationError."""
    found = replay(setting.artifact(name))
    setting.report.note(
        prompts=found.num_prompts, positions=found.num_positions, tolerance=found.tolerance,
        max_errors=found.max_errors, bitwise_equal=found.bitwise_equal,
        faults=[asdict(fault) for fault in found.faults[:5]],
    )  # fmt: skip
    found.raise_if_failed()


def beside_cpu(setting: Setting, name: str, *, tokens: int = TOKENS) -> None:
    """The logits of both targets of an artifact. Raises RuntimeError where they are far apart."""
    manifest = setting.artifact(name).manifest
    targets = [target.name for target in manifest.targets]
    if "cpu" not in map(kind_of_name, targets):
        raise RuntimeError(f"the artifact has no CPU target: {', '.join(targets)}")
    found = []
    for device in (setting.device, "cpu"):
        with setting.llm_on(name, device) as llm:
            found.append(llm.logits(prompt(llm, tokens)))
    error, same = relative_error(*found), same_tokens(*found)
    kind = manifest.numerics.quantization.split()[0].split("/")[0]
    allowed = ALLOWED.get(kind, max(ALLOWED.values()))
    setting.report.note(error=error, allowed=allowed, same_tokens=same)
    if not error <= allowed:
        raise RuntimeError(f"logits differ by {error:.3g}, and {allowed:g} is allowed")


def relative_error(found: Float32, expected: Float32) -> float:
    """The norm of the difference over that of what is expected."""
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def same_tokens(found: Float32, expected: Float32) -> float:
    """The share of positions at which both prefer the same token."""
    return float((found.argmax(axis=1) == expected.argmax(axis=1)).mean())
