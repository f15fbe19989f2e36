"""`ingot bench serve` against a server that streams what it is told to."""

from __future__ import annotations

import json

import pytest

from ingot.cli.main import main
from tests.support.fake_openai import Fake, completion, conversation, event, serve_fake

SMALL = ("--num-prompts", "6", "--random-input-len", "4", "--random-output-len", "3")
FIELDS = (
    "completed failed total_input_tokens total_output_tokens request_throughput request_goodput "
    "output_throughput"
).split()


@pytest.fixture
def fake():
    with serve_fake(Fake()) as fake:
        yield fake


def bench(fake: Fake, *options: str) -> int:
    return main(["bench", "serve", "--base-url", fake.url, *SMALL, *options])


def measured(fake: Fake, capsys, *options: str) -> dict:
    assert bench(fake, *options, "--json") == 0
    return json.loads(capsys.readouterr().out)


def test_requests_are_counted_and_say_what_was_asked_for(fake, capsys):
    found = measured(fake, capsys, "--ignore-eos", "--temperature", "0.5")
    assert (found["completed"], found["failed"], found["model_id"]) == (6, 0, "fake")
    assert (found["total_input_tokens"], found["total_output_tokens"]) == (42, 18)
    assert len(fake.asked) == 7  # with the one before, which is not measured
    for asked in fake.asked:
        assert asked["path"] == "/v1/completions" and asked["model"] == "fake"
        assert asked["max_tokens"] == 3 and asked["stream"] is True
        assert asked["stream_options"] == {"include_usage": True}
        assert asked["ignore_eos"] is True and asked["temperature"] == 0.5
        assert len(asked["prompt"]) == 4 and set(asked["prompt"]) <= {3, 5, 8, 13}


def test_the_first_prompt_is_not_one_that_is_measured(fake, capsys):
    measured(fake, capsys, "--random-input-len", "30")
    first, *others = (tuple(asked["prompt"]) for asked in fake.asked)
    assert first not in others and len(set(others)) == 6


def test_results_have_the_fields_of_vllm(fake, capsys, tmp_path):
    path = tmp_path / "result.json"
    options = ("--metric-percentiles", "50,99.9", "--goodput", "ttft:60000", "e2el:0")
    found = measured(fake, capsys, *options, "--save-result", str(path), "--save-detailed")
    assert json.loads(path.read_text()) == found
    assert set(FIELDS) <= set(found)
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for name in ("mean", "median", "std", "p50", "p99.9", "percentiles"):
            assert f"{name}_{metric}_ms" in found
    assert found["request_goodput"] == 0.0
    assert found["goodput"] == {"ttft": 60000.0, "e2el": 0.0}
    assert found["output_lens"] == [3] * 6 and found["generated_texts"] == ["abc"] * 6
    assert [len(itl) for itl in found["itls"]] == [2] * 6


def test_conversations_have_one_message_of_words(fake, capsys):
    fake.answers = [conversation("x", "y")]
    found = measured(fake, capsys, "--backend", "openai-chat", "--model", "named")
    assert found["model_id"] == "named" and found["completed"] == 6
    for asked in fake.asked:
        assert asked["path"] == "/v1/chat/completions" and asked["max_completion_tokens"] == 3
        ((role, content),) = ((m["role"], m["content"]) for m in asked["messages"])
        assert role == "user" and len(content.split()) == 4


def test_without_a_route_for_tokens_prompts_are_words(fake, capsys):
    fake.tokens = None
    measured(fake, capsys)
    assert {len(asked["prompt"].split()) for asked in fake.asked} == {4}


@pytest.mark.parametrize("limit", [1, 3])
def test_no_more_are_sent_at_once_than_are_allowed(fake, capsys, limit):
    found = measured(fake, capsys, "--max-concurrency", str(limit), "--num-prompts", "12")
    assert fake.most_running <= limit and found["max_concurrent_requests"] <= limit


def test_connections_are_used_again(fake, capsys):
    measured(fake, capsys, "--max-concurrency", "2", "--num-prompts", "20")
    # One for each of: models, tokens, the request before, and the two at once.
    assert fake.num_connections <= 5 < len(fake.asked)


