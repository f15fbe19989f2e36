"""The page of an artifact: what the person who deploys reads, and what its controls do."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from ingot.artifact.golden import Tolerance
from ingot.artifact.golden_error import GoldenDifference
from ingot.artifact.reader import weights_name
from ingot.cli.inspect import memory
from ingot.cli.inspect.inspected import Inspected
from ingot.cli.inspect.measured import Measured, MeasuredLimits, MeasuredPhase
from ingot.cli.inspect.page import artifact_page
from ingot.cli.inspect.view import read_artifact
from ingot.cli.main import main
from ingot.cli.numbers import format_bytes
from ingot.runtime.verify import Mismatch, Verification
from tests.cli.inspect.test_memory import with_state
from tests.cli.sample_artifact import sample_layers, write_sample
from tests.support.tiny_models import save_random
from tests.targets.cuda.simulation import compile_sketch
from tools.browser import Browser, find_chromium, open_browser

MEASURED = Measured(
    digest="", target="cpu:portable", processor="Some CPU",
    limits=MeasuredLimits(threads=3, read_bytes_per_second=2e10, operations_per_second={}),
    phases=[MeasuredPhase("decode <8>", 123.4, 0.008, 0.876, "memory")],
)  # fmt: skip
PASSED = Verification(
    num_prompts=2, num_positions=9, number_format="float32",
    allowed=Tolerance(noise=1e-6, mean=1.5e-6, largest=2e-3, kl=1e-9),
    differences={
        "prefill": GoldenDifference(5e-7, 1e-6, 1e-9), "tokens": GoldenDifference(6e-7, 2e-6, 1e-9)
    },
    mismatches=(), bitwise_equal=True,
)  # fmt: skip
FAILED = replace(PASSED, mismatches=(Mismatch("prefill", 0, 3, 7, 8, 1.0, False),))


@pytest.fixture
def found(tmp_path: Path) -> Inspected:
    """The sample with keys, values and the graphs of a layer."""
    view = read_artifact(write_sample(tmp_path / "sample.ingot", sample_layers()))
    return Inspected(view=with_state(view, window=0), target="cpu:portable")


def text_of(page: str) -> str:
    """What a reader sees of it, on one line."""
    body = re.sub(r"<(style|script).*?</\1>|<wbr>", "", page, flags=re.S)
    return " ".join(re.sub(r"<[^>]+>", " ", body).split())


def test_nothing_was_measured_unless_it_was(found: Inspected) -> None:
    text = text_of(artifact_page(found))
    assert "not measured A token reads 1.60 KB of weights" in text
    assert f"ingot bench {found.view.path} --json &gt; bench.json" in text
    assert "not replayed here A mean error of 2.0e-03 in log-probability is allowed" in text
    assert "x86-64" not in text and "any machine nothing more 7 B" in text


def test_a_bench_is_beside_its_limit(found: Inspected) -> None:
    text = text_of(artifact_page(replace(found, measured=MEASURED)))
    assert "cpu:portable on Some CPU, 3 threads; it reads 20.0 GB/s." in text
    assert "decode &lt;8&gt; 123.4 88 % of memory" in text
    assert "not measured" not in text


@pytest.mark.parametrize(
    ("verified", "word", "others"), [(PASSED, "reproduced", 0), (FAILED, "not reproduced", 1)]
)
def test_goldens_are_shown_with_their_result(
    found: Inspected, verified: Verification, word: str, others: int
) -> None:
    text = text_of(artifact_page(replace(found, verified=verified)))
    assert f"Golden outputs {word} 2 prompts, 9 positions, on the host" in text
    assert "6.0e-07 in log-probability; 1.5e-06 allowed" in text
    assert "2.0e-06; 2.0e-03 allowed" in text
    assert f"tokens that differ otherwise: {others} ways prefill, tokens: the same bits" in text


def test_weights_are_those_that_the_target_reads(found: Inspected) -> None:
    """An artifact for a processor and a GPU has two files of them."""
    manifest, (entry, *_) = found.view.manifest, found.view.manifest.targets
    own, other = weights_name(entry.layout), weights_name("cuda")
    files = manifest.files | {own: replace(manifest.files[own], size=5000)}
    files[other] = manifest.files[own]
    view = replace(found.view, manifest=replace(manifest, files=files))
    text = text_of(artifact_page(replace(found, view=view)))
    assert "5.00 KB weights in float32" in text and "none; what differs" in text


def test_memory_is_there_without_a_script(found: Inspected) -> None:
    page, need = artifact_page(found), found.memory
    total = need.total_bytes(64, 1)
    assert f'<output id="total">{format_bytes(total)}</output>' in page
    assert "weights 1.79 KB temporaries 2.05 KB logits 768 B" in text_of(page)
    assert "4 GB 4 8 GB 4 16 GB 4 32 GB 4 context 1 seat 4 seats 1 " in text_of(page)
    one, all = (format_bytes(need.total_bytes(64, seats)) for seats in (1, 4))
    assert f" 64 {one} {all} A machine fits while 10 %" in text_of(page)


def test_a_layer_is_shown_from_the_export_to_its_kernels(found: Inspected) -> None:
    page = artifact_page(found)
    assert "norm stands for layer 0" in text_of(page)
    stages = re.findall(r'class="stages">(.*?)</script>', page, re.S)
    assert [stage["name"] for stage in json.loads(stages[0])] == ["export", "fuse_rms_norm"]
    assert "%1<b>" not in page and "\\u003cb\\u003e" in stages[0]


def test_an_older_artifact_says_what_it_lacks(tmp_path: Path) -> None:
    view = read_artifact(write_sample(tmp_path / "old.ingot"))
    text = text_of(artifact_page(Inspected(view=view, target="cpu:portable")))
    assert "This artifact keeps no graphs." in text


@pytest.mark.parametrize(("verified", "code"), [(PASSED, 0), (FAILED, 4)])
def test_the_exit_code_tells_what_goldens_gave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys, verified: Verification, code: int
) -> None:
    monkeypatch.setattr("ingot.runtime.verify.replay", lambda artifact: verified)
    sample, page = str(write_sample(tmp_path / "sample.ingot")), tmp_path / "page.html"
    assert main(["inspect", sample, "--verify", "--html", str(page), "--json"]) == code
    captured = capsys.readouterr()
    said = json.loads(captured.out)["verified"]
    assert said["passed"] is (code == 0)
    assert (said["max_error"], said["num_prompts"]) == (2e-6, 2)
    assert page.exists()
    assert ("does not reproduce" in captured.err) is (code == 4)
    assert main(["inspect", sample, "--verify"]) == code
    assert ("NOT reproduced on this host" in capsys.readouterr().out) is (code == 4)


def test_json_has_what_the_page_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample = write_sample(tmp_path / "sample.ingot", sample_layers())
    assert main(["inspect", str(sample), "--json"]) == 0
    value = json.loads(capsys.readouterr().out)
    found = Inspected(view=read_artifact(sample), target="cpu:portable")
    assert value["memory"]["fixed_bytes"] == found.memory.fixed_bytes
    assert value["memory"]["full_bytes"] == found.memory.total_bytes(64, 4)
    assert value["weights"][0]["nbytes"] == 1568
    assert [each["tier"] for each in value["differences"]] == ["exact"]
    assert (value["target"], value["measured"], value["verified"]) == ("cpu:portable", None, None)
    (layer,) = value["layers"]
    assert [each["name"] for each in layer["passes"] if each["changed"]] == [
        "export", "fuse_rms_norm",
    ]  # fmt: skip


if CHROMIUM := find_chromium():
    WIDTHS = (390, 768, 1280)
    SET = """(() => {
      for (const [name, value] of Object.entries(VALUES)) {
        const field = document.getElementById(name);
        field.value = value;
        field.dispatchEvent(new Event("input", { bubbles: true }));
      }
      const seats = [...document.querySelectorAll("#machines tr")].map((row) =>
        [row.className, row.cells[2].textContent]);
      return [document.getElementById("total").textContent, seats];
    })()"""
    PRESS = """[...document.querySelectorAll(".layer button")].map((button) => {
      button.click();
      const shown = [...document.querySelectorAll(".graph .line:not(.removed)")];
      return [button.dataset.stage, shown.map((row) =>
        `${row.querySelector(".type").textContent}|${row.querySelector(".call").textContent}`)];
    })"""

    @pytest.fixture(scope="module")
    def browser():
        with open_browser(CHROMIUM) as found:
            yield found

    def test_it_fits_every_window_whatever_its_controls_say(
        browser: Browser, found: Inspected, tmp_path: Path
    ) -> None:
        page = tmp_path / "page.html"
        page.write_text(artifact_page(replace(found, measured=MEASURED, verified=FAILED)))
        looks = [(width, width != 768) for width in WIDTHS]
        faults = {look: browser.look(page, *look).faults(*look) for look in looks}
        assert faults == {look: [] for look in looks}

    @pytest.mark.slow
    def test_the_page_of_experts_in_int4_fits_for_each_target(
        browser: Browser, tmp_path: Path
    ) -> None:
        """A processor and a GPU: the page names both, and shows the plan of one."""
        model = save_random("qwen3moe_unnormalised", tmp_path / "model", tokenizer=True)
        targets, page = ("cpu:portable", "cuda:sm_90"), tmp_path / "page.html"
        options = {"quantize": "int4", "group_size": "32"}
        artifact = compile_sketch(model, tmp_path / "a.ingot", targets, **options)
        for target in targets:
            assert main(["inspect", str(artifact), "--target", target, "--html", str(page)]) == 0
            text = page.read_text()
            assert "expert_gate" in text and all(each in text for each in targets)
            assert "1 kinds" not in text
            for width in WIDTHS:
                assert browser.look(page, width, width != 768).faults(width, width != 768) == []

    def test_the_script_does_the_sums_of_python(
        browser: Browser, found: Inspected, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hosts = {f"{size}": size for size in (5000, 7000, 9000, 20_000)}
        monkeypatch.setattr(memory, "HOSTS", hosts)
        page, need = tmp_path / "page.html", found.memory
        page.write_text(artifact_page(found))
        browser.open(page, 768, dark=False)
        for context, seats in ((1, 1), (16, 4), (17, 2), (64, 4), (33, 3)):
            values = json.dumps({"context": context, "seats": seats})
            total, rows = browser.value_of(SET.replace("VALUES", values))
            nbytes = need.total_bytes(context, seats)
            assert total == format_bytes(nbytes)
            assert rows == [
                ["fits" if nbytes <= size * 0.9 else "short",
                 str(need.seats_in(size, context) or "none")]
                for size in hosts.values()
            ]  # fmt: skip
        assert {row[0] for row in rows} == {"fits", "short"}
        past = SET.replace("VALUES", json.dumps({"context": 10**9, "seats": -3}))
        assert browser.value_of(past)[0] == format_bytes(need.total_bytes(64, 1))

    def test_a_button_shows_the_graph_after_its_pass(
        browser: Browser, found: Inspected, tmp_path: Path
    ) -> None:
        page = tmp_path / "page.html"
        page.write_text(artifact_page(found))
        browser.open(page, 1280, dark=False)
        assert browser.value_of(PRESS) == [
            ["export", ["float32[N, 8]|%1<b> = aten.mul(%0, %0)", "|x = input"]],
            ["fuse_rms_norm", ["float32[N, 8]|%1<b> = rms_norm(%0)", "|x = input"]],
        ]
