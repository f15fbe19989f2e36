"""Models by their names on the hub: found, downloaded, gone on with, or refused with the reason."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub import constants, file_download

from ingot.compiler.explain import explain
from ingot.errors import (
    CheckpointError,
    CompileError,
    GatedModelError,
    HubUnreachableError,
    ModelDirError,
    ModelNotFoundError,
    ResourceError,
    TokenizerError,
    UnsupportedModelError,
    UsageError,
)
from ingot.hub import download
from ingot.hub.names import hub_name, model_outline, model_path, pull
from ingot.hub.snapshots import cached, is_whole, models, remove_model, repository
from ingot.models.model_dir import ModelDir
from tests.support.hub import TOKEN, Hub, Repo

NAME = "Tiny/llama"
ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a tokenizer, and what repositories hold besides."""
    from tests.support.tiny_models import save_random

    folder = save_random("llama", tmp_path_factory.mktemp("tiny") / "llama", tokenizer=True)
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    for name in ("pytorch_model.bin", "llama-Q4.gguf", "consolidated.safetensors", "README.md"):
        (folder / name).write_bytes(b"not for us")
    return folder


@pytest.fixture
def repo(hub: Hub, tiny: Path) -> Repo:
    return hub.add(NAME, tiny)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B"),
        ("a/b.ingot", ""),
        ("./a/b", ""),
        ("/a/b", ""),
        ("a/b/c", ""),
        ("../b", ""),
        ("a", ""),
        ("a/", ""),
        ("a/b\0", ""),
        (Path("a/b"), ""),
    ],
)
def test_a_name_is_owner_and_model(model: str | Path, name: str) -> None:
    assert hub_name(model) == name


def test_what_exists_here_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert hub_name("a/b") == "" and hub_name("a/c") == "a/c"
    assert model_path("a/b") == Path("a/b")


def test_only_what_is_read_is_downloaded(hub: Hub, repo: Repo, tiny: Path) -> None:
    folder = pull(NAME)
    names = {path.name for path in folder.iterdir()}
    assert names == {
        "config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json",
        "chat_template.jinja", "model.safetensors",
    } & {path.name for path in tiny.iterdir()}  # fmt: skip
    assert {"chat_template.jinja", "model.safetensors"} <= names
    for name in names:
        assert (folder / name).read_bytes() == (tiny / name).read_bytes()
    for suffix in (".bin", ".gguf", "consolidated.safetensors", ".md"):
        assert hub.sent(suffix) == []
    assert (folder.name, ModelDir.open(folder).name) == (repo.commit, NAME)


def test_all_that_a_tokenizer_is_spread_over_is_downloaded(hub: Hub, repo: Repo) -> None:
    side = {
        "special_tokens_map.json": b"{}",
        "added_tokens.json": b"{}",
        "chat_template.json": b"{}",
        "additional_chat_templates/rag.jinja": b"R",
    }
    repo.files |= {**side, "additional_chat_templates/notes.md": b"N", "other/rag.jinja": b"O"}
    folder = pull(NAME)
    names = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert side.keys() <= names
    assert not names & {"additional_chat_templates/notes.md", "other/rag.jinja"}
    with model_outline(NAME) as small:
        assert (small / "additional_chat_templates" / "rag.jinja").read_bytes() == b"R"


def test_shards_are_those_of_the_index(hub: Hub, saved: Path, tiny: Path) -> None:
    repo = hub.add(NAME, saved / "sharded")
    repo.files["tokenizer.json"] = (tiny / "tokenizer.json").read_bytes()
    repo.files["model-of-another-kind.safetensors"] = b"x"
    shards = {path.name for path in (saved / "sharded").glob("model-*.safetensors")}
    assert len(shards) > 1
    folder = pull(NAME)
    assert {path.name for path in folder.glob("*.safetensors")} == shards
    assert cached(NAME) == folder


FULL = shutil.disk_usage("/")._replace(free=1000)


def test_what_lies_there_is_used_and_pull_asks_for_what_is_new(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    old = model_path(NAME)
    asked = len(hub.requests)
    assert model_path(NAME) == old and len(hub.requests) == asked
    pull(NAME)
    assert len(hub.sent("model.safetensors")) == 2  # the redirect and the content, once
    repo.files["generation_config.json"] = b'{"temperature": 0.5}'
    assert model_path(NAME) == old
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FULL)
    capsys.readouterr()
    new = pull(NAME)
    assert capsys.readouterr().err == ""  # there is nothing large to download
    assert (new.name, model_path(NAME)) == (repo.commit, new) and new != old
    assert model_path(NAME, old.name) == old
    assert len(hub.sent("model.safetensors")) == 2  # the weights are the same


