"""Results of the child process that runs Triton: bytes of a file for each kernel."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Compiled:
    """A cubin, and what only Triton knows of it.

    Attributes:
        shared_bytes: shared memory that a launch asks for.
        scratch_bytes: global memory of a program that the kernel expects.
        programs: that are launched together as one cluster.
    """

    cubin: bytes
    shared_bytes: int
    scratch_bytes: int = 0
    programs: int = 1

    def encode(self) -> bytes:
        """Encodes as a file: a line of JSON, then the cubin."""
        head = {"shared": self.shared_bytes, "scratch": self.scratch_bytes, "ctas": self.programs}
        return json.dumps(head).encode() + b"\n" + self.cubin

    @classmethod
    def decode(cls, data: bytes) -> Compiled:
        """Decodes the result of `encode`."""
        line, _, cubin = data.partition(b"\n")
        head = json.loads(line)
        return cls(cubin, head["shared"], head["scratch"], head["ctas"])
