"""The measured section of docs/gpu.md, from results that are made up."""

from __future__ import annotations

import json

import pytest

from bench.gpu.page import BEGIN, END, NOTHING, PAGE, main, merged, section, with_results
from bench.gpu.results import FAILED, NOT_RUN, OK, Outcome, results

DECODE = {"1": {"tokens_per_second": 1234.5, "milliseconds": 0.81, "share": 0.625}}
ENVIRONMENT = Outcome(
    "environment", OK, 1.0, error="",
    figures={
        "card": {"name": "NVIDIA H200"}, "versions": {"ingot": "0.1.0", "torch": "2.11.0"},
        "smi": {"driver_version": "580.1"},
    },
)  # fmt: skip
SPEED = Outcome(
    "speed qwen3-0.6b-bf16", OK, 9.0, error="",
    figures={
        "decode": DECODE, "parts": {"1": {"graph in ms": 0.7}},
        "prefill": {"tokens": 2048, "tokens_per_second": 99000.0, "share": 0.5},
    },
)  # fmt: skip
LIMITS = Outcome(
    "limits", OK, figures={"bytes_per_second": 4.3e12, "operations_per_second": 7.9e14}
)
RATIOS = Outcome("transformers qwen3-0.6b-bf16", OK, figures={"decode": {"1": {"ratio": 2.5}}})
FIRST = Outcome("first token qwen3-0.6b-bf16", OK, figures={"first token in s": 1.234})


def found(*outcomes, date="2026-11-23"):
    return json.loads(json.dumps(results(date, 1, outcomes)))


def test_figures_stand_beside_their_limits_with_date_card_and_versions():
    text = section([found(ENVIRONMENT, SPEED, LIMITS, RATIOS, FIRST)])
    assert "on 23 November 2026 on NVIDIA H200, with ingot 0.1.0, torch 2.11.0" in text
    assert "driver 580.1" in text and "5 of 5 parts passed." in text
    assert "| qwen3-0.6b-bf16 | 1 | 1,234 tok/s | 62 % | 0.70 ms | 2.50 |" in text
    assert "| qwen3-0.6b-bf16 | 2048 | 99,000 tok/s | 50 % | 1.23 s |" in text
    assert "4.30 TB/s" in text and "790 TFLOP/s" in text
    assert NOTHING not in text


def test_what_failed_is_named():
    text = section([found(ENVIRONMENT, Outcome("rows a", FAILED), Outcome("ways a"))])
    assert "1 of 3 parts passed. Failed: rows a. Not run: ways a." in text


def test_halves_are_put_together():
    first = found(ENVIRONMENT, SPEED, date="2026-11-22")
    second = found(Outcome("environment"), Outcome(SPEED.name), LIMITS)
    parts = merged([first, second])
    assert [part["status"] for part in parts.values()] == [OK, OK, OK]
    assert "on 22 November 2026 and 23 November 2026 on NVIDIA H200" in section([first, second])


def test_without_results_nothing_was_measured(tmp_path):
    assert section([]) == NOTHING == section([found(Outcome("speed a", NOT_RUN))])
    page = PAGE.read_text()
    assert NOTHING in page or "Measured by" in page
    copy, file = tmp_path / "gpu.md", tmp_path / "out.json"
    copy.write_text(page)
    assert main(["--page", str(copy)]) == 0
    assert NOTHING in copy.read_text()
    file.write_text(json.dumps(found(ENVIRONMENT, SPEED)))
    assert main([str(file), "--page", str(copy)]) == 0
    text = copy.read_text()
    assert "1,234 tok/s" in text and NOTHING not in text
    assert text.count(BEGIN) == text.count(END) == 1
    assert main(["--page", str(copy)]) == 0
    assert copy.read_text() == with_results(page, [])


@pytest.mark.parametrize("text", ["{", "[]", '{"schema": 9, "parts": []}', '{"schema": 1}'])
def test_files_that_are_no_results_leave_the_page_alone(tmp_path, capsys, text):
    page, file = tmp_path / "gpu.md", tmp_path / "out.json"
    page.write_text(PAGE.read_text())
    file.write_text(text)
    assert main([str(file), "--page", str(page)]) == 2
    assert "error: " in capsys.readouterr().err
    assert page.read_text() == PAGE.read_text()


def test_a_page_without_a_place_is_refused():
    with pytest.raises(ValueError, match="no place"):
        with_results("# GPUs", [])