def test_another_revision(hub: Hub, repo: Repo) -> None:
    repo.revisions = ("main", "refs/pr/1")
    folder = model_path(NAME, "refs/pr/1")
    assert model_path(NAME, "refs/pr/1") == folder
    assert cached(NAME) is None


def test_a_revision_means_what_was_downloaded(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever its owner pushes meanwhile, and without the network once all is there."""
    fetch = download.Remote.fetch_weights

    def fetch_slowly(remote: download.Remote, names: list[str]) -> None:
        fetch(remote, names)
        repo.files["config.json"] += b" "
        hub.requests.clear()

    monkeypatch.setattr(download.Remote, "fetch_weights", fetch_slowly)
    folder = pull(NAME)
    assert folder.name != repo.commit and hub.requests == []
    assert cached(NAME) == cached(NAME, folder.name) == folder
    assert [path.name for path in (repository(NAME) / "refs").iterdir()] == ["main"]
    assert not list(repository(NAME).glob(".ref-*"))


@pytest.mark.parametrize(("there", "asked"), [("v1", "v1/x"), ("v1/x", "v1")])
def test_a_revision_whose_name_cannot_be_leaves_nothing(
    hub: Hub, repo: Repo, there: str, asked: str
) -> None:
    """A branch v1 makes room on the hub for one that is called v1/x, but not in the cache."""
    repo.revisions = (there, asked)
    pull(NAME, there)
    with pytest.raises(OSError):
        pull(NAME, asked)
    assert not list(repository(NAME).glob(".ref-*"))


def break_off(hub: Hub, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Ends the next transfer of weights, and the user loses patience while the client waits."""
    hub.cut_after = after

    def impatient(seconds: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(file_download.time, "sleep", impatient)


def test_an_interrupted_download_goes_on_where_it_was(
    hub: Hub, repo: Repo, tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        break_off(hub, patch, after=5000)
        with pytest.raises(KeyboardInterrupt):
            pull(NAME)
    assert cached(NAME) is None and cached(NAME, repo.commit) is None
    (part,) = models()
    assert (part.name, part.whole) == (NAME, False) and part.nbytes > 5000
    hub.requests.clear()
    folder = pull(NAME)
    assert [model.whole for model in models()] == [True]
    assert hub.sent("model.safetensors") == ["bytes=5000-"] * 2
    weights = "model.safetensors"
    assert (folder / weights).read_bytes() == (tiny / weights).read_bytes()
    assert not list(folder.parent.parent.glob("blobs/*incomplete*"))


def test_a_newer_revision_in_part_takes_nothing_from_an_older_one(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it comes, and after its download was stopped, the model is as whole as it was."""
    old = pull(NAME)
    (was,) = models()
    repo.files["model.safetensors"] += b"1"
    with monkeypatch.context() as patch:
        break_off(hub, patch, after=5000)
        with pytest.raises(KeyboardInterrupt):
            pull(NAME)
    (now,) = models()
    assert set(now.commits) == {old.name, repo.commit} and now.nbytes >= was.nbytes + 5000
    assert (now.name, now.whole) == (NAME, True)
    hub.requests.clear()
    assert cached(NAME) == model_path(NAME) == model_path(NAME, old.name) == old
    assert cached(NAME, repo.commit) is None and hub.requests == []
    remove_model(now)
    assert models() == [] and not repository(NAME).exists()


def test_a_connection_that_breaks_is_made_again(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.cut_after = 5000
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    monkeypatch.setattr(file_download.time, "sleep", lambda seconds: None)
    assert cached(NAME) is None and pull(NAME) == cached(NAME)
    assert "bytes=5000-" in hub.sent("model.safetensors")


def test_files_that_the_client_leaves_out_are_named(hub: Hub, repo: Repo) -> None:
    """It takes the folder that is there for the whole when it cannot list the files."""
    folder = repository(NAME) / "snapshots" / repo.commit
    folder.mkdir(parents=True)
    for name in repo.files:
        if name.endswith((".json", ".jinja")):
            (folder / name).write_bytes(repo.files[name])
    hub.lists = False
    with pytest.raises(HubUnreachableError, match=r"did not come: model\.safetensors") as caught:
        pull(NAME)
    assert caught.value.hint == "Try again; what has come is kept." and cached(NAME) is None
    hub.lists = True
    assert pull(NAME) == cached(NAME) == folder


def test_weights_that_come_damaged_are_not_kept(hub: Hub, repo: Repo) -> None:
    hub.damage = True
    with pytest.raises(HubUnreachableError, match="its hash is not the hub's"):
        pull(NAME)
    assert cached(NAME) is None
    hub.damage = False
    assert pull(NAME) == cached(NAME)


def test_a_partial_file_that_is_too_long_begins_again(hub: Hub, repo: Repo) -> None:
    sha256 = download.Remote(NAME, None).files["model.safetensors"].lfs.sha256
    blobs = repository(NAME) / "blobs"
    blobs.mkdir(parents=True)
    (blobs / f"{sha256}.ingot.incomplete").write_bytes(bytes(10_000_000))
    assert pull(NAME) == cached(NAME)


@pytest.mark.parametrize(
    ("options", "revision", "error", "said"),
    [
        ({}, "v2", ModelNotFoundError, "no revision v2"),
        ({"private": True}, None, ModelNotFoundError, "no folder Tiny/llama here, and no model"),
        ({"gated": True}, None, GatedModelError, "is gated"),
    ],
)
def test_the_hub_says_no(hub, tiny, options, revision, error, said) -> None:
    hub.add(NAME, tiny, **options)
    with pytest.raises(error, match=said) as caught:
        pull(NAME, revision)
    assert caught.value.hint and cached(NAME) is None
    assert hub.sent("model.safetensors") == []


@pytest.mark.parametrize("options", [{"private": True}, {"gated": True}])
def test_a_token_opens_the_model(hub, tiny, options, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    hub.add(NAME, tiny, **options)
    assert pull(NAME) == cached(NAME)


def test_a_token_without_access_is_refused(hub, tiny, monkeypatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    hub.add(NAME, tiny, gated=True)
    with pytest.raises(GatedModelError, match="is gated"):
        pull(NAME)


def test_no_such_model(hub: Hub) -> None:
    with pytest.raises(ModelNotFoundError, match="no model of that name"):
        model_path("No/such")


@pytest.mark.parametrize("status", [401, 403, 429, 500, 503])
def test_a_hub_that_answers_with_an_error(hub: Hub, repo: Repo, status: int) -> None:
    hub.status = status
    with pytest.raises(GatedModelError if status < 404 else HubUnreachableError) as caught:
        pull(NAME)
    assert caught.value.hint


def test_no_network(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = pull(NAME)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubUnreachableError, match="cannot be reached"):
        pull(NAME)
    assert model_path(NAME) == folder
    with pytest.raises(HubUnreachableError, match=r"(?s)models/lama would .* write ./models/lama"):
        model_path("models/lama")  # a folder, with a mistake in its name


def test_offline(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE is set"):
        model_path(NAME)
    assert hub.requests == []
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    folder = pull(NAME)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert model_path(NAME) == folder
    with pytest.raises(HubUnreachableError) as caught:
        pull(NAME)
    assert "not whole" not in str(caught.value)


def test_offline_is_a_constant_of_every_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(constants, "is_offline_mode", raising=False)  # the oldest have none
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(HubUnreachableError, match="HF_HUB_OFFLINE is set"):
        pull(NAME)


def test_no_room_on_the_disk(hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda path: FULL)
    with pytest.raises(ResourceError, match=r"Tiny/llama needs .* MB more"):
        pull(NAME)
    assert hub.sent("model.safetensors") == []


@pytest.mark.parametrize(
    ("number", "error"), [(errno.ENOSPC, ResourceError), (errno.EACCES, PermissionError)]
)
def test_a_disk_that_fails_is_not_taken_for_the_network(
    hub: Hub, repo: Repo, number: int, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(file_download, "http_get", fails)
    with pytest.raises(error):
        pull(NAME)


def test_what_happens_to_an_outline_is_no_fault_of_the_hub(hub: Hub, repo: Repo) -> None:
    with pytest.raises(ZeroDivisionError), model_outline(NAME):
        raise ZeroDivisionError


@pytest.mark.parametrize(
    ("files", "error", "said"),
    [
        (["config.json", "pytorch_model.bin"], CheckpointError, "Python pickles"),
        (["adapter_config.json", "adapter_model.safetensors"], CheckpointError, "a LoRA adapter"),
        (["model.safetensors"], ModelDirError, "has no config.json"),
        (["config.json"], ModelDirError, "has no weights as safetensors"),
        (["config.json", "model.safetensors"], TokenizerError, "has no tokenizer.json"),
    ],
)
def test_what_ingot_cannot_read_is_not_downloaded(hub, files, error, said) -> None:
    hub.repos[NAME] = Repo(dict.fromkeys(files, b"{}"))
    with pytest.raises(error, match=f"Tiny/llama .*{said}"):
        pull(NAME)
    assert not Path(constants.HF_HUB_CACHE).exists()


def test_shards_that_the_hub_lacks_are_told_before_the_others_come(hub, saved, tiny) -> None:
    repo = hub.add(NAME, saved / "sharded")
    repo.files["tokenizer.json"] = (tiny / "tokenizer.json").read_bytes()
    absent = next(name for name in repo.files if name.startswith("model-"))
    del repo.files[absent]
    with pytest.raises(CheckpointError, match=f"lacks shards that its .* lists: {absent}"):
        pull(NAME)
    with pytest.raises(CheckpointError, match="lacks shards"), model_outline(NAME):
        pass
    assert hub.sent(".safetensors") == []


def test_a_cache_that_is_a_file_has_no_models(hub: Hub) -> None:
    Path(constants.HF_HUB_CACHE).write_text("")
    assert models() == []


def test_an_unknown_family_is_refused_before_its_weights_come(hub: Hub, repo: Repo) -> None:
    repo.files["config.json"] = b'{"architectures": ["MoonForCausalLM"]}'
    with pytest.raises(UnsupportedModelError, match="MoonForCausalLM"):
        pull(NAME)
    assert hub.sent("model.safetensors") == []


@pytest.mark.parametrize("error", [KeyError("rope"), ValueError("x"), OSError("x")], ids=repr)
def test_what_a_family_raises_is_no_fault_of_the_hub(
    hub: Hub, repo: Repo, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise error

    monkeypatch.setattr("ingot.models.registry.load_config", fails)
    with pytest.raises(type(error)) as caught:
        pull(NAME)
    assert caught.value is error and hub.sent("model.safetensors") == []


def test_nothing_is_downloaded_to_be_compiled_without_torch(
    hub: Hub, repo: Repo, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.compiler.torch_import.find_spec", lambda name: None)
    with pytest.raises(CompileError, match="torch is not installed"):
        model_path(NAME)
    assert hub.requests == []


def test_an_outline_explains_as_the_model_does(hub: Hub, repo: Repo, tiny: Path) -> None:
    whole = explain(tiny)
    with model_outline(NAME) as folder:
        assert explain(folder) == whole and whole.supported
        blocks = (folder / "model.safetensors").stat().st_blocks
        assert blocks * 512 < (tiny / "model.safetensors").stat().st_size
    assert not folder.exists()
    assert all(asked.startswith("bytes=0-") for asked in hub.sent("model.safetensors"))
    assert cached(NAME) is None


def test_damaged_weights_have_no_outline(hub: Hub, repo: Repo) -> None:
    repo.files["model.safetensors"] = b"\xff" * 100
    with pytest.raises(CheckpointError, match="has damaged weights"), model_outline(NAME):
        pass


@pytest.mark.parametrize("revision", ["..", "a/../b", "-x", "", 5])
def test_what_can_be_no_revision(hub: Hub, revision: str) -> None:
    with pytest.raises(UsageError):
        model_path(NAME, revision)
    assert hub.requests == []


def test_a_path_has_no_revision(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is a path"):
        model_path(tmp_path, "main")


def test_a_path_imports_no_client(tmp_path: Path) -> None:
    code = "import sys; from ingot.hub.names import model_path; model_path(sys.argv[1]);"
    code += "sys.exit('huggingface_hub' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code, tmp_path], cwd=ROOT).returncode == 0


def test_the_environment_says_where_the_hub_and_its_cache_are(
    hub: Hub, repo: Repo, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    repo.private = True
    environment = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home"), "HF_TOKEN": TOKEN}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    code = f"from ingot.hub.names import pull; print(pull({NAME!r}))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.stderr.startswith("ingot: downloading Tiny/llama, "), done.stderr
    assert Path(done.stdout.strip()).is_relative_to(tmp_path / "home" / "hub")
    assert is_whole(Path(done.stdout.strip()))
