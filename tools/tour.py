"""Does what a new user does, from the wheel to the page of an artifact; `make tour` runs it.

The user has nothing but a folder, which goes in the end: an environment with the wheel, a home and
caches in it. The hub is a server on this machine, and has the bundled model. What ingot depends on,
torch among it, comes from the environment that runs this. Nothing is downloaded.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.hub import Hub, serve_hub
from tests.support.terminal import Terminal
from tests.support.vllm_script import ported
from tests.wheel_env import make_environment
from tools.browser import BrowserError, find_chromium, open_browser
from tools.wheel import ROOT, build_wheel

BUNDLED = ROOT / "golden" / "models" / "shakespeare"
MODEL = "bard/shakespeare"
ARTIFACT, PAGE, BENCH = "shakespeare.ingot", "shakespeare.html", "bench.json"
WIDTHS = (1280, 768, 390)  # pixels: a laptop, a tablet and a phone
PATIENCE = 900  # seconds until a command has failed
# What a new user has not set; HOME and caches are in the folder.
UNSET = re.compile(r"(PYTHON|INGOT_(?!CXX)|HF_|HUGGING_FACE_|XDG_)\w*|VIRTUAL_ENV|COLUMNS|LINES")
WHERE = "import ingot, torch; print(ingot.__file__)"


class Failure(Exception):
    """A step did not go as a user may expect."""

    def __init__(self, expected: str, found: object) -> None:
        super().__init__(f"expected: {expected}\nfound: {str(found).strip()}")


FAILURES = (Failure, AssertionError, BrowserError, OSError, subprocess.SubprocessError)


@dataclass(frozen=True)
class User:
    """The folder of all that the user has, the hub, and a browser if there is one."""

    folder: Path
    hub: Hub
    browser: str | None = None
    pictures: Path | None = None

    @property
    def environment(self) -> dict[str, str]:
        """The variables of the user's shell."""
        kept = {name: value for name, value in os.environ.items() if not UNSET.fullmatch(name)}
        return {
            **kept,
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder),
            "PATH": f"{self.folder / 'venv' / 'bin'}{os.pathsep}{kept['PATH']}",
            "TERM": "xterm",
            "HF_ENDPOINT": self.hub.url,
            "NO_PROXY": "127.0.0.1,127.0.0.2",
        }

    def run(self, *command: str, says: str = "") -> str:
        """What a command prints. Raises Failure where it fails, or does not say this."""
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.folder,
            env=self.environment,
            timeout=PATIENCE,
        )
        what = f"`{shlex.join(command)}`"
        if done.returncode:
            raise Failure(f"{what} to succeed", f"exit code {done.returncode}\n{done.stdout}")
        if says not in done.stdout:
            raise Failure(f"{what} to print {says!r}", done.stdout)
        return done.stdout


def install(user: User) -> str:
    """Installs the wheel in an empty environment."""
    wheel = build_wheel(user.folder)
    make_environment(user.folder / "venv", wheel, "compile")
    inside = str(user.folder / "venv" / "lib")
    user.run("python", "-c", WHERE, says=inside)
    return wheel.name


def ask(user: User) -> str:
    """Asks for the version, for help, and the doctor."""
    version = user.run("ingot", "--version", says="ingot ")
    user.run("ingot", "--help", says="compile a model directory into an artifact")
    user.run("ingot", "doctor", says="Missing\n  nothing")
    return f"{version.strip()}, nothing is missing"


def pull(user: User) -> str:
    """Pulls bard/shakespeare from a hub on this machine."""
    return value("size", user.run("ingot", "pull", MODEL, says=f"ingot run {MODEL}"))


def show(user: User) -> str:
    """Lists the models that are here."""
    size, _ = value(MODEL, user.run("ingot", "list")).split("  ")
    return f"{MODEL}, {size}"


def explain(user: User) -> str:
    """Has the model explained."""
    shown = user.run("ingot", "explain", MODEL, says=f"{MODEL}: supported")
    return f"supported, a {value('architecture', shown)}"


def compile(user: User) -> str:
    """Compiles it into an artifact."""
    return value("size", user.run("ingot", "compile", MODEL, "-o", ARTIFACT, says="golden error"))


def verify(user: User) -> str:
    """Verifies the artifact."""
    return value("golden", user.run("ingot", "verify", ARTIFACT, says="the same bits"))


def generate(user: User) -> str:
    """Lets it write after a prompt."""
    text = user.run("ingot", "run", ARTIFACT, "First Citizen:", "--max-tokens", "16").strip()
    if not text:
        raise Failure("some text of `ingot run`", "none")
    return repr(text)


