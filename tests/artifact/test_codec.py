from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.codec import decode_manifest, decode_plan, encode_manifest, encode_plan
from ingot.artifact.manifest import FileEntry
from ingot.artifact.plan import Instruction
from ingot.errors import ArtifactError, InternalError
from tests.runtime.fake_model import make_manifest, make_plan

ATTRS = {"eps": 1e-6, "window": 0, "interleaved": False, "kind": "silu", "one": 1.0}


def plan_with(**attrs):
    step = Instruction(op="x", inputs={"a": "b"}, outputs={}, attrs=attrs, origin="layers.0")
    return replace(make_plan(), instructions=(step,))


def test_a_plan_comes_back_equal_and_with_the_same_types():
    plan = plan_with(**ATTRS)
    back = decode_plan(encode_plan(plan))
    assert back == plan
    attrs = back.instructions[0].attrs
    assert {n: type(v) for n, v in attrs.items()} == {n: type(v) for n, v in ATTRS.items()}


@given(st.dictionaries(st.text(max_size=5), st.floats(allow_nan=False, allow_infinity=False)))
@settings(max_examples=100, deadline=None)
def test_every_float_survives_exactly(attrs):
    assert decode_plan(encode_plan(plan_with(**attrs))).instructions[0].attrs == attrs


def test_the_same_value_gives_the_same_bytes_whatever_the_order_of_insertion():
    forwards = replace(make_manifest(), files={"a": FileEntry(size=1, sha256="0" * 64)})
    files = {"b": FileEntry(size=2, sha256="1" * 64), **forwards.files}
    one = encode_manifest(replace(forwards, files=files))
    other = encode_manifest(replace(forwards, files=dict(reversed(files.items()))))
    assert one == other
    assert one != encode_manifest(forwards)
    assert encode_plan(plan_with(a=1, b=2)) == encode_plan(plan_with(b=2, a=1))


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_json_cannot_say_is_refused_while_writing(value):
    with pytest.raises(InternalError, match="not finite"):
        encode_plan(plan_with(eps=value))


def edit(data: bytes, change) -> bytes:
    """The manifest with a change made to its JSON and a digest that is right again."""
    value = json.loads(data)
    change(value)
    del value["digest"]
    value["digest"] = ""  # stays last
    blank = msgspec.json.format(json.dumps(value).encode(), indent=1) + b"\n"
    digest = hashlib.sha256(blank).hexdigest()
    return blank.replace(b'"digest": ""\n}', f'"digest": "{digest}"\n}}'.encode())


def test_an_unknown_field_is_refused_but_read_in_a_newer_minor_version():
    data = encode_manifest(make_manifest())
    with pytest.raises(ArtifactError, match=r"manifest\.json: not what ingot writes"):
        decode_manifest(edit(data, lambda m: m.update(surprise=1)))

    def newer(manifest):
        manifest["format"] = [1, 7]
        manifest["surprise"] = 1

    assert decode_manifest(edit(data, newer)).format == (1, 7)
    assert decode_manifest(edit(data, lambda m: None)) == decode_manifest(data)


def test_another_major_version_is_refused_before_anything_else_is_looked_at():
    with pytest.raises(ArtifactError, match=r"format version 2\.0\n.*reads 1\.x"):
        decode_manifest(b'{"format": [2, 0], "nothing": "else"}')


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"format": "1"}', b"[" * 100_000, b'{"format":[1,0]}']
)
def test_what_is_no_manifest_is_refused_by_name(data):
    with pytest.raises(ArtifactError, match=r"folder/manifest\.json"):
        decode_manifest(data, file="folder/manifest.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"dtype": "int32"', b'"dtype": "int33"'),
        (b'"offset": 0', b'"offset": "0"'),
        (b'"offset": 0', b'"offset": 0.5'),
        (b'"kind": "weight"', b'"kind": "weights"'),
        (b'"offset": 0', b'"offset": 0, "x": 1'),
        (b'"offset": 0', b'"offset": 0, "offset": 0'),
        (b'"arena_bytes"', b'"arena_byte"'),
        (b"\n}\n", b"\n}"),
    ],
)
def test_a_plan_that_is_not_exactly_one_is_refused(old, new):
    data = encode_plan(plan_with(**ATTRS))
    assert old in data
    with pytest.raises(ArtifactError, match=r"plan\.json: "):
        decode_plan(data.replace(old, new, 1))


def test_every_bit_of_a_manifest_counts():
    data = encode_manifest(make_manifest())
    for index in range(len(data)):
        flipped = bytearray(data)
        flipped[index] ^= 1 << (index % 8)
        with pytest.raises(ArtifactError):
            decode_manifest(bytes(flipped))