def test_a_server_that_closes_after_each_answer_is_read(fake, capsys):
    fake.chunked = False
    assert measured(fake, capsys)["completed"] == 6


@pytest.mark.parametrize("answers", [1, 2])
def test_a_server_that_ends_connections_unannounced_is_asked_again(fake, capsys, answers):
    fake.per_connection = answers
    found = measured(fake, capsys, "--max-concurrency", "2", "--num-prompts", "12")
    assert (found["completed"], found["failed"], len(fake.asked)) == (12, 0, 13)
    assert fake.num_connections >= 2 + 13 / answers


def test_a_server_that_ends_every_connection_is_an_error(fake, capsys):
    fake.per_connection = 0
    assert bench(fake, "--model", "m", "--backend", "openai-chat") == 1
    assert "the connection ended before the answer" in capsys.readouterr().err
    assert fake.num_connections == 1


def test_moments_follow_the_rate(fake, capsys):
    found = measured(fake, capsys, "--request-rate", "100", "--save-detailed")
    starts = found["start_times"]
    assert starts == sorted(starts) and len(set(starts)) == 6
    assert found["request_rate"] == 100.0 and found["duration"] >= 6 / 100


def test_what_fails_is_counted_by_its_reason(fake, capsys):
    full = (429, {"error": {"message": "queue full"}})
    broken = [*completion("a", usage=None)[:2], b""]
    failed = [event({"choices": [{"text": "a"}]}), event({"error": {"message": "engine dead"}})]
    fake.answers = [completion("a", "b", "c"), full, broken, failed]
    found = measured(fake, capsys, "--num-prompts", "7", "--max-concurrency", "1")
    assert (found["completed"], found["failed"]) == (1, 6)
    assert found["errors"] == {
        "HTTP 429: queue full": 2,
        "the connection ended before the answer": 2,
        "engine dead": 2,
    }


def test_the_table_says_it_all_in_one_screen(fake, capsys):
    assert bench(fake, "--percentile-metrics", "ttft,itl", "--goodput", "ttft:60000") == 0
    said = capsys.readouterr()
    lines = said.out.splitlines()
    assert lines[0] == f"fake at {fake.url}" and len(lines) < 20
    assert any(line.split()[:3] == ["requests", "6", "completed,"] for line in lines)
    assert any("requests/s within ttft 60000 ms" in line for line in lines)
    assert [line.split()[-5] for line in lines if " TTFT " in line or " ITL " in line] == [
        "TTFT",
        "ITL",
    ]
    assert "TPOT" not in said.out and said.err == f"sending 6 requests to {fake.url}\n"


def test_where_nothing_is_answered_the_exit_code_says_so(fake, capsys):
    fake.answers = [(503, {"error": {"message": "draining"}})]
    assert bench(fake, "--num-warmups", "0") == 1
    assert "6 x  HTTP 503: draining" in capsys.readouterr().out


def test_a_server_that_refuses_is_not_measured(fake, capsys):
    fake.answers = [(400, {"error": {"message": "too long"}})]
    assert bench(fake) == 1
    assert capsys.readouterr().err == "error: the server refuses: HTTP 400: too long\n"
    assert len(fake.asked) == 1


def test_a_key_of_the_environment_is_sent(fake, capsys, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    measured(fake, capsys)
    assert {headers["authorization"] for headers in fake.headers} == {"bearer secret"}
    assert "secret" not in json.dumps(measured(fake, capsys))


def test_a_server_without_models_and_no_server_are_said(fake, capsys):
    fake.models = []
    assert bench(fake) == 2
    assert "the server lists no model" in capsys.readouterr().err
    assert main(["bench", "serve", "--base-url", "http://127.0.0.1:1"]) == 2
    assert "nothing answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--request-rate", "0"),
        ("--burstiness", "0"),
        ("--random-range-ratio", "1"),
        ("--percentile-metrics", "ttft,abc"),
        ("--metric-percentiles", "101"),
        ("--extra-body", "[1]"),
        ("--goodput", "itl:1"),
        ("--save-detailed",),
    ],
)
def test_options_that_say_nothing_are_refused(fake, capsys, options):
    assert bench(fake, *options) == 2
    assert fake.asked == [] and options[0] in capsys.readouterr().err
