"""The values of an artifact as JSON. Equal ones give equal bytes, and decoding is strict."""

from __future__ import annotations

import hashlib
import re
from dataclasses import fields, replace
from functools import cache
from typing import Any, TypeVar

import msgspec

from ingot.artifact.decoding import decode_json
from ingot.artifact.manifest import FORMAT_VERSION, Manifest
from ingot.artifact.plan import Plan
from ingot.errors import ArtifactError, InternalError

T = TypeVar("T")

# The digest is the last field in every version, so that older readers can check it.
_DIGEST = re.compile(rb'"digest": "([0-9a-f]{64})"\n\}\n\Z')
_PLAIN = frozenset({str, int, float, bool, type(None)})
_RECOMPILE = "Compile it again, or fetch it again if it was copied."


def encode_plan(plan: Plan) -> bytes:
    """The bytes of `plan.json`."""
    return encode(plan, in_lines=True)


def decode_plan(data: bytes, *, file: str = "plan.json") -> Plan:
    """The plan in those bytes. Raises ArtifactError, naming `file`, if they are not a plan."""
    return decode(data, Plan, file, in_lines=True)


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of `manifest.json`, with the digest filled in."""
    digest = hashlib.sha256(encode(replace(manifest, digest=""))).hexdigest()
    return encode(replace(manifest, digest=digest))


def decode_manifest(data: bytes, *, file: str = "manifest.json") -> Manifest:
    """The manifest in those bytes.

    Raises ArtifactError, naming `file`, if they are not JSON, are not intact, have another major
    format version, or have other fields than those of this minor version, if they are of it.
    """
    version = _format_version(data, file)
    match = _DIGEST.search(data)
    if match is None:
        raise ArtifactError(f"{file}: ends without a digest", hint=_RECOMPILE)
    blank = data[: match.start(1)] + data[match.end(1) :]
    if hashlib.sha256(blank).hexdigest().encode() != match[1]:
        raise ArtifactError(f"{file}: does not match its own digest", hint=_RECOMPILE)
    return decode(data, Manifest, file, canonical=version == FORMAT_VERSION)


def encode(value: Any, *, in_lines: bool = False) -> bytes:
    """A dataclass as JSON, with a line for each item of a list where that is asked for.

    Raises InternalError for a value that would not be read as it is.
    """
    data = _json(value, in_lines=in_lines)
    kind = type(value)
    # JSON has no inf or nan. Better to refuse here than when somebody reads the artifact.
    try:
        same = decode_json(data, kind) == value
    except msgspec.ValidationError:
        same = False
    if not same:
        raise InternalError(f"{kind.__name__} does not survive JSON (a float that is not finite?)")
    return data


def decode(
    data: bytes, kind: type[T], file: str, *, in_lines: bool = False, canonical: bool = True
) -> T:
    """The value of that kind in what `encode` wrote.

    Raises ArtifactError, naming `file`, if the bytes are not such, or, where they have to be
    canonical, not exactly what `encode` would write.
    """
    try:
        value = decode_json(data, kind)
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{file}: {error}", hint=_RECOMPILE) from error
    if canonical and _json(value, in_lines=in_lines) != data:
        raise ArtifactError(
            f"{file}: not what ingot writes (unknown or repeated fields, or edits)",
            hint=_RECOMPILE,
        )
    return value


def _format_version(data: bytes, file: str) -> tuple[int, int]:
    class Head(msgspec.Struct):
        format: tuple[int, int]

    try:
        version = msgspec.json.decode(data, type=Head).format
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ArtifactError(f"{file}: {error}", hint=_RECOMPILE) from error
    if version[0] != FORMAT_VERSION[0]:
        raise ArtifactError(
            f"{file}: format version {version[0]}.{version[1]}",
            hint=f"This ingot reads {FORMAT_VERSION[0]}.x. Compile the model again with it.",
        )
    return version


def _json(value: Any, *, in_lines: bool) -> bytes:
    if in_lines:
        return _in_lines(_lean(value)) + b"\n"
    data = msgspec.json.encode(value, order="deterministic")
    return msgspec.json.format(data, indent=1) + b"\n"


def _lean(value: Any) -> Any:
    """A value as plain data. Fields that have their default are left out."""
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if kind is list or kind is tuple:
        return [_lean(item) for item in value]
    if kind is dict:
        return {key: value[key] for key in sorted(value)}
    pairs = ((name, default, getattr(value, name)) for name, default in _defaults(kind))
    return {name: _lean(v) for name, default, v in pairs if v != default}


@cache
def _defaults(kind: type[Any]) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass with their defaults; those without have one that nothing equals."""
    return tuple((field.name, field.default) for field in fields(kind))


def _in_lines(lean: dict[str, Any]) -> bytes:
    """JSON with a line for each item of a top-level list, such as an instruction."""
    parts = []
    for name, value in lean.items():
        items = value if isinstance(value, list) else [value]
        lines = b",\n".join(map(msgspec.json.encode, items))
        whole = b"[\n%b\n]" % lines if isinstance(value, list) else lines
        parts.append(msgspec.json.encode(name) + b": " + whole)
    return b"{\n" + b",\n".join(parts) + b"\n}"
