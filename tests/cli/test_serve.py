"""`ingot serve`: its options, their origins, and the names of models."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ingot.cli import serve
from ingot.cli.main import main
from ingot.cli.origins import fill
from ingot.cli.parser import build_parser
from ingot.cli.serve_options import edge_settings
from ingot.errors import UsageError
from ingot.runtime.config import EngineConfig
from ingot.serve.openai.chat_defaults import ChatDefaults
from ingot.serve.settings import ModelSettings
from ingot.settings import unknown_variables
from tests.support.page_blocks import ROOT, blocks_of, commands

PREFIX = "INGOT_SERVE_"
PAGE = ROOT / "docs" / "serving_models.md"


def filled(
    line: str, environ: dict[str, str] | None = None, file: Path | None = None
) -> tuple[argparse.Namespace, dict[str, tuple[str, str]]]:
    """The arguments of a command line, and the value and the origin of each option."""
    args = build_parser().parse_args(["serve", "m.ingot", *line.split()])
    origins = fill(args, serve.ARGUMENTS, environ or {}, PREFIX, file)
    return args, {each.name: (each.value, each.origin) for each in origins}


def test_the_command_line_beats_the_environment_and_that_the_file(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('port = 1\nhost = "::1"\nmax-n = 3\nthreads = 9\n')
    environ = {f"{PREFIX}PORT": "2", f"{PREFIX}MAX_N": "4", "INGOT_PORT": "7"}
    args, origins = filled("--port 3", environ, file)
    assert (args.port, args.max_n, args.host, args.threads) == (3, 4, "::1", 9)
    assert origins["--port"] == ("3", "command line")
    assert origins["--max-n"] == ("4", f"{PREFIX}MAX_N")
    assert origins["--host"] == ("::1", "--config")
    assert origins["--log-format"] == ("text", "default")


def test_zero_on_the_command_line_is_said() -> None:
    args, origins = filled("--port 0 --max-queue 0", {f"{PREFIX}PORT": "2"})
    assert (args.port, args.max_queue) == (0, 0)
    assert origins["--port"] == ("0", "command line")


def test_flags_and_lists_outside_of_the_command_line(tmp_path: Path) -> None:
    file = tmp_path / "serve.toml"
    file.write_text('served-model-name = ["a", "b"]\nlazy = true\nin_process = false\n')
    args, origins = filled("", {f"{PREFIX}ALLOW_NO_KEY": "yes", f"{PREFIX}LOG_PROMPTS": "0"}, file)
    assert (args.served_model_name, args.lazy, args.in_process) == (["a", "b"], True, False)
    assert (args.allow_no_key, args.log_prompts) == (True, False)
    assert origins["--served-model-name"] == ("a, b", "--config")


@pytest.mark.parametrize(
    "environ, text, found",
    [
        ({"PORT": "x"}, "", "INGOT_SERVE_PORT is 'x'"),
        ({"LAZY": "perhaps"}, "", "INGOT_SERVE_LAZY is 'perhaps'"),
        ({"LOG_FORMAT": "xml"}, "", "INGOT_SERVE_LOG_FORMAT is 'xml'"),
        ({}, "potr = 1", "there is no option 'potr'"),
        ({}, "port = ", "is no TOML"),
        ({}, 'port = "x"', "--port in the file is 'x'"),
    ],
)
def test_wrong_values_are_named(
    environ: dict[str, str], text: str, found: str, tmp_path: Path
) -> None:
    file = tmp_path / "serve.toml"
    file.write_text(text)
    with pytest.raises(UsageError) as caught:
        filled("", {f"{PREFIX}{name}": value for name, value in environ.items()}, file)
    assert found in caught.value.found


def test_what_kubernetes_sets_is_no_option() -> None:
    args, _ = filled("", {f"{PREFIX}PORT": "tcp://10.0.0.1:8000"})
    assert args.port is None
    assert unknown_variables({f"{PREFIX}PORT": "1", f"{PREFIX}SERVICE_HOST": "x"}) == ""


def test_every_option_has_an_origin(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve", "--print-config", "--port", "0", "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    _, origins = filled("")
    assert set(found) == set(origins)
    assert found["--port"] == {"value": "0", "origin": "command line"}
    assert main(["serve", "--print-config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["option", "value", "origin"] and len(lines) == len(origins) + 1


def test_options_become_settings() -> None:
    args, _ = filled("--max-model-len 1k --max-num-seqs 3 --kv-cache-bytes 2GB --keep-alive 5 "
                     "--max-n 2 --tool-call-parser hermes --memory 8GB --in-process "
                     "--speculative ngram --num-speculative-tokens 7")  # fmt: skip
    found = serve.serving(args)
    model = found.model.settings
    assert (model.context, model.seats, model.kv_bytes) == (1000, 3, 2 * 10**9)
    assert (model.keep_alive, found.terms.max_n) == (5, 2)
    switches = model.switches()
    assert (switches.speculative, switches.num_speculative_tokens) == ("ngram", 7)
    assert (switches.max_num_seqs, ModelSettings().switches()) == (3, EngineConfig())
    assert (found.terms.tool_call_parser, found.memory_bytes) == ("hermes", 8 * 10**9)
    assert found.in_process and not found.lazy
    assert edge_settings(args).port == 8000


def test_no_seconds_are_a_setting_too() -> None:
    model = serve.serving(filled("--keep-alive 0 --stream-interval 0")[0]).model.settings
    assert (model.keep_alive, model.stream_interval) == (0, 0)
    assert ModelSettings().keep_alive is None and ModelSettings().stream_interval > 0


def test_the_page_on_models_gives_each_options_of_its_own() -> None:
    (block,) = (each for each in blocks_of(PAGE) if each.text.startswith("ingot serve"))
    (command,) = commands(block.text)
    args, _ = filled(command.removeprefix("ingot serve "))
    own = serve.serving(args).own
    assert own["bard"].pinned and own["bard"].settings == ModelSettings(threads=4)
    assert own["poet"].settings == ModelSettings(threads=4, keep_alive=300)


def test_options_of_one_model_are_beside_those_of_all(tmp_path: Path) -> None:
    line = "--threads 4 --keep-alive 9 --set bard.threads=2 --set bard.pin=true"
    args, _ = filled(f"{line} --set a/b.1.watchdog=5 --set a/b.1.priority=-3")
    found = serve.serving(args)
    every, pinned, _ = found.model
    assert (every.threads, every.keep_alive, every.watchdog, pinned) == (4, 9, None, False)
    bard, other = found.own["bard"], found.own["a/b.1"]
    assert (bard.settings.threads, bard.settings.keep_alive, bard.pinned) == (2, 9, True)
    assert (other.settings.watchdog, other.settings.priority, other.pinned) == (5, -3, False)
    file = tmp_path / "serve.toml"
    file.write_text('set = ["bard.max-model-len=1k", "bard.device=cpu"]\npin = true\n')
    found = serve.serving(filled("", file=file)[0])
    assert found.own["bard"].settings == ModelSettings(context=1000, device="cpu")
    assert found.model.pinned and found.own["bard"].pinned


@pytest.mark.parametrize(
    "line, said",
    [
        ("--set bard.threads", "--set is 'bard.threads'"),
        ("--set threads=2", "--set is 'threads=2'"),
        ("--set bard.port=2", "--set is 'bard.port=2'"),
        ("--set bard.threads=many", "--set bard.threads is 'many'"),
        ("--set bard.pin=perhaps", "--set bard.pin is 'perhaps'"),
        ("--set bard.watchdog=0", "watchdog is 0.0"),
        ("--stream-interval 61", "stream_interval is 61.0"),
        ("--in-process --watchdog 5", "--watchdog is given with --in-process"),
        ("--in-process --set bard.watchdog=5", "--watchdog is given with --in-process"),
    ],
)
def test_options_of_models_that_cannot_be_are_refused(line: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        serve.serving(filled(line)[0])
    assert caught.value.found.startswith(said)


def test_options_of_a_model_that_is_not_served_are_refused(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "bard=m.ingot", "--lazy", "--set", "poet.threads=2"]) == 2
    assert "there is no model 'poet' to set options of" in capsys.readouterr().err


@pytest.mark.parametrize(
    "models, served, named",
    [
        (["a.ingot"], [], [("a", "a.ingot", ())]),
        (["x/a.ingot", "y/b"], [], [("a", "x/a.ingot", ()), ("b", "y/b", ())]),
        (["one=x/a.ingot"], [], [("one", "x/a.ingot", ())]),
        (["a.ingot"], ["one", "two"], [("one", "a.ingot", ("two",))]),
        (["Qwen/Qwen3-0.6B:Q8_0"], [], [("Qwen/Qwen3-0.6B", "Qwen/Qwen3-0.6B:Q8_0", ())]),
        (["k=v.ingot"], [], [("k=v", "k=v.ingot", ())]),
    ],
)
def test_models_have_names(
    models: list[str], served: list[str], named: list[Any], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for folder in ("a.ingot", "x/a.ingot", "y/b", "k=v.ingot"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert [tuple(each) for each in serve.named_models(models, served)] == named


@pytest.mark.parametrize(
    "models, served",
    [([], []), (["a", "b"], ["one"]), (["x=a", "x=b"], []), (["a.ingot", "b/a.ingot"], [])],
)
def test_names_that_cannot_be_are_refused(
    models: list[str], served: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in ("a.ingot", "b/a.ingot"):
        (tmp_path / folder).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        serve.named_models(models, served)


WITHOUT = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name in {"starlette", "uvicorn", "uvloop", "httptools"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Refuse())
from ingot.cli.main import main
sys.exit(main(["serve", "m.ingot"]))
"""


