"""How figures become tables and sentences."""

from __future__ import annotations

import pytest

from tools.figures_page import BEGIN, END, claims, long, models, origin, phases, with_figures

RAN = {"date": "2026-03-01", "ingot": "0.1.0", "python": "3.12.1"}
SPEEDS = {
    "prefill": {"tokens_per_second": 1200.0, "share": 0.8},
    "decode": {"tokens_per_second": 45.0, "share": 0.9},
}
FIGURES = {
    "machine": {"name": "a box", "processor": "abacus", "cores": 2},
    "parts": {
        "qwen3-0.6b/bf16": {
            **RAN, **SPEEDS, "streams": SPEEDS["decode"],
            "read_gb_per_second": 40.4, "compile_seconds": 20.04,
            "compile_gb": 2.0, "first_token_seconds": 0.2504, "memory_mb": 61.0,
        },
        "qwen3-0.6b/int4": {**RAN, **SPEEDS, "date": "2026-03-02", "read_gb_per_second": 50.6},
        "peers/bf16": {**RAN, "times": {
            "llama.cpp": {"version": "llama 1", "prefill": 2.0, "decode": 1.5},
            "openvino": {"prefill": 1.2, "decode": 3.0},
        }},
        "long/bf16": {
            **RAN,
            "prefill_4096": {"tokens_per_second": 900.0, "share": 0.5, "attention": 0.25},
            "decode_16384": {"tokens_per_second": 9.0, "share": 0.7, "attention": 0.6},
            "times": {"llama.cpp": {"prefill": 3.0, "decode": 2.5}},
        },
        "streams/bf16": {**RAN, "times": {"openvino": {"prefill": 5.0, "decode": 2.5}}},
        "peers/int4": {**RAN, "note": "It rained.", "times": {
            "onnxruntime": {"prefill": 4.0, "decode": 2.0},
        }},
    },
}  # fmt: skip
NOTHING = {"machine": FIGURES["machine"], "parts": {}}


def test_claims_are_beside_the_best_other_of_each_format():
    assert claims(FIGURES).splitlines() == [
        "| Qwen3-0.6B, a box | |",
        "|---|---|",
        "| decode, beside the best of llama.cpp, OpenVINO and ONNX Runtime "
        "| 1.5 to 2.0 times as fast |",
        "| prefill, beside the best of llama.cpp, OpenVINO and ONNX Runtime "
        "| 1.2 to 4.0 times as fast |",
        "| decode in bfloat16, of the memory limit | 90 % |",
        "| prefill in bfloat16, of the arithmetic limit | 80 % |",
        "| process start to first token, bfloat16 | 250 ms |",
    ]


def test_nothing_is_claimed_that_was_not_measured():
    assert claims(NOTHING).splitlines() == ["| Qwen3-0.6B, a box | |", "|---|---|"]
    assert origin(NOTHING) == "Nothing is measured yet."
    one_day = {**FIGURES, "parts": {"qwen2.5-0.5b/bf16": {**RAN, **SPEEDS}}}
    assert origin(one_day) == (
        "Measured on 1 March 2026 on a box (abacus), with ingot 0.1.0, Python 3.12.1."
    )
    assert len(models(NOTHING).splitlines()) == len(phases(NOTHING).splitlines()) == 2


def test_models_have_a_row_for_each_format_but_not_for_peers():
    _, _, bfloat16, int4, _, memory = models(FIGURES).splitlines()
    assert bfloat16 == (
        "| Qwen3-0.6B | bfloat16 | 45.0 tok/s | 90 % | 1,200 tok/s | 80 % | 250 ms |"
    )
    assert int4.endswith("| – |")
    assert memory == (
        "Memory gave 40 GB/s in some rows and 51 GB/s in others: compare shares, not speeds."
    )


def test_a_phase_stands_beside_its_limit_and_the_others():
    rows = phases(FIGURES).splitlines()[2:]
    assert rows[:2] == [
        "| bfloat16, prefill of 512 tokens | 1,200 tok/s | 1,500 tok/s | 80 % | 2.00 | 1.20 | – |",
        "| bfloat16, decode, context 512 | 45.0 tok/s | 50.0 tok/s | 90 % | 1.50 | 3.00 | – |",
    ]
    assert rows[2].startswith("| bfloat16, decode, 16 at once |")
    assert rows[2].endswith("| – | 2.50 | – |")
    assert rows[3].endswith("| – | – | 4.00 |")
    assert len(rows) == 5


def test_only_those_who_ran_are_named():
    parts = {**FIGURES["parts"], "long/bf16": {**RAN, "times": {}}, "peers/int4": {**RAN, "times": {
        "vllm": {"prefill": 4.0, "decode": 2.0},
    }}}  # fmt: skip
    figures = {**FIGURES, "parts": parts}
    assert (
        phases(figures).splitlines()[0].endswith("times llama.cpp | times OpenVINO | times vLLM |")
    )
    assert "the best of llama.cpp, OpenVINO and vLLM" in claims(figures)


def test_long_prompts_stand_beside_others_where_those_read_them():
    rows = long(FIGURES).splitlines()
    assert rows[2:] == [
        "| bfloat16, prefill of 4,096 tokens | 900 tok/s | 1,800 tok/s | 50 % | 25 % | 3.00 | – "
        "| – |",
        "| bfloat16, decode, context 16,384 | 9.0 tok/s | 12.9 tok/s | 70 % | 60 % | – | – | – |",
    ]
    assert long(NOTHING) == "Nothing is measured yet."


def test_the_origin_names_days_machine_memory_versions_and_notes():
    text = origin(FIGURES)
    assert text.startswith("Measured from 1 March 2026 to 2 March 2026 on a box (abacus), while")
    assert "while its memory gave 40 to 51 GB/s" in text
    assert "with ingot 0.1.0, Python 3.12.1, llama 1. It rained." in text
    assert "needs 61 MB (150 are allowed) beyond its weights" in text
    assert text.endswith("takes 20.0 s and at most 2.0 GB (25 s and 3 GB are allowed).")


def test_only_what_stands_between_the_marks_is_written():
    page = f"before\n{BEGIN.format('models')}\nold\n{END}\nafter {END}\n"
    new = with_figures(page, FIGURES)
    begin = BEGIN.format("models")
    assert new == f"before\n{begin}\n\n{models(FIGURES)}\n\n{END}\nafter {END}\n"
    assert with_figures(new, FIGURES) == new


@pytest.mark.parametrize(
    ("page", "said"), [("nothing", "no place for"), (f"{BEGIN.format('x')}{END}", "x is none of")]
)
def test_a_page_without_a_place_or_with_an_unknown_one_is_refused(page, said):
    with pytest.raises(ValueError, match=said):
        with_figures(page, FIGURES)
