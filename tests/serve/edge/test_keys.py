"""Files of API keys, and whose key a request came with."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest

from ingot.errors import UsageError
from ingot.serve.edge.keys import KeyRing, make_key, read_keys


def written(tmp_path, *lines: str):
    path = tmp_path / "keys.txt"
    path.write_text("".join(f"{line}\n" for line in lines))
    path.chmod(0o600)
    return path


def test_a_key_that_was_made_is_found_by_its_text_alone(tmp_path):
    text, key = make_key("alice", "use")
    ring = KeyRing(written(tmp_path, "# people", "", f"{key.line}  # until May"))
    assert text not in key.line
    assert ring.find(b"Bearer " + text.encode()) == key
    assert ring.find(b"bearer  " + text.encode() + b" ") == key
    password = base64.b64encode(b"anyone:" + text.encode())
    assert ring.find(b"Basic " + password) == key


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Bearer wrong",
        b"Basic ",
        b"Basic !!!",
        b"Basic " + base64.b64encode(b"nobody"),
        b"Digest x",
        b"\xff\xfe",
        b"Bearer " + b"x" * 60_000,
    ],
)
def test_anything_else_is_nobody(tmp_path, header):
    _, key = make_key("alice", "use")
    assert KeyRing(written(tmp_path, key.line)).find(header) is None


def test_no_text_is_nobody_even_if_the_file_lists_its_hash(tmp_path):
    empty = hashlib.sha256(b"").hexdigest()
    assert KeyRing(written(tmp_path, f"admin:{empty} mistake")).find(b"Bearer ") is None


def test_the_hash_of_a_key_is_no_key(tmp_path):
    _, key = make_key("alice", "admin")
    header = b"Bearer " + key.digest.hex().encode()
    assert KeyRing(written(tmp_path, key.line)).find(header) is None


def test_every_key_is_compared_in_constant_time(tmp_path, monkeypatch):
    made = [make_key(name, "use") for name in ("a", "b", "c")]
    ring = KeyRing(written(tmp_path, *(key.line for _, key in made)))
    compared = []
    compare = hmac.compare_digest
    monkeypatch.setattr(hmac, "compare_digest", lambda a, b: compared.append(a) or compare(a, b))
    assert ring.find(b"Bearer " + made[0][0].encode()) == made[0][1]
    assert compared == [key.digest for _, key in made]


def test_the_scope_admin_permits_everything_and_use_only_use():
    use, admin = make_key("u", "use")[1], make_key("a", "admin")[1]
    permitted = [key.permits(scope) for key in (use, admin) for scope in ("use", "admin")]
    assert permitted == [True, False, True, True]


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("ingot-secret", "line 2 of"),
        ("root:" + "0" * 64 + " x", "line 2 of"),
        ("use:" + "0" * 63 + " x", "line 2 of"),
        ("use:" + "0" * 64, "line 2 of"),
        ("use:" + "0" * 64 + " -x", "line 2 of"),
        ("use:" + "1" * 64 + " first", "names first again"),
    ],
)
def test_a_line_that_is_none_is_named_but_not_shown(tmp_path, line, what):
    path = written(tmp_path, "use:" + "0" * 64 + " first", line)
    with pytest.raises(UsageError, match=what) as caught:
        read_keys(path)
    assert "secret" not in str(caught.value)


def test_files_without_keys_or_that_cannot_be_read_are_refused(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        read_keys(tmp_path / "none.txt")
    with pytest.raises(UsageError, match="has no key"):
        read_keys(written(tmp_path, "# nobody yet"))
    path = written(tmp_path, make_key("a", "use")[1].line)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is no text"):
        read_keys(path)


@pytest.mark.parametrize("mode", [0o622, 0o660, 0o602])
def test_a_file_that_others_may_write_is_refused(tmp_path, mode):
    path = written(tmp_path, make_key("a", "use")[1].line)
    path.chmod(mode)
    with pytest.raises(UsageError, match="others may write"):
        read_keys(path)


def test_reading_again_replaces_the_keys_or_keeps_them(tmp_path):
    old, new = make_key("old", "use"), make_key("new", "use")
    path = written(tmp_path, old[1].line)
    ring = KeyRing(path)
    path.write_text(new[1].line)
    assert ring.reload() == 1
    assert ring.find(b"Bearer " + old[0].encode()) is None
    path.write_text("broken")
    with pytest.raises(UsageError):
        ring.reload()
    assert ring.find(b"Bearer " + new[0].encode()) == new[1]


@pytest.mark.parametrize("name", ["", "a b", "a:b", "ü", "-x", "x" * 65, "a\nuse:"])
def test_a_name_is_one_word(name):
    with pytest.raises(UsageError, match="no name of a key"):
        make_key(name, "use")
