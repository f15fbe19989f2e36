"""Pre-tokenizers of byte-level BPE: regular expressions that cut text, by `tokenizer.ggml.pre`.

Those of the models' own `tokenizer.json`. The names are llama.cpp's, and so is which of them cut
alike (`llama-vocab.cpp`).
"""

from __future__ import annotations

from dataclasses import dataclass

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + _REST
_QWEN2 = _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + _REST
_QWEN35 = (
    _SHORT + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_TEKKEN = rf"{_HEAD}{_UPPER}*{_LOWER}+|{_HEAD}{_UPPER}+{_LOWER}*|\p{{N}}{_TAIL}"
_GPT4O = (
    rf"{_HEAD}{_UPPER}*{_LOWER}+{_SHORT}?|{_HEAD}{_UPPER}+{_LOWER}*{_SHORT}?|\p{{N}}{{1,3}}{_TAIL}"
)
_SEED = (
    _SHORT + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
_DEFAULT = (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextSplits:
    """Pre-tokenizer of a vocabulary.

    Attributes:
        patterns: applied one after another; each cuts out what it matches.
        composed: characters are composed first (NFC).
        whole: a word that is a token is not built by merges.
        begins: a text begins with the token for that, where the file says nothing.
    """

    patterns: tuple[str, ...]
    composed: bool = False
    whole: bool = False
    begins: bool = False


_GROUPS: tuple[tuple[str, TextSplits], ...] = (
    ("default", TextSplits(patterns=_DEFAULT)),
    (
        "gpt-2 phi-2 mpt jais trillion granite-docling gigachat a.x-4.0 mellum exaone4",
        TextSplits(patterns=(_GPT2,)),
    ),
    ("olmo", TextSplits(patterns=(_GPT2,), composed=True)),
    ("starcoder refact smollm codeshell exaone minerva-7b", TextSplits(patterns=(r"\p{N}", _GPT2))),
    ("command-r", TextSplits(patterns=(r"\p{N}", _GPT2), composed=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        TextSplits(patterns=(_LLAMA3,), whole=True, begins=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe glm4", TextSplits(patterns=(_LLAMA3,))),
    ("qwen2", TextSplits(patterns=(_QWEN2,), composed=True)),
    (
        "stablelm2 deepseek-r1-qwen hunyuan megrez kormo solar-open grok-2",
        TextSplits(patterns=(_QWEN2,)),
    ),
    ("qwen35", TextSplits(patterns=(_QWEN35,), composed=True)),
    ("tekken", TextSplits(patterns=(_TEKKEN,), whole=True, begins=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", TextSplits(patterns=(_GPT4O,))),
    ("deepseek-v3 hunyuan-dense joyai-llm", TextSplits(patterns=_DEEPSEEK3)),
    ("seed-coder", TextSplits(patterns=(_SEED,))),
)
SPLITS = {name: splits for names, splits in _GROUPS for name in names.split()}
