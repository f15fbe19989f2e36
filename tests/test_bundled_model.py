"""The bundled model is what its card says: small, whole, and trained."""

import json
import math
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

MODEL = Path(__file__).parents[1] / "golden" / "models" / "shakespeare"
MAX_BYTES = 16 * 2**20

ROUND_TRIPS = [
    "",
    "ROMEO:\nWhat light is that?\n\n",
    "  leading, trailing and   inner spaces \t\r\n ",
    "na\u00efve \u00a320 \u2014 \u0395\u03bb\u03bb\u03b7\u03bd\u03b9\u03ba\u03ac",
    "\u65e5\u672c\u8a9e \u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629",
    "\U0001f600\U0001f469\u200d\U0001f680\U0001f1eb\U0001f1f7 e\u0301 \ufeff \u2028",
    "".join(chr(c) for c in range(32)) + "\x7f\x80\x9f\u200b\ufffd",
    "".join(chr(c) for c in range(0x100)),
    "\U0010ffff\ue000",
]

# Ours, not the poet's: the words and the metre are his, the sentence is in no play.
VERSE = (
    "KING HENRY:\nMy lord, I pray you, bring the prince to me;\n"
    "The night is come, and we must to the town.\n\n"
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(MODEL / "tokenizer.json"))


def read_json(name: str) -> dict:
    return json.loads((MODEL / name).read_text())


def test_folder_is_small():
    assert sum(f.stat().st_size for f in MODEL.iterdir()) <= MAX_BYTES


def test_config_names_the_architecture():
    config = read_json("config.json")
    assert config["architectures"] == ["Qwen3ForCausalLM"]
    assert config["model_type"] == "qwen3"
    assert config["dtype"] == "bfloat16"
    assert config["tie_word_embeddings"] is True
    assert config["num_key_value_heads"] < config["num_attention_heads"]


def test_weights_are_bfloat16_and_counted():
    num_parameters = 0
    with safe_open(MODEL / "model.safetensors", framework="numpy") as weights:
        for name in weights.keys():  # noqa: SIM118 (not a mapping: it has no other iterator)
            part = weights.get_slice(name)
            assert part.get_dtype() == "BF16", name
            num_parameters += math.prod(part.get_shape())
    assert 4_000_000 <= num_parameters <= 8_000_000
    assert num_parameters == read_json("quality.json")["num_parameters"]


def test_vocabulary_fits_the_embedding(tokenizer: Tokenizer):
    config = read_json("config.json")
    vocabulary = tokenizer.get_vocab()
    assert 2_000 <= len(vocabulary) <= 4_000
    assert sorted(vocabulary.values()) == list(range(config["vocab_size"]))
    assert vocabulary["<|endoftext|>"] == config["eos_token_id"]


@pytest.mark.parametrize("text", ROUND_TRIPS)
def test_tokenizer_round_trips(tokenizer: Tokenizer, text: str):
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_quality_agrees_with_itself_and_the_card():
    quality = read_json("quality.json")
    nats_per_token = math.log(quality["perplexity_per_token"])
    nats_per_byte = nats_per_token * (quality["held_out_tokens"] - 1) / quality["held_out_bytes"]
    assert quality["bits_per_byte"] == pytest.approx(nats_per_byte / math.log(2), abs=1e-3)
    assert quality["perplexity_per_byte"] == pytest.approx(math.exp(nats_per_byte), abs=1e-3)
    card = (MODEL / "README.md").read_text()
    for key in ("perplexity_per_token", "bits_per_byte", "perplexity_per_byte", "steps", "seed"):
        assert f"{quality[key]:,}" in card or str(quality[key]) in card, key


def test_transformers_reads_it_and_it_has_learnt(tokenizer: Tokenizer):
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.Qwen3ForCausalLM.from_pretrained(MODEL, dtype=torch.float32)
    ids = torch.tensor([tokenizer.encode(VERSE).ids])
    with torch.no_grad():
        nats_per_token = model(input_ids=ids, labels=ids).loss.item()
    assert nats_per_token < 0.6 * math.log(tokenizer.get_vocab_size())


def test_chat_template_ends_with_the_reply_to_write():
    jinja2 = pytest.importorskip("jinja2")
    template = jinja2.Environment().from_string(read_json("tokenizer_config.json")["chat_template"])
    messages = [{"role": "user", "content": "What news?"}]
    prompt = template.render(messages=messages, add_generation_prompt=True)
    assert prompt == "<|endoftext|>First Citizen:\nWhat news?\n\nSecond Citizen:\n"
    silent = template.render(messages=messages, add_generation_prompt=False)
    assert prompt.startswith(silent) and prompt != silent
