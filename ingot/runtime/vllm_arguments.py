"""The arguments of vLLM that scripts pass, and what each of them does here.

`docs/coming_from.md` shows the tables. A row is all that another argument takes.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ingot.errors import UsageError
from ingot.runtime.field_checks import plain


@dataclass(frozen=True, slots=True)
class VllmArgument:
    """One argument of vLLM.

    Attributes:
        name: vLLM's name, which is ours as well.
        harmless: values that change nothing here, vLLM's default first. They are always taken.
        advice: what the argument does here, or what to use instead.
        option: the option of `ingot.LLM` that other values are passed on to,
        compile: or the option of `ingot.compile`, for a model directory,
        config: or the field of `EngineConfig`; of an argument that has both, for an artifact.
        spellings: other values that are taken, and what they are called here. None: all, for the
            option itself to check.
        reads: makes fields of `EngineConfig` of a value that has several in one.
    """

    name: str
    harmless: tuple[Any, ...]
    advice: str
    option: str = ""
    compile: str = ""
    config: str = ""
    spellings: Mapping[Any, Any] | None = None
    reads: Callable[[object], dict[str, Any]] | None = None

    @property
    def acts(self) -> bool:
        """True if any value of it has an effect here."""
        return bool(self.option or self.compile or self.config or self.reads)

    def changes_nothing(self, value: object) -> bool:
        # A bool equals 0 or 1, and is another thing.
        return any(
            isinstance(value, bool) is isinstance(one, bool) and value == one
            for one in self.harmless
            if value is None or isinstance(value, (bool, int, float, str))
        )

    def spelled(self, value: object) -> Any:
        """Translates a value. Raises UsageError for one that is not taken."""
        if self.acts and self.spellings is None:
            return value
        key = str(value).removeprefix("torch.")  # torch.bfloat16 is "bfloat16"
        if self.acts and self.spellings and key in self.spellings:
            return self.spellings[key]
        taken = [*map(repr, self.harmless), *map(repr, self.spellings or ())]
        raise UsageError(
            f"{self.name} is {value!r:.80}",
            hint=f"Supported here: {', '.join(taken)}. {self.advice}",
        )


_EXAMPLE = '{"method": "ngram", "num_speculative_tokens": 5}'
_LOOKUP = ("prompt_lookup_max", "prompt_lookup_min")
_KNOWN = ("method", "model", "num_speculative_tokens", *_LOOKUP)


def read_speculative_config(given: object) -> dict[str, Any]:
    """Fields of `EngineConfig`. Raises UsageError for what is not supported.

    As in vLLM, one of `prompt_lookup_max` and `prompt_lookup_min` alone stands for both, and
    `model` may name the method.
    """
    if not isinstance(given, Mapping):
        raise UsageError(
            f"speculative_config is {given!r:.80}", hint=f"Give a dict, such as {_EXAMPLE}."
        )
    for name in given:
        if name not in _KNOWN:
            raise UsageError(
                f"speculative_config has {name!r:.80}", hint=f"Supported: {', '.join(_KNOWN)}."
            )
    values = {name: value for name, value in given.items() if value is not None}
    method, model = values.pop("method", None), values.pop("model", None)
    wanted = method or str(model or "").strip("[]")
    if wanted != "ngram" or model not in (None, "ngram", "[ngram]"):
        raise UsageError(
            f"speculative_config has method {method!r:.80} and model {model!r:.80}",
            hint=f"Supported is the method 'ngram', without a model: {_EXAMPLE}.",
        )
    bounds = [values[name] for name in _LOOKUP if name in values]
    if len(bounds) == 1:
        values |= dict.fromkeys(_LOOKUP, bounds[0])
    return {"speculative": "ngram", **values}


_ONE_MACHINE = "A model runs in one process, on one machine."
_NO_CODE = "No code of a model's folder is ever run."
_TEXT_ONLY = "Models take text alone."
_OFF = (False, None)
_FLAG = (False, True, None)

CONSTRUCTOR = (
    VllmArgument("max_model_len", (None, -1, "auto"), "The most tokens of a sequence.",
             option="max_model_len"),
    VllmArgument("seed", (0, None),
             "Seeds the draws of requests that have no seed.", option="seed"),
    VllmArgument("kv_cache_memory_bytes", (None,), "Another name of `kv_cache_bytes`.",
             option="kv_cache_bytes"),
    VllmArgument("enable_prefix_caching", (None,),
             "The switch `prefix_cache` of `EngineConfig`, which is on unless given.",
             config="prefix_cache"),
    VllmArgument("max_num_seqs", (None,),
             "The most sequences in a step: compiled in for a model directory (64 unless given), "
             "and a bound below the artifact's own otherwise.",
             compile="max_num_seqs", config="max_num_seqs"),
    VllmArgument("max_num_batched_tokens", (None,),
             "The most tokens in a step: compiled in for a model directory (512 unless given), "
             "and a bound below the artifact's own otherwise.",
             compile="max_num_batched_tokens", config="max_num_batched_tokens"),
    VllmArgument("speculative_config", (None,),
             'Prompt lookup, on CPUs: `{"method": "ngram"}`, with `num_speculative_tokens`, '
             "`prompt_lookup_max` and `prompt_lookup_min` if need be. They are switches of "
             "`EngineConfig`.",
             reads=read_speculative_config),
    VllmArgument("prompt_cache", (None,), "Not of vLLM: the folder of `EngineConfig`.",
             config="prompt_cache"),
    VllmArgument("prompt_cache_bytes", (None,), "Not of vLLM: the bytes of its files.",
             config="prompt_cache_bytes"),
    VllmArgument("speculative", (None,), 'Not of vLLM: short for `{"method": "ngram"}`.',
             config="speculative"),
    VllmArgument("generation_config", ("auto",),
             "Where requests without parameters get theirs: the model's generation_config.json, or "
             "`SamplingParams()` alone.",
             option="generation_config", spellings={"vllm": "vllm"}),
    VllmArgument("dtype", ("auto", None),
             "What a model directory is compiled to compute in: the dtype of its weights, but "
             "bfloat16 instead of float16 where a target is no GPU. float16 is for GPUs alone: "
             "compile_options={'targets': 'cuda:native'}.",
             compile="dtype",
             spellings={"float32": "float32", "float": "float32", "bfloat16": "bfloat16",
                        "float16": "float16", "half": "float16"}),
    VllmArgument("quantization", (None,),
             "How the weights of a model directory are stored. ingot makes the integers itself, "
             "of weights that are not quantized; None keeps those of a checkpoint that is.",
             compile="quantize",
             spellings={kind: kind for kind in ("auto", "int8", "int6", "int5", "int4")}),
    VllmArgument("kv_cache_dtype", ("auto", None),
             "How the keys and values of a model directory are stored.",
             compile="kv_dtype", spellings={"int8": "int8"}),
    VllmArgument("tokenizer", (None,), "The tokenizer is the model's own."),
    VllmArgument("tokenizer_mode", ("auto", "hf"), "The tokenizer is the model's tokenizer.json."),
    VllmArgument("skip_tokenizer_init", _OFF,
             "The tokenizer is only read when a request needs it: give token ids, and "
             "SamplingParams(detokenize=False)."),
    VllmArgument("trust_remote_code", _OFF, f"{_NO_CODE} Leave it out."),
    VllmArgument("revision", (None,), "The branch, tag or commit of a model on the hub.",
             option="revision"),
    VllmArgument("code_revision", (None,), _NO_CODE),
    VllmArgument("tokenizer_revision", (None,), _NO_CODE),
    VllmArgument("hf_token", (None, True), "Set HF_TOKEN, or run `hf auth login`."),
    VllmArgument("download_dir", (None,),
             "Set HF_HOME to where downloaded models lie, and INGOT_CACHE for compiled ones."),
    VllmArgument("load_format", ("auto", "safetensors"), "Weights are safetensors."),
    VllmArgument("config_format", ("auto", "hf"), "The config is a config.json."),
    VllmArgument("hf_overrides", (None,), "Change config.json in a copy of the folder."),
    VllmArgument("override_generation_config", (None,), "Give SamplingParams to each call."),
    VllmArgument("tensor_parallel_size", (1,), _ONE_MACHINE),
    VllmArgument("pipeline_parallel_size", (1,), _ONE_MACHINE),
    VllmArgument("data_parallel_size", (1,), f"{_ONE_MACHINE} Start one process for each copy."),
    VllmArgument("enable_expert_parallel", _OFF, _ONE_MACHINE),
    VllmArgument("distributed_executor_backend", (None, "uni"), _ONE_MACHINE),
    VllmArgument("disable_custom_all_reduce", _FLAG, _ONE_MACHINE),
    VllmArgument("device", ("auto", None),
             "What runs the model: \"cpu\", \"cuda\" or \"cuda:1\". A model directory is compiled "
             "for it. Unless given, a GPU that the artifact has a target for, or else the CPU.",
             option="device"),
    VllmArgument("gpu_memory_utilization", (0.9, 0.92),
             "Memory for keys and values is `kv_cache_bytes`."),
    VllmArgument("swap_space", (4, 0, None),
             "Nothing is swapped: preempted sequences start again."),
    VllmArgument("cpu_offload_gb", (0, None), "Weights are mapped into memory, and nowhere else."),
    VllmArgument("block_size", (None, 16),
             "Tokens of a page of the cache: compile_options={'page_size': ...}."),
    VllmArgument("num_gpu_blocks_override", (None,),
             "Memory for keys and values is `kv_cache_bytes`."),
    VllmArgument("enforce_eager", _FLAG,
             "Nothing is captured at start: kernels are compiled before."),
    VllmArgument("compilation_config", (None, 0, 1, 2, 3), "See `compile_options`."),
    VllmArgument("max_seq_len_to_capture", (8192, None), "Nothing is captured at start."),
    VllmArgument("enable_chunked_prefill", (True, None),
             "Prompts are always cut into chunks: EngineConfig(chunk_tokens=...) sets their size."),
    VllmArgument("scheduling_policy", ("fcfs", "priority"),
             "The `priority` of a request counts; of equal ones, the first to come is first."),
    VllmArgument("async_scheduling", (None,), "EngineConfig(overlap=...) switches it."),
    VllmArgument("disable_sliding_window", _OFF, "Windows are part of the model."),
    VllmArgument("max_logprobs", (20,),
             "A request may ask for 1000 log-probabilities, or for all."),
    VllmArgument("disable_log_stats", _FLAG, "Nothing is logged: `counters()` has the figures."),
    VllmArgument("disable_log_requests", _FLAG, "Requests are never logged."),
    VllmArgument("enable_log_requests", _OFF, "Requests are never logged."),
    VllmArgument("served_model_name", (None,), "Of a server: `ingot serve --served-model-name`."),
    VllmArgument("chat_template", (None,), "Give it to `chat(..., chat_template=...)`."),
    VllmArgument("logits_processors", (None,),
             "Give them to SamplingParams(logits_processors=...)."),
    VllmArgument("runner", ("auto", "generate"), "Models generate."),
    VllmArgument("task", ("auto", "generate"), "Models generate."),
    VllmArgument("convert", ("auto", "none"), "Models generate."),
    VllmArgument("enable_lora", _OFF, "Merge the adapter into the weights, and compile those."),
    VllmArgument("limit_mm_per_prompt", (None,), _TEXT_ONLY),
    VllmArgument("mm_processor_kwargs", (None,), _TEXT_ONLY),
    VllmArgument("allowed_local_media_path", ("", None), _TEXT_ONLY),
)  # fmt: skip

CALLS = (
    VllmArgument("lora_request", (None,), "Merge the adapter into the weights, and compile those."),
    VllmArgument("mm_processor_kwargs", (None,), _TEXT_ONLY),
    VllmArgument("chat_template_content_format", ("auto",),
             "Parts are given to templates that read them, and are joined for others."),
    VllmArgument("concurrency_limit", (None,), "EngineConfig(max_num_seqs=...) bounds a step."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Chosen:
    """Translated arguments: options of the model, of the compile, and fields of EngineConfig."""

    options: dict[str, Any]
    compile: dict[str, Any]
    config: dict[str, Any]


def choose(
    given: Mapping[str, Any],
    rows: Iterable[VllmArgument],
    own: Iterable[str] = (),
    *,
    compiled: bool = True,
    known: Iterable[str] = (),
) -> Chosen:
    """Sorts arguments by what they do here; `own` are ours, which are passed on.

    `known` are names that an error may propose instead.

    `compiled` says whether the model is an artifact. Raises UsageError for a value that is not
    supported, for a name that nobody knows and for two names of one option.
    """
    table, own, chosen = {row.name: row for row in rows}, list(own), Chosen({}, {}, {})
    for name, value in given.items():
        row, value = table.get(name), plain(value)
        if row is None:
            if name not in own:
                raise _unknown(name, [*own, *known, *table])
            _put(chosen.options, name, value)
        elif row.changes_nothing(value):
            continue
        elif row.reads:
            chosen.config.update(row.reads(value))
        elif row.option:
            _put(chosen.options, row.option, row.spelled(value))
        elif row.config and (compiled or not row.compile):
            chosen.config[row.config] = row.spelled(value)
        else:
            wanted = row.spelled(value)
            if compiled:
                raise UsageError(
                    f"{name} is {value!r:.80}, but the model is compiled already",
                    hint="Give the model directory, or leave it out.",
                )
            chosen.compile[row.compile] = wanted
    return chosen


def _put(options: dict[str, Any], name: str, value: object) -> None:
    if name in options:
        raise UsageError(f"{name} is given under two names", hint="Give one of them.")
    options[name] = value


def _unknown(name: str, known: list[str]) -> UsageError:
    near = difflib.get_close_matches(name, known, 1)
    return UsageError(
        f"there is no argument {name!r}" + (f"; {near[0]!r}?" if near else ""),
        hint="docs/coming_from.md lists the arguments.",
    )
