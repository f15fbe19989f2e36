"""The open inference protocol, version 2: text or tokens in, text and tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine, Sequence
from typing import Any

from ingot.errors import UnknownModelError
from ingot.serve.edge.guard import Host
from ingot.serve.edge.record import Record, cuttable
from ingot.serve.engine import Piece
from ingot.serve.grpc.asking import asking
from ingot.serve.grpc.call import noted, part_of_stream, recorded, refuse_draining
from ingot.serve.grpc.messages import joined
from ingot.serve.grpc.stubs import open_inference_pb2 as oip
from ingot.serve.grpc.stubs import open_inference_pb2_grpc
from ingot.serve.grpc.tensors import (
    Tensor,
    inputs_of,
    object_of,
    parameters_of,
    response_of,
    texts,
)
from ingot.serve.openai.fields import FieldError
from ingot.serve.requests.context import ServerContext
from ingot.version import __version__

VERSION = "1"  # of every model; a reload keeps the name
EXTENSIONS = ("model_stream_infer",)
# What a tensor of a batch is: -1 is its length.
INPUTS = {"text_input": "BYTES", "input_ids": "INT64", "sampling_parameters": "BYTES"}
OUTPUTS = {
    "text_output": "BYTES",
    "finish_reason": "BYTES",
    "num_output_tokens": "INT64",
    "output_ids": "INT64",
}
MAX_AHEAD = 64  # responses that wait for a slow reader of a stream
MAX_PARTS = 64  # requests of a stream that are under way; further ones are not read meanwhile
_OURS = {"triton_enable_empty_final_response", "stream"}  # of Triton's clients; they change nothing


class OpenInference(open_inference_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The service over the models of a server."""

    def __init__(self, server: ServerContext, host: Host) -> None:
        self._server = server
        self._host = host
        self._stopping = asyncio.Event()

    async def stop(self) -> None:
        """Streams end when what they were asked for is answered; they take nothing more."""
        self._stopping.set()

    async def ServerLive(self, request: Any, context: Any) -> Any:
        return oip.ServerLiveResponse(live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:
        return oip.ServerReadyResponse(ready=self._server.is_ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:
        return oip.ModelReadyResponse(ready=self._status(request).state == "loaded")

    async def ServerMetadata(self, request: Any, context: Any) -> Any:
        return oip.ServerMetadataResponse(name="ingot", version=__version__, extensions=EXTENSIONS)

    async def ModelMetadata(self, request: Any, context: Any) -> Any:
        self._status(request)
        tensor = oip.ModelMetadataResponse.TensorMetadata
        return oip.ModelMetadataResponse(
            name=request.name,
            versions=[VERSION],
            platform="ingot",
            inputs=[tensor(name=n, datatype=kind, shape=[-1]) for n, kind in INPUTS.items()],
            outputs=[tensor(name=n, datatype=kind, shape=[-1]) for n, kind in OUTPUTS.items()],
        )

    async def ModelInfer(self, request: Any, context: Any) -> Any:
        async with asking(self._server, body_of(request), stream=False) as run:
            parts: dict[int, list[Any]] = {}
            async for number, progress in run.steps:
                parts.setdefault(number, []).append(progress)
        pieces = [piece for number in sorted(parts) for piece in joined(parts[number]).pieces]
        return response_of(request, tensors_of(pieces))

    async def ModelStreamInfer(self, requests: Any, context: Any) -> AsyncIterator[Any]:
        """Answers each request as it runs; what fails ends that request and not the stream."""
        queue: asyncio.Queue[Any] = asyncio.Queue(MAX_AHEAD)
        room = asyncio.Semaphore(MAX_PARTS)

        async def read(group: asyncio.TaskGroup) -> None:
            number = 0
            async for request in requests:
                number += 1
                await room.acquire()
                part = self._part(request, part_of_stream(number), queue)
                group.create_task(part).add_done_callback(lambda _: room.release())

        async def serve() -> None:
            async with asyncio.TaskGroup() as group:
                await self._until_stop(read(group))
            await queue.put(None)

        task = asyncio.create_task(serve())
        try:
            while (response := await queue.get()) is not None:
                yield response
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _until_stop(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, unless the server stops before its end."""
        tasks = [asyncio.create_task(each) for each in (work, self._stopping.wait())]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
        for task in done:
            task.result()

    async def _part(self, request: Any, record: Record, queue: asyncio.Queue[Any]) -> None:
        with recorded(self._host, record):
            try:
                with cuttable():
                    refuse_draining(self._host)
                    await self._stream(request, queue)
            except Exception as error:
                text = str(noted(error, record))
                empty = oip.ModelInferResponse(model_name=request.model_name, id=request.id)
                failed = oip.ModelStreamInferResponse(error_message=text, infer_response=empty)
                await queue.put(failed)

    async def _stream(self, request: Any, queue: asyncio.Queue[Any]) -> None:
        async with asking(self._server, body_of(request), stream=True) as run:
            async for _, progress in run.steps:
                tensors = tensors_of(progress.pieces)
                told = response_of(request, tensors, final=progress.finished)
                await queue.put(oip.ModelStreamInferResponse(infer_response=told))

    def _status(self, request: Any) -> Any:
        """The status of the model that a request names. Raises UnknownModelError."""
        for status in self._server.models.status():
            if request.name in (status.name, *status.aliases):
                _check_version(request.version)
                return status
        raise UnknownModelError(f"there is no model {request.name!r}")


def body_of(request: Any) -> dict[str, Any]:
    """The body that asks the same by HTTP. Raises FieldError."""
    _check_version(request.model_version)
    inputs = inputs_of(request)
    if unknown := inputs.keys() - INPUTS.keys() - _OURS:
        raise FieldError(
            "inputs", f"there is no input {min(unknown)!r}", hint=f"There are: {', '.join(INPUTS)}."
        )
    body = parameters_of(request)
    for text in texts("sampling_parameters", inputs.get("sampling_parameters", ())):
        body |= object_of("sampling_parameters", text)
    given = [name for name in ("text_input", "input_ids") if name in inputs]
    if len(given) != 1:
        raise FieldError("inputs", "a request has either text_input or input_ids")
    values = inputs[given[0]]
    prompt = texts("text_input", values) if given == ["text_input"] else values
    fields = {name: value for name, value in body.items() if name not in _OURS}
    return fields | {"model": request.model_name or None, "prompt": prompt}


def tensors_of(pieces: Sequence[Piece]) -> list[Tensor]:
    """Completions as outputs: an element for each, and the tokens of all in a row."""
    values: dict[str, list[Any]] = {
        "text_output": [piece.text.encode() for piece in pieces],
        "finish_reason": [(piece.finish_reason or "").encode() for piece in pieces],
        "num_output_tokens": [len(piece.token_ids) for piece in pieces],
        "output_ids": [token for piece in pieces for token in piece.token_ids],
    }
    return [Tensor(name, kind, values[name]) for name, kind in OUTPUTS.items()]


def _check_version(version: str) -> None:
    if version not in ("", VERSION):
        raise UnknownModelError(
            f"there is no version {version!r}", hint=f"Models have version {VERSION} alone."
        )
