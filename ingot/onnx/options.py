"""The options of an export, and its report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from ingot.artifact.formats import DType
from ingot.compiler.options import CompileOptions, check_known
from ingot.errors import UsageError

OPSETS = (23, 18)
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOptions:
    """Options of an export.

    Attributes:
        opset: of ONNX's operators, one of OPSETS.
        dtype: "float32" everywhere; "bfloat16" for matrices, which are widened where they are used;
            "float16" for matrices, products, keys and values. "auto" is float32.
        quantize, group_size, keep, calibrate, dequantize: as of a compile; see `CompileOptions`.
        max_model_len: longest sequence; None takes the model's own maximum.

    Raises UsageError, which names the value and what is supported.
    """

    opset: int = 23
    dtype: str = "auto"
    quantize: str = "none"
    group_size: str | int = ""
    keep: tuple[str, ...] = ()
    calibrate: Path | None = None
    dequantize: bool = False
    max_model_len: int | None = None
    compile: CompileOptions = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.opset not in OPSETS:
            supported = ", ".join(map(str, OPSETS))
            raise UsageError(f"opset is {self.opset!r}", hint=f"Supported: {supported}.")
        check_known("dtype", self.dtype, DTYPES)
        options = CompileOptions(
            targets=("cpu:portable",),  # what is exported is for no target
            dtype="float32",
            quantize=self.quantize,
            group_size=self.group_size,
            keep=self.keep,
            calibrate=self.calibrate,
            dequantize=self.dequantize,
            max_model_len=self.max_model_len,
        )
        object.__setattr__(self, "compile", options)

    @property
    def stored(self) -> DType:
        """The dtype of matrices that are not stored in integers."""
        return "float32" if self.dtype == "auto" else self.dtype  # type: ignore[return-value]

    @property
    def narrow(self) -> DType:
        """The dtype of products, keys and values."""
        return "float16" if self.dtype == "float16" else "float32"


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxReport:
    """The result of an export.

    Attributes:
        folder: where it lies; files: bytes of each file in it.
        dtype: of matrices that are not in integers; quantization: in the words of a compile.
        wide: the matrices whose products are in float32, since float16 does not hold their sums.
        operators: how often each operator occurs, by the name of the file.
        errors: relative error of logits against the float32 reference, by the name of the file;
            none where there was too little memory to run the file. allowed: the largest.
        seconds: how long it took; stage_seconds: the same of every stage.
    """

    folder: Path
    opset: int
    dtype: str
    quantization: str
    files: dict[str, int]
    operators: dict[str, dict[str, int]]
    errors: dict[str, float]
    allowed: float
    seconds: float
    stage_seconds: dict[str, float]
    wide: tuple[str, ...] = ()
