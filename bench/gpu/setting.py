"""What every part is given: where artifacts lie, on which device they run, and where figures go."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.gpu.places import LIMITS, artifact_path, report_file
from bench.gpu.results import Report, Values, read_report
from ingot.artifact.launches import BuiltLaunches, decode_built
from ingot.artifact.reader import Artifact
from ingot.runtime.devices.cuda.driver import Driver
from ingot.runtime.devices.cuda.library import open_driver
from ingot.runtime.llm import LLM


@dataclass(frozen=True)
class Setting:
    """Where a part runs.

    Attributes:
        work: models, artifacts, logs and the figures of each part.
        given: a folder of artifacts that were compiled elsewhere, or `work`.
        device: "cuda:0"; tests also take "cpu".
    """

    work: Path
    given: Path
    report: Report
    device: str = "cuda:0"

    def path(self, name: str) -> Path:
        return artifact_path(name, self.given, self.work)

    def artifact(self, name: str, device: str = "") -> Artifact:
        return Artifact.open(self.path(name), device=device or self.device)

    def llm(self, name: str, **options: Any) -> LLM:
        return LLM(self.artifact(name), **options)

    def llm_on(self, name: str, device: str) -> LLM:
        return LLM(self.artifact(name, device))

    def driver(self) -> Driver:
        return open_driver()

    def card(self) -> Values:
        """What the card reached in this run; empty where that was not measured."""
        figures: Values = read_report(report_file(self.work, LIMITS))["figures"]
        return figures


def built_of(artifact: Artifact) -> BuiltLaunches:
    """What the artifact's kernels.json says."""
    name = artifact.target.main.kernels
    return decode_built(artifact.read(name), file=name)
