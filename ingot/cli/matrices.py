"""Matrices that are alike, in words."""

from __future__ import annotations

from ingot.artifact.matrices import StoredMatrix


def name_of(matrix: StoredMatrix) -> str:
    """`layers.*.mlp.down_proj (30)`."""
    return f"{matrix.name} ({matrix.count})" if matrix.count > 1 else matrix.name


def shape_of(matrix: StoredMatrix) -> str:
    """`576x1536`."""
    return "x".join(map(str, matrix.shape))
