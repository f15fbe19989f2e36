"""The artifact's tokenizer: text to tokens as Hugging Face does it, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, TypeVar

from ingot.artifact.longest_match import LongestMatch, longest_match
from ingot.artifact.tokenizer_config import configure, control_tokens, special_tokens
from ingot.errors import IngotError, RequestError, TokenizerError, describe
from ingot.runtime.detokenizer import Detokenizer
from ingot.runtime.field_checks import check_unicode
from ingot.runtime.spelled_bytes import is_byte
from ingot.runtime.template_names import named_templates, template_source

if TYPE_CHECKING:
    from ingot.runtime.chat import ChatTemplate

T = TypeVar("T")

FILE = "tokenizer/tokenizer.json"

# The detokenizer starts from the last 6 tokens of the prompt that leave text, which is enough for
# the beginning of a character. It looks for them among the last 64.
_MAX_RECENT, _PROMPT_TOKENS = 64, 6
TYPES = "token_type_ids"
GENERAL_CLASSES = ("PreTrainedTokenizerFast", "TokenizersBackend")

_MAX_CUT = 4  # lengths that texts are cut to, of which a tokenizer of their own is kept


class Encoding(dict[str, Any]):
    """Result of calling a tokenizer, as in transformers: a dict whose keys are attributes, too."""

    @property
    def input_ids(self) -> Any:
        return self["input_ids"]

    @property
    def attention_mask(self) -> Any:
        return self["attention_mask"]


class Tokenizer:
    """Wraps a `tokenizer.json`, with all that `tokenizer_config.json` adds to it.

    Raises TokenizerError for files that cannot be read, and for tokens beyond the `vocab_size`
    of the model.
    """

    def __init__(
        self,
        data: bytes,
        config: Mapping[str, Any] | None = None,
        *,
        chat_template: str | None = None,
        vocab_size: int | None = None,
    ) -> None:
        import tokenizers  # here, since programs that pass token ids never need it

        self.backend = _typed(
            TokenizerError, FILE, lambda: tokenizers.Tokenizer.from_str(data.decode())
        )
        self.config = dict(config or {})
        configure(self.backend, self.config, vocab_size)
        self.special_tokens = special_tokens(self.config)
        self._chat_template = chat_template
        self._templates: dict[str, ChatTemplate] = {}
        self._cut: dict[int, Any] = {}  # tokenizers that cut texts, by the length that they leave
        self._lock = Lock()
        self._skipped = {
            i for i, token in self.backend.get_added_tokens_decoder().items() if token.special
        }
        if vocab_size is None:
            return
        largest = max(self.backend.get_vocab(with_added_tokens=True).values(), default=0)
        if largest >= vocab_size:
            raise TokenizerError(
                f"{FILE} has token {largest}; the model's vocabulary has {vocab_size}",
                hint="The tokenizer is of another model.",
            )

    def __call__(self, text: str | Sequence[str], add_special_tokens: bool = True) -> Encoding:
        """`input_ids` and `attention_mask` of a text; of several, lists of them.

        Nothing is padded or cut. Raises RequestError as `encode` does.
        """
        if isinstance(text, (list, tuple)):
            rows = [self.encode(one, add_special_tokens) for one in text]
            return Encoding(input_ids=rows, attention_mask=[[1] * len(ids) for ids in rows])
        ids = self.encode(text, add_special_tokens)  # type: ignore[arg-type]
        return Encoding(input_ids=ids, attention_mask=[1] * len(ids))

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text, where the tokenizer's config names one."""
        return self._special_id("bos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The token that ends a text, where the tokenizer's config names one."""
        return self._special_id("eos_token")

    @property
    def chat_template(self) -> str | None:
        """The template that turns conversations into prompts; of several, the one with tools."""
        try:
            return self.template(with_tools=True)
        except RequestError:
            return None

    @property
    def chat_templates(self) -> dict[str, str]:
        """All templates of the model by name; one that has none is the "default"."""
        return named_templates(self.config, self._chat_template)

    @property
    def has_chat_template(self) -> bool:
        """True if conversations can be turned into prompts."""
        return self.chat_template is not None

    @cached_property
    def _longest(self) -> LongestMatch | None:
        with self._lock:  # its tables are large
            return longest_match(self.backend)

    @cached_property
    def special_spellings(self) -> re.Pattern[str] | None:
        """Finds what `encode` takes for special tokens, and the tokens that the config leaves to
        templates; None where there are none."""
        special = {self.token(token_id) or "" for token_id in self._skipped}
        spellings = special | control_tokens(self.config)
        # The longest first: of alternatives, a regular expression takes the first that matches.
        found = sorted((each for each in spellings if each), key=lambda text: (-len(text), text))
        return re.compile("|".join(map(re.escape, found))) if found else None

    @cached_property
    def tags(self) -> Mapping[str, int]:
        """Tokens that are no text, by what they spell: special ones, and those in angle brackets.

        `encode` finds them in a text before all others. Grammars take the same ones for no text.
        """
        added = self.backend.get_added_tokens_decoder().items()
        return {
            token.content: i
            for i, token in added
            if token.special or (token.content.startswith("<") and token.content.endswith(">"))
        }

    @cached_property
    def hidden_tags(self) -> frozenset[str]:
        """The tags that a text lacks without its special tokens."""
        return frozenset(tag for tag, token in self.tags.items() if token in self._skipped)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Tokens of a text, with the tokens that the model expects around every text.

        tokenizer.json says which these are. As in transformers, it overrules `add_bos_token` and
        `add_eos_token` of tokenizer_config.json.

        Raises RequestError for anything that is no text, and for text that the tokenizer refuses.
        """
        if not isinstance(text, str):
            raise RequestError(f"a text of type {type(text).__name__}", hint="Give a str.")
        check_unicode(text)
        if self._longest is not None:
            return self._longest.encode(text, add_special_tokens)
        # Unlike `encode`, a batch lets other threads of Python run meanwhile.
        encode = partial(self.backend.encode_batch_fast, add_special_tokens=add_special_tokens)
        ids: list[int] = _typed(
            RequestError, "the text cannot be tokenized", lambda: encode([text])[0].ids
        )
        return ids

    def encode_texts(
        self, texts: Sequence[str | tuple[str, str]], most: int | None = None
    ) -> list[tuple[list[int], int]]:
        """The tokens of each text or pair, and where the second text of a pair begins in them.

        That is 0 where there is none, or tokens do not tell. Texts of more than `most` tokens are
        cut to as many, of pairs the longer text first; special tokens stay. Raises RequestError.
        """
        for text in texts:
            for part in (text,) if isinstance(text, str) else text:
                check_unicode(part)
        backend = self.backend if most is None else self._cutting(most)
        found = _typed(
            RequestError, "the text cannot be tokenized", lambda: backend.encode_batch([*texts])
        )
        types = ((each.ids, each.type_ids if self.gives_types else ()) for each in found)
        return [(ids, kinds.index(1) if 1 in kinds else 0) for ids, kinds in types]

    @property
    def gives_types(self) -> bool:
        """True if tokens say which text of a pair they are of, as transformers decides it: by the
        names of the config, or else by the class, of which the general one gives none."""
        general = self.config.get("tokenizer_class") in GENERAL_CLASSES
        names = self.config.get("model_input_names", () if general else (TYPES,))
        return TYPES in names

    def _cutting(self, most: int) -> Any:
        """The same tokenizer, which cuts what is longer."""
        import tokenizers

        with self._lock:
            if most not in self._cut:
                if len(self._cut) >= _MAX_CUT:
                    self._cut.clear()
                made = tokenizers.Tokenizer.from_str(self.backend.to_str())
                made.enable_truncation(most, strategy="longest_first")
                self._cut[most] = made
            return self._cut[most]

    def decode(
        self,
        token_ids: Sequence[int],
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
    ) -> str:
        """Text of tokens. Bytes that are not UTF-8 become U+FFFD. Raises RequestError."""
        ids = list(token_ids)
        if skip_special_tokens or spaces_between_special_tokens:
            text: str = _typed(
                RequestError,
                "the tokens cannot be turned into text",
                lambda: self.backend.decode(ids, skip_special_tokens=skip_special_tokens),
            )
            return text
        # A text never begins with a space, so each special token begins a text of its own.
        starts = [i for i in range(1, len(ids)) if self._are_special(ids[i - 1], ids[i])]
        parts = pairwise([0, *starts, len(ids)])
        return "".join(self.decode(ids[begin:end], False) for begin, end in parts)

    def is_special(self, token_id: int) -> bool:
        """Tells whether a token is no text, such as one that ends it."""
        return token_id in self._skipped

    def token(self, token_id: int) -> str | None:
        """The spelling of a token in the vocabulary; None for an id that has none."""
        spelling: str | None = self.backend.id_to_token(token_id)
        return spelling

    def detokenizer(
        self,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        prompt_token_ids: Sequence[int] = (),
    ) -> Detokenizer:
        """A decoder for tokens that come one by one, after those of a prompt."""

        def visible(token_id: int) -> str | None:
            hidden = skip_special_tokens and token_id in self._skipped
            return None if hidden else self.token(token_id)

        recent = [t for t in prompt_token_ids[-_MAX_RECENT:] if visible(t) is not None]
        start = max(len(recent) - _PROMPT_TOKENS, 0)
        while start and is_byte(self.token(recent[start])):  # a run of them is read as a whole
            start -= 1
        joins = skip_special_tokens or spaces_between_special_tokens
        return Detokenizer(
            lambda ids: self.decode(ids, skip_special_tokens),
            visible,
            prompt=recent[start:],
            breaks=None if joins else self._are_special,
        )

    def template(self, given: str | None = None, *, with_tools: bool = False) -> str:
        """The source of a template: of one given by name or as Jinja, or else of the model's own,
        for tools or without. Raises RequestError where there is none."""
        return template_source(self.chat_templates, given, with_tools=with_tools)

    def thinking_switch(self, thinks: bool | None, given: str | None = None) -> dict[str, bool]:
        """Variables of a template by which the model thinks before it answers, or does not; None:
        as the template has it. Raises RequestError where it cannot be kept from it."""
        return {} if thinks is None else self._compiled(self.template(given)).switched(thinks)

    def check_system(self, given: str | None = None) -> None:
        """Raises RequestError for a template that refuses system messages, or leaves them out."""
        words = {"system": "WHAT-THE-SYSTEM-SAYS", "user": "Hello"}
        messages = [{"role": role, "content": text} for role, text in words.items()]
        if words["system"] not in self.apply_chat_template(messages, chat_template=given):
            raise RequestError(
                "the chat template leaves out the system message",
                hint="Say it in the message itself, or give another template.",
            )

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        **options: Any,
    ) -> str:
        """The prompt that the model's template makes of a conversation. Raises RequestError.

        `chat_template` is the name of one, or a Jinja template. `options` are the others of
        `ChatTemplate.render`, and variables of the template.
        """
        template = self._compiled(self.template(chat_template, with_tools=bool(tools)))
        return template.render(messages, tools=tools, **{**self.special_tokens, **options})

    def _compiled(self, source: str) -> ChatTemplate:
        from ingot.runtime.chat import ChatTemplate  # jinja2, for those who chat

        if source not in self._templates:
            self._templates[source] = ChatTemplate(source)
        return self._templates[source]

    def _special_id(self, name: str) -> int | None:
        spelling = self.special_tokens.get(name)
        return None if spelling is None else self.backend.token_to_id(spelling)

    def _are_special(self, *token_ids: int) -> bool:
        return self._skipped.issuperset(token_ids)


def _typed(kind: type[IngotError], what: str, call: Callable[[], T]) -> T:
    """Turns whatever the library raises into a typed error. Its panics are not Exceptions."""
    try:
        return call()
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise kind(f"{what}: {describe(error)}") from error
