"""The modules of the `.proto` files: `ingot_v1_pb2`, `open_inference_pb2`, and each with `_grpc`.

The wheel has them here. A clone makes them on first use, in the cache, which needs grpcio-tools.
"""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ingot.errors import UsageError
from ingot.serve.grpc.make_stubs import generated_once
from ingot.settings import settings

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...


if not any(Path(__file__).parent.glob("*_pb2.py")):
    try:
        __path__ = [str(generated_once(settings().cache_dir / "stubs"))]
    except PackageNotFoundError as error:
        raise UsageError(
            "this clone has no modules of its .proto files, and grpcio-tools is not installed",
            hint="pip install grpcio-tools, or install ingot's wheel.",
        ) from error
