"""Reads the tensors of a model directory by the names of the module's parameters.

Opening a checkpoint checks every name, shape and dtype from the headers alone. Reading a tensor
goes through a memory map, checks that its values are finite, and drops the pages of the tensor that
was read before. So a model of any size streams through little memory. Matrices that are stored
quantized are read as the numbers that they stand for, or as integers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from ingot.artifact.formats import Storage
from ingot.errors import CheckpointError
from ingot.models.blocks.constants import named_constants
from ingot.models.checkpoints.checkpoint_files import open_files
from ingot.models.checkpoints.formats.cache_scales import ignored_scales
from ingot.models.checkpoints.formats.quantized import (
    Array,
    Decoded,
    EncodedTensor,
    QuantizedTensor,
)
from ingot.models.checkpoints.formats.resolve import with_quantized
from ingot.models.checkpoints.mapped_file import MappedCheckpoint, TensorInfo
from ingot.models.checkpoints.sources import (
    AnySource,
    Decayed,
    Joined,
    Multiplied,
    Source,
    Stacked,
    Summed,
    Totaled,
)
from ingot.models.checkpoints.tensor_reader import PIECE_BYTES, Checked, TensorReader
from ingot.models.checkpoints.weight_table import idle_biases, quantized_sources, resolve_sources
from ingot.models.foreign.config import AnyConfig
from ingot.models.model_dir import ModelDir
from ingot.ops.scaled import Scaled, stack, stack_matrices
from ingot.ops.stacks import stack_of

_LARGEST = np.finfo(np.float16).max
_TORCH_DTYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}


class Checkpoint:
    """An open checkpoint. Open it with `Checkpoint.open`; close it, or use it in a `with`.

    `ignored` says what it has that a user might expect to count, and that does not.
    """

    def __init__(
        self,
        files: tuple[MappedCheckpoint, ...],
        sources: dict[str, AnySource],
        constants: dict[str, torch.Tensor],
        copies: dict[str, str],
        ignored: tuple[str, ...] = (),
        checked: Checked | None = None,
        grouped: frozenset[str] = frozenset(),
    ) -> None:
        self.ignored = ignored
        self._files = files
        self._reader = TensorReader(files, checked)
        self._sources = sources
        self._constants = constants
        self._copies = copies
        self._grouped = grouped  # matrices whose columns are read in the order of their groups

    @classmethod
    def open(cls, model_dir: ModelDir, config: AnyConfig, module: nn.Module) -> Checkpoint:
        """Opens the files and checks every tensor against the module, reading headers only.

        Raises:
            ModelDirError: an index that cannot be read.
            CheckpointError: files that are damaged; tensors that are missing, left over, misshapen
                or of a wrong dtype.
        """
        files = open_files(model_dir)
        try:
            infos = {name: info for file in files for name, info in file.tensors.items()}
            infos = with_quantized(model_dir, infos)
            shapes = {name: tuple(p.shape) for name, p in module.named_parameters()}
            sources, copies = resolve_sources(infos, config, shapes)
        except Exception:
            for file in files:
                file.close()
            raise
        ignored = ignored_scales(infos)
        checkpoint = cls(files, sources, named_constants(module), copies, ignored)
        with closing_on_error(checkpoint):
            checkpoint.check_idle(infos)
        return checkpoint

    def check_idle(self, infos: Mapping[str, TensorInfo]) -> None:
        """Raises CheckpointError for biases that no parameter is read from and that are not 0."""
        read = {info.name for source in self._sources.values() for info in source.infos}
        for name in sorted(idle_biases(infos, read)):
            if self._reader.part(infos[name]).any():
                raise CheckpointError(
                    f"the checkpoint has {name}, which the model does not use, and which is not 0",
                    hint="check that config.json and the weights belong together",
                )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all parameters and constants that `read` knows."""
        return (*self._sources, *self._constants)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of a parameter or constant."""
        if name in self._constants:
            return tuple(self._constants[name].shape)
        return self._sources[name].shape

    def dtype(self, name: str) -> torch.dtype:
        """The dtype of what `read` returns: the checkpoint's own; float32 of constants, sums,
        products and decays."""
        if name in self._constants or isinstance(
            self._sources[name], Summed | Multiplied | Decayed | Totaled
        ):
            return torch.float32
        return _TORCH_DTYPES[self._sources[name].info.dtype]

    @property
    def quantized(self) -> dict[str, QuantizedTensor]:
        """The parameters that the checkpoint stores quantized, and the matrix that each is in."""
        return quantized_sources(self._sources)

    def order(self, name: str) -> Array | None:
        """The columns of a quantized parameter in the order of their groups; None for their own.

        Raises CheckpointError for groups that are no such order, and for experts that have one.
        """
        source = self._sources[name]
        if len({info.name for info in source.infos}) == 1:
            info = source.info
            return self._order(info) if isinstance(info, QuantizedTensor) else None
        found = [self._order(info) for info in source.infos if isinstance(info, QuantizedTensor)]
        if any(each is not None for each in found):
            raise CheckpointError(
                f"the columns of the matrices in {name} are grouped in an order of their own each",
                hint="Give --dequantize, which reads the numbers that the integers stand for.",
            )
        return found[0] if found else None

    def read_grouped(self, names: Iterable[str], constants: Mapping[str, Tensor]) -> None:
        """From now on gives these parameters with their columns in the order of their groups.

        `constants` are all that `read` then knows.
        """
        self._grouped |= {self._sources[name].info.name for name in names}
        self._constants = dict(constants)

    def scaled(self, name: str, start: int = 0, stop: int | None = None) -> Scaled:
        """A parameter that is stored quantized, or its rows start..stop, as integers.

        Raises:
            CheckpointError: values that the format does not allow; scales that are not exact.
        """
        source = self._sources[name]
        stop = source.shape[0] if stop is None else stop
        if isinstance(source, Stacked):
            experts = source.experts[start:stop]
            return stack_matrices([stack([self._integers(p) for p in parts]) for parts in experts])
        if isinstance(source, Joined):
            pieces = source.pieces(start, stop)
            return stack([self._integers(part, *rows) for part, *rows in pieces if part])
        assert isinstance(source, Source), "what is computed is not stored in integers"
        return self._integers(source, start, stop)

    def integers(self, name: str) -> Scaled | None:
        """A parameter as the integers that it is stored in; None where no storage holds them."""
        matrix = self.quantized.get(name)
        return self.scaled(name) if matrix and matrix.encoding.storage else None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> torch.Tensor:
        """A parameter or constant, or its rows start..stop, on the CPU in the checkpoint's dtype.

        A name of `matrix_name` reads one matrix of a stack.

        The tensor is a view of the file, or a copy if the file stores it transposed. A view is
        valid until the checkpoint is closed. Writing to it never changes the file, and the next
        read loses what was written. Reading drops the pages of earlier views from memory; they come
        back when they are used again.

        Raises:
            CheckpointError: values that are not finite; a copy of a tied tensor that differs.
        """
        if name in self._constants:
            return self._constants[name][start:stop].clone()
        stack, index = stack_of(name)
        if name not in self._sources and stack in self._sources:
            return self.read(stack, index, index + 1)[0][start:stop]
        source = self._sources[name]
        self._reader.forget()
        stop = source.shape[0] if stop is None else stop
        if isinstance(source, Stacked):
            return self._experts(source, start, stop)
        if isinstance(source, Joined):
            return self._joined(source, start, stop)
        if isinstance(source, Summed):
            return self._sums(source)[start:stop]
        if isinstance(source, Multiplied):
            return self._products(source)[start:stop]
        if isinstance(source, Totaled):
            parts = [self._numbers(part, start, stop).float() for part in source.parts]
            return torch.stack(parts).sum(0)
        if isinstance(source, Decayed):
            return -self._numbers(source.logarithms, start, stop).float().exp()
        return self._numbers(source, start, stop)

    def pieces(self, name: str, max_bytes: int = PIECE_BYTES) -> Iterator[torch.Tensor]:
        """Yields a parameter from its first row to its last, as tensors of whole rows.

        Each tensor has at most max_bytes, but at least one row.
        """
        rows, *rest = self.shape(name)
        row_bytes = self.dtype(name).itemsize * int(np.prod(rest, dtype=np.int64))
        step = max(1, max_bytes // max(1, row_bytes))
        for start in range(0, rows, step):
            yield self.read(name, start, min(start + step, rows))

    def beside(self) -> Checkpoint:
        """Opens the checkpoint for another thread, whose own reads it drops from memory; closed
        with this one."""
        return Checkpoint(
            self._files,
            self._sources,
            self._constants,
            self._copies,
            self.ignored,
            self._reader.checked,
            self._grouped,
        )

    def forget(self) -> None:
        """Drops all that was read from memory, whichever thread has read it."""
        for file in self._files:
            file.forget(0, file.size)

    def close(self) -> None:
        """Closes the files; tensors that were read from them must not be used afterwards."""
        for file in self._files:
            file.close()

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _experts(self, source: Stacked, start: int, stop: int) -> torch.Tensor:
        """Experts start..stop, copied one after the other."""
        shape = (stop - start, *source.shape[1:])
        experts = torch.empty(shape, dtype=_TORCH_DTYPES[source.info.dtype])
        for expert, parts in zip(experts, source.experts[start:stop], strict=True):
            first = 0
            for part in parts:
                last = first + part.shape[0]
                expert[first:last] = self._numbers(part, 0, part.shape[0])
                first = last
                self._reader.forget()
        return experts

    def _joined(self, source: Joined, start: int, stop: int) -> torch.Tensor:
        """Rows start..stop, copied one part after the other."""
        shape = (stop - start, *source.shape[1:])
        rows, filled = torch.zeros(shape, dtype=_TORCH_DTYPES[source.info.dtype]), 0
        for part, first, last in source.pieces(start, stop):
            if part is not None:
                rows[filled : filled + last - first] = self._numbers(part, first, last)
                self._reader.forget()
            filled += last - first
        return rows

    def _sums(self, source: Summed) -> torch.Tensor:
        """Rows of one tensor, each with all of another's added; float32, since sums are no numbers
        of the checkpoint."""
        parts = (source.outer, source.inner)
        outer, inner = (self._numbers(each, 0, each.shape[0]).float() for each in parts)
        return (outer[:, None] + inner).reshape(source.shape)

    def _products(self, source: Multiplied) -> torch.Tensor:
        """For each head the rows of a table times its rows of a matrix, in float32."""
        rule = source.rule
        parts = (self._numbers(part, 0, part.shape[0]).float() for part in source.parts)
        table, matrix, bias, *norm = parts
        if norm:
            weight, shift = norm
            table = functional.layer_norm(table, (rule.columns,), weight, shift, rule.eps)
        heads = functional.linear(table, matrix, bias).view(rule.count, -1, source.shape[1])
        return heads.transpose(0, 1).reshape(source.shape)

    def _numbers(self, source: Source, start: int, stop: int) -> torch.Tensor:
        """Rows start..stop of a source, whose values are finite."""
        if isinstance(matrix := source.info, EncodedTensor):
            return torch.from_numpy(self._decoded(source, matrix, start, stop))
        view = self._reader.rows(source, start, stop)
        self._reader.check(source, view, self._copies.get(source.info.name), start, stop)
        tensor = torch.from_numpy(view).view(_TORCH_DTYPES[source.info.dtype])
        return tensor.view(stop - start, *source.shape[1:])

    def _decoded(
        self, source: Source, matrix: EncodedTensor, start: int, stop: int
    ) -> NDArray[np.float32]:
        """The numbers of rows of an encoded matrix, decoded some rows at a time."""

        order = None if matrix.name in self._grouped else self._order(matrix)
        places = slice(None) if order is None else np.argsort(order)

        def numbers(first: int, last: int) -> NDArray[np.float32]:
            return self._encoded(matrix, first, last).numbers()[..., places]

        row_bytes = 4 * int(np.prod(source.shape[1:], dtype=np.int64))
        step = max(1, PIECE_BYTES // max(1, row_bytes))
        if source.turned or stop - start <= step:
            return source.gathered(start, stop, numbers)
        out = np.empty((stop - start, *source.shape[1:]), np.float32)
        for begin in range(start, stop, step):
            end = min(begin + step, stop)
            out[begin - start : end - start] = source.gathered(begin, end, numbers)
        return out

    def _integers(self, source: Source, start: int = 0, stop: int | None = None) -> Scaled:
        """Rows start..stop of a quantized matrix."""
        matrix = source.info
        assert isinstance(matrix, QuantizedTensor), f"{matrix.name} is stored as it is"
        storage = matrix.encoding.storage
        assert storage is not None, f"no storage holds {matrix.name}"
        self._reader.forget()
        first, last, places = source.span(start, source.shape[0] if stop is None else stop)
        held = self._encoded(matrix, first, last).mapped(lambda rows: rows[places])
        return scaled(matrix.name, held, storage)

    def _encoded(self, matrix: EncodedTensor, first: int, last: int) -> Decoded:
        """Rows first..last of a quantized matrix, with the columns of a group as neighbours."""
        rows, order = matrix.encoding.rows(self._reader.part, first, last), self._order(matrix)
        return rows if order is None else replace(rows, values=rows.values[..., order])

    def _order(self, matrix: EncodedTensor) -> Array | None:
        order = matrix.order if isinstance(matrix, QuantizedTensor) else None
        return None if order is None else order.columns(self._reader.part)


@contextmanager
def closing_on_error(checkpoint: Checkpoint) -> Iterator[None]:
    """Closes a checkpoint that nobody will get."""
    try:
        yield
    except Exception:
        checkpoint.close()
        raise


def materialize(module: nn.Module, checkpoint: Checkpoint) -> nn.Module:
    """Gives a meta module its real values in float32, in place; for tests and small models."""
    module.to_empty(device="cpu")
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            tensor.copy_(checkpoint.read(name))
    return module


def scaled(name: str, rows: Decoded, storage: Storage) -> Scaled:
    """Decoded rows of a matrix in the storage that its encoding names.

    Raises:
        CheckpointError: a scale that float16 does not hold exactly.
    """
    form = storage.of(rows.values.shape[-1])
    block = rows.block or rows.group

    def small(of_groups: Array | None) -> torch.Tensor | None:
        """What a wide group has, for each of those that it becomes."""
        each = -(-rows.group // form.group)
        wanted = None if of_groups is None else of_groups.astype(np.int8).repeat(each, axis=-1)
        return None if wanted is None else _tensor(wanted)

    scales = _exact(name, rows).repeat(-(-block // form.block), axis=-1)
    minimums = rows.minimums
    if minimums is not None:
        minimums = minimums.repeat(-(-block // form.block), axis=-1)
    return Scaled(
        _tensor(rows.values),
        small(rows.multipliers),
        _tensor(scales),
        small(rows.zeros),
        None if minimums is None else _tensor(minimums),
        block=form.block,
        group=form.group,
    )


def _exact(name: str, rows: Decoded) -> Array:
    """The scales, which float16 holds; 0 for groups of zeros, which need none."""
    scales = rows.scales
    rounded = np.clip(scales, -_LARGEST, _LARGEST).astype(np.float16).astype(np.float32)
    if np.array_equal(rounded, scales):
        return scales
    groups = rows.values.reshape(*scales.shape, rows.group)
    zeros = 0 if rows.zeros is None else rows.zeros[..., None]
    empty = (groups == zeros).all(-1)
    wrong = (rounded != scales) & ~empty
    if not wrong.any():
        return np.where(empty, np.float32(0), scales)
    raise CheckpointError(
        f"{name} has the scale {float(scales[wrong][0]):.9g}, which float16 cannot hold exactly",
        hint="Give --dequantize, which reads the numbers that the integers stand for.",
    )


def _tensor(array: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array))
