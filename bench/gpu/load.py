"""Does ingot's own way to the driver work, and does the driver take every binary?"""

from __future__ import annotations

import time
from pathlib import PurePosixPath

import numpy as np

from bench.gpu.results import Faults
from bench.gpu.setting import Setting, built_of
from ingot.errors import IngotError

BYTES = 1 << 20


def copies(setting: Setting) -> None:
    """Copies to the device and back, queued one by one and by a graph.

    Raises RuntimeError where other bytes come back.
    """
    driver, faults = setting.driver(), Faults()
    try:
        there, expected = driver.allocate(BYTES), np.arange(BYTES, dtype=np.uint8)
        sent, back = driver.host_memory(BYTES), driver.host_memory(BYTES)
        setting.report.note(free_gigabytes=round(driver.free_bytes() / 1e9, 2))
        sent[:] = expected
        with faults.of("copies"):
            driver.upload(there, sent)
            driver.download(back, there)
            driver.synchronize()
            faults.add("copies", "" if (back == expected).all() else "other bytes came back")
        with faults.of("a graph of copies"):
            driver.begin_capture()
            driver.download(back, there)
            graph = driver.end_capture()
            driver.upload(there, expected[::-1].copy())
            driver.replay(graph)
            driver.synchronize()
            right = (back == expected[::-1]).all()
            faults.add("a graph of copies", "" if right else "other bytes came back")
    finally:
        driver.close()
    faults.raise_found()


def load(setting: Setting, name: str) -> None:
    """Raises RuntimeError that names what the driver refused."""
    artifact = setting.artifact(name)
    built, folder = built_of(artifact), PurePosixPath(artifact.target.main.kernels).parent
    driver = setting.driver()
    refused, began = [], time.perf_counter()
    try:
        for spec, binary in zip(built.launches.kernels, built.binaries, strict=True):
            try:
                driver.load(spec, binary, artifact.read(f"{folder}/{binary.file}"))
            except IngotError as error:
                refused.append(f"{spec.function} ({binary.shared_bytes} shared bytes): {error}")
    finally:
        seconds = time.perf_counter() - began
        driver.close()
    setting.report.note(
        kernels=len(built.binaries), refused=len(refused), seconds=round(seconds, 4),
        built_with=dict(built.built_with),
    )  # fmt: skip
    if refused:
        raise RuntimeError("\n".join(refused))