def chat(user: User) -> str:
    """Talks to it on a terminal, for two turns."""
    command = ["ingot", "run", str(user.folder / ARTIFACT), "--max-tokens", "16"]
    with Terminal(command, user.environment) as terminal:
        terminal.until("> ")
        for question in ("What news?", "And then?"):
            terminal.type(f"{question}\r")
            terminal.until(f"{question}\r\n")
            if not terminal.until("> ").removesuffix("> ").strip():
                raise Failure(f"an answer to {question!r}", "none")
        terminal.type("/stats\r/bye\r")
        code, rest = terminal.end()
    if code:
        raise Failure("a conversation that ends with /bye", f"exit code {code}\n{rest}")
    return f"two answers, {value('context', rest)}"


def port(user: User) -> str:
    """Runs scripts for vLLM after a change of their imports."""
    scripts = {"basic": "'The dog is' -> ", "chat": "Write about dogs."}
    for name, says in scripts.items():
        (user.folder / f"{name}.py").write_text(ported(name))
        user.run("python", f"{name}.py", ARTIFACT, says=says)
    return " and ".join(f"{name}.py" for name in scripts)


def inspect(user: User) -> str:
    """Measures the artifact, and writes its page with what was measured and verified."""
    user.run("sh", "-c", f"ingot bench {ARTIFACT} --rounds 1 --batch 4 --json > {BENCH}")
    checked = ("--bench", BENCH, "--verify")
    user.run("ingot", "inspect", ARTIFACT, "--html", PAGE, *checked, says=PAGE)
    return f"{(user.folder / PAGE).stat().st_size / 1000:.0f} KB"


def look(user: User) -> str:
    """Looks at the page in Chromium, as on a laptop, a tablet and a phone."""
    if user.browser is None:
        return "no Chromium found, so the page was not looked at; CHROMIUM=PATH names one"
    with open_browser(user.browser) as browser:
        for width in WIDTHS:
            for dark in (False, True):
                seen = browser.look(user.folder / PAGE, width, dark)
                name = f"{width}-{'dark' if dark else 'light'}"
                if user.pictures:
                    user.pictures.mkdir(parents=True, exist_ok=True)
                    (user.pictures / f"{name}.png").write_bytes(seen.picture)
                if faults := seen.faults(width, dark):
                    raise Failure(f"a page that looks right at {name}", "\n".join(faults))
    return f"it fits {', '.join(map(str, WIDTHS))} pixels, in both themes"


def remove(user: User) -> str:
    """Removes the model, and runs the artifact without it."""
    user.run("ingot", "rm", MODEL, says=f"removed the model {MODEL}")
    listed = user.run("ingot", "list")
    if MODEL in listed:
        raise Failure(f"`ingot list` without {MODEL}", listed)
    user.run("ingot", "run", ARTIFACT, "ROMEO:", "--max-tokens", "8")
    return "it still writes"


Step = Callable[[User], str]
STEPS: tuple[Step, ...] = (
    install,
    ask,
    pull,
    show,
    explain,
    compile,
    verify,
    generate,
    chat,
    port,
    inspect,
    look,
    remove,
)


def value(name: str, text: str) -> str:
    """What stands beside a name in a command's summary."""
    found = re.findall(rf"^ *{re.escape(name)}  +(.*?)\r?$", text, re.M)
    if not found:
        raise Failure(f"a line that begins with {name!r}", text)
    return found[-1]  # what is said while it works comes first


def take(steps: Iterable[Step], user: User) -> bool:
    """Takes the steps in order, each a line, until one fails; whether none did."""
    for step in steps:
        start = time.monotonic()
        title = (step.__doc__ or step.__name__).removesuffix(".")
        print(f"{title} ...", end=" ", flush=True)
        try:
            result = step(user)
        except FAILURES as failure:
            print(f"failed\n{failure}", flush=True)
            return False
        print(f"{result} ({time.monotonic() - start:.1f} s)", flush=True)
    return True


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.tour", description=__doc__)
    parser.add_argument("--pictures", type=Path, help="a folder for pictures of the page")
    pictures = parser.parse_args().pictures
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the folder goes then, too
    with tempfile.TemporaryDirectory(prefix="ingot-tour-") as name, serve_hub() as hub:
        hub.add(MODEL, BUNDLED)
        done = take(STEPS, User(Path(name).resolve(), hub, find_chromium(), pictures))
    return 0 if done else 1


if __name__ == "__main__":
    sys.exit(main())
