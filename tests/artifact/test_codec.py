from __future__ import annotations

import hashlib
import json
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot.artifact.codec import decode_manifest, decode_plan, encode_manifest, encode_plan
from ingot.artifact.formats import Format, rounded_rows
from ingot.artifact.manifest import FileEntry
from ingot.artifact.plan import Buffer, Group, Instruction, MemoryPlan, Plan, Slot
from ingot.artifact.spec import Spec
from ingot.errors import ArtifactError, InternalError
from tests.runtime.fake_model import LIMITS, make_manifest, make_plan

ATTRS = {"eps": 1e-6, "window": 0, "interleaved": False, "kind": "silu", "one": 1.0}


def plan_with(**attrs):
    step = Instruction(op="x", inputs={"a": "b"}, outputs={}, attrs=attrs, origin="layers.0")
    x = Buffer(name="x", format=rounded_rows(32), shape=("N", 64), kind="arena", offset=64)
    plan = make_plan()
    return replace(plan, buffers=(*plan.buffers, x), instructions=(step,))


def test_a_plan_comes_back_equal_and_with_the_same_types():
    plan = plan_with(**ATTRS)
    back = decode_plan(encode_plan(plan))
    assert back == plan
    attrs = back.instructions[0].attrs
    assert {n: type(v) for n, v in attrs.items()} == {n: type(v) for n, v in ATTRS.items()}


def test_everything_that_a_plan_can_hold_comes_back():
    plan = replace(
        plan_with(**ATTRS),
        groups=(Group(kernel="linear", first=0), Group(kernel="gate", first=0, count=2)),
        memory=MemoryPlan(
            arena_bytes=1 << 40,
            slots=(Slot(name="x", offset=64, nbytes=64, first_use=0, last_use=3),),
        ),
    )
    back = decode_plan(encode_plan(plan))
    assert back == plan and back.by_name == plan.by_name and back.kernels == plan.kernels


def test_a_plan_has_a_line_for_every_item_and_none_of_its_defaults():
    lines = encode_plan(plan_with(eps=0.5)).decode().splitlines()
    assert (
        '{"op":"x","inputs":{"a":"b"},"outputs":{},"attrs":{"eps":0.5},"origin":"layers.0"}'
        in lines
    )
    assert '{"name":"scale","format":{"dtype":"float32"},"shape":[16],"kind":"weight"},' in lines
    assert (
        '{"name":"x","format":{"dtype":"int8","block":32,"group":32},"shape":["N",64],'
        '"kind":"arena","offset":64}' in lines
    )
    assert not any(line.startswith('"groups"') for line in lines)


def test_a_plan_of_nothing_but_defaults_comes_back():
    plan = Plan(limits=LIMITS, spec=Spec(), buffers=(), instructions=())
    assert decode_plan(encode_plan(plan)) == plan
    built = replace(plan, memory=MemoryPlan(arena_bytes=int("0"), slots=()))
    assert encode_plan(built) == encode_plan(plan)


def test_a_default_that_a_value_only_equals_is_not_left_out():
    """0 and False, 1 and True, 1.0 are equal in Python and are other JSON."""
    for attrs in ({"a": 0, "b": 1}, {"a": False, "b": True}, {"a": 0.0, "b": 1.0}):
        back = decode_plan(encode_plan(plan_with(**attrs))).instructions[0].attrs
        assert [(n, type(v)) for n, v in back.items()] == [(n, type(v)) for n, v in attrs.items()]
    wide = Buffer(
        name="w", format=Format("int4", 128, 32, "float16"), shape=(1, 128), kind="weight"
    )
    plan = replace(make_plan(), buffers=(wide,))
    assert decode_plan(encode_plan(plan)).buffer("w").format == wide.format


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
        manifest["format"] = [3, 7]
        manifest["surprise"] = 1

    assert decode_manifest(edit(data, newer)).format == (3, 7)
    assert decode_manifest(edit(data, lambda m: None)) == decode_manifest(data)


def test_an_earlier_minor_version_is_read_without_the_fields_that_came_later():
    def earlier(manifest):
        manifest["format"] = [3, 2]
        for entry in manifest["targets"]:
            del entry["core_cache_bytes"]

    read = decode_manifest(edit(encode_manifest(make_manifest()), earlier))
    assert read.format == (3, 2) and {each.core_cache_bytes for each in read.targets} == {0}


@pytest.mark.parametrize("major", [0, 1, 2, 4])
def test_another_major_version_is_refused_before_anything_else_is_looked_at(major):
    with pytest.raises(ArtifactError, match=rf"format version {major}\.9\n.*reads 3\.x"):
        decode_manifest(b'{"format": [%d, 9], "nothing": "else"}' % major)


def test_nothing_may_follow_the_digest_even_in_a_newer_version():
    newer = edit(encode_manifest(make_manifest()), lambda m: m.update(format=[3, 7]))
    assert decode_manifest(newer).format == (3, 7)
    with pytest.raises(ArtifactError, match="ends without a digest"):
        decode_manifest(newer + b"\n")


def test_faults_are_told_with_the_name_of_the_file():
    manifest = edit(encode_manifest(make_manifest()), lambda m: m.update(targets=7))
    with pytest.raises(ArtifactError, match=r"^there/manifest\.json: .*targets"):
        decode_manifest(manifest, file="there/manifest.json")
    with pytest.raises(ArtifactError, match=r"^there/plan\.json: "):
        decode_plan(b"{}", file="there/plan.json")
    with pytest.raises(ArtifactError, match=r"^there/plan\.json: not what ingot writes"):
        decode_plan(encode_plan(make_plan()) + b" ", file="there/plan.json")


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b"\xff", b'{"format": "1"}', b"[" * 100_000, b'{"format":[1,0]}']
)
def test_what_is_no_manifest_is_refused_by_name(data):
    with pytest.raises(ArtifactError, match=r"folder/manifest\.json"):
        decode_manifest(data, file="folder/manifest.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"dtype":"int32"', b'"dtype":"int33"'),
        (b'"offset":64', b'"offset":"64"'),
        (b'"offset":64', b'"offset":64.5'),
        (b'"kind":"weight"', b'"kind":"weights"'),
        (b'"offset":64', b'"offset":64,"x":1'),
        (b'"offset":64', b'"offset":64,"offset":64'),
        (b'"offset":64', b'"offset":64,"row_stride":0'),  # a default that is written out
        (b'"offset":64', b'"offset": 64'),
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
