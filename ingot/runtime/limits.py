"""The limits of this machine, measured with the code and the threads that run the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import reduce

from ingot.artifact.cost import Cost
from ingot.artifact.host import usable_processors
from ingot.artifact.reader import Artifact
from ingot.errors import ResourceError
from ingot.runtime.devices.cpu_kernels import Kernels
from ingot.runtime.devices.memory import Region

# By the numbers that `machine_limits.h` gives them.
READ, ARITHMETIC = 0, ("float32", "bfloat16", "int8")
LEAST_BYTES, MOST_BYTES = 1 << 20, 256 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineLimits:
    """Bytes read and operations by kind of arithmetic, per second, on `threads` threads.

    A multiply-add is two operations.
    """

    threads: int
    read_bytes_per_second: float
    operations_per_second: Mapping[str, float]

    def memory_seconds(self, cost: Cost) -> float:
        return cost.num_bytes / self.read_bytes_per_second

    def arithmetic_seconds(self, cost: Cost) -> float:
        peaks = self.operations_per_second
        return sum(count / peaks[kind] for kind, count in cost.operations.items())

    def seconds(self, cost: Cost) -> float:
        """The least time that this takes when reading and computing overlap, each at its peak."""
        return max(self.memory_seconds(cost), self.arithmetic_seconds(cost))

    def best(self, other: MachineLimits) -> MachineLimits:
        """The better value of each of two measurements: disturbances only make them worse."""
        return MachineLimits(
            threads=self.threads,
            read_bytes_per_second=max(self.read_bytes_per_second, other.read_bytes_per_second),
            operations_per_second={
                kind: max(peak, other.operations_per_second[kind])
                for kind, peak in self.operations_per_second.items()
            },
        )


class LimitsMeter:
    """Measures limits with the kernels of an artifact. A context manager.

    It reads a buffer of `nbytes`, at most 256 MiB, in huge pages where the system gives them. A
    buffer that fits a cache is read from the cache, as the weights of a small model are.
    """

    def __init__(self, artifact: Artifact, nbytes: int, num_threads: int | None = None) -> None:
        self.threads = num_threads or usable_processors()
        nbytes = min(max(nbytes, LEAST_BYTES), MOST_BYTES)
        program = artifact.target.main
        self._kernels = Kernels(artifact.read(program.kernels), program.kernels)
        self._region = Region(nbytes, "measuring the memory")
        # Untouched pages would all be the one page of zeros.
        self._region.floats(1, nbytes // 4).fill(1)

    def measure(self, tries: int = 1) -> MachineLimits:
        """The best of `tries` measurements, of a few milliseconds each."""
        return reduce(MachineLimits.best, (self._once() for _ in range(tries)))

    def _once(self) -> MachineLimits:
        kinds = enumerate(ARITHMETIC, READ + 1)
        return MachineLimits(
            threads=self.threads,
            read_bytes_per_second=self._rate(READ),
            operations_per_second={kind: self._rate(number) for number, kind in kinds},
        )

    def _rate(self, limit: int) -> float:
        region = self._region
        rate = self._kernels.measure(limit, self.threads, region.address, region.nbytes)
        if rate <= 0:
            raise ResourceError(f"{self.threads} threads cannot be started")
        return rate

    def __enter__(self) -> LimitsMeter:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernels.close()
        self._region.close()