def test_without_the_extra_its_name_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True)
    assert done.returncode == 2
    assert "is not installed" in done.stderr and "pip install 'ingot-lm[serve]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_server_without_models_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "no model is named" in capsys.readouterr().err


def test_options_of_chats_hold_for_all_requests(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages }}")
    args, _ = filled(f"--chat-template {own} --think=off", {f"{PREFIX}SYSTEM": "Be brief, please"})
    chats = serve.serving(args).model.chats
    assert chats == ChatDefaults(template="{{ messages }}", system="Be brief, please", thinks=False)
    assert serve.serving(filled("")[0]).model.chats == ChatDefaults()


def test_a_model_has_options_of_chats_of_its_own(tmp_path: Path) -> None:
    own = tmp_path / "own.jinja"
    own.write_text("{{ messages }}")
    texts = f"--system all --set a.system=x=y --set a.think=on --set b.b.chat-template={own}"
    serving = serve.serving(filled(texts)[0])
    assert serving.model.chats == ChatDefaults(system="all")
    assert serving.own["a"].chats == ChatDefaults(system="x=y", thinks=True)
    assert serving.own["b.b"].chats == ChatDefaults(system="all", template="{{ messages }}")
    for wrong in ("a.think=perhaps", f"a.chat-template={tmp_path}/no.jinja"):
        with pytest.raises(UsageError, match=r"perhaps|no\.jinja"):
            serve.serving(filled(f"--set {wrong}")[0])


def test_a_server_does_not_start_with_a_template_that_is_none(tmp_path: Path, capsys: Any) -> None:
    assert main(["serve", "m.ingot", "--lazy", "--chat-template", f"{tmp_path}/no.jinja"]) == 2
    assert "no.jinja cannot be read: no such file" in capsys.readouterr().err
