"""Tokenizers built on the spot: byte-level BPE, and the SentencePiece kind with byte fallback."""

from __future__ import annotations

import json
from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from tokenizers.normalizers import Prepend, Replace, Sequence

CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "héllo wörld, 你好 世界 🙂🙃 ẃ",
    "the the the lazy lazy dog dog",
]
BOS, EOS = "<s>", "</s>"
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}[{{ message.role }}]{{ message.content }}"
    "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
)


@cache
def byte_level() -> Tokenizer:
    """300 tokens of byte-level BPE and 18 words, then <s> = 318 and </s>; <s> begins every text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        min_frequency=1,
    )
    tokenizer.train_from_iterator(CORPUS * 3, trainer)
    while tokenizer.get_vocab_size() < 318:
        tokenizer.add_tokens([f"extra{tokenizer.get_vocab_size()}"])
    tokenizer.add_special_tokens([AddedToken(BOS, special=True), AddedToken(EOS, special=True)])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, 318)]
    )
    return tokenizer


@cache
def word_pieces() -> Tokenizer:
    """As BERT's: [CLS] text [SEP], and after it the second text of a pair and [SEP]."""
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "ab", "cd"]
    vocab = {token: i for i, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return tokenizer


@cache
def byte_fallback() -> Tokenizer:
    """As Llama-2's: pieces with ▁ for a space, bytes as <0xE4>, the first space stripped."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += ["▁", "▁Hello", "▁world", "llo", "e", "a", "!", "▁a", "é", "▁▁", "\ufffd", "你"]
    tokenizer = Tokenizer(
        models.BPE({p: i for i, p in enumerate(pieces)}, [], byte_fallback=True, unk_token="<unk>")
    )
    tokenizer.normalizer = Sequence([Prepend("▁"), Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(p, special=True) for p in pieces[:3]])
    return tokenizer


@cache
def metaspace() -> Tokenizer:
    """Unigram with the Metaspace decoder, as T5 and many small models have it."""
    pieces = ["<unk>", "</s>", "▁", "▁the", "▁dog", "s", "▁a", "é", "🙂", "!", "▁▁"]
    tokenizer = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], 0))
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.add_special_tokens([AddedToken(p, special=True) for p in pieces[:2]])
    return tokenizer


@cache
def wordpiece() -> Tokenizer:
    pieces = ["[UNK]", "[SEP]", "the", "dog", "##s", "don", "'", "t", ".", ",", "##é", "!"]
    tokenizer = Tokenizer(models.WordPiece({p: i for i, p in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens([AddedToken(p, special=True) for p in pieces[:2]])
    return tokenizer


def tokenizer_files() -> dict[str, bytes]:
    """The tokenizer folder of the fake artifact."""
    config = {"bos_token": BOS, "eos_token": {"content": EOS, "__type": "AddedToken"}}
    return {
        "tokenizer/tokenizer.json": byte_level().to_str().encode(),
        "tokenizer/tokenizer_config.json": json.dumps(config).encode(),
        "tokenizer/chat_template.jinja": TEMPLATE.encode(),
    }
