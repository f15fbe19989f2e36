"""Inputs of a compile's two gates: golden outputs, and the cost of number formats on text."""

from __future__ import annotations

from collections.abc import Sequence

from ingot.artifact.golden import GOLDEN, decode_golden, encode_golden, model_of
from ingot.artifact.golden_rows import decode_rows, encode_rows, rows_file
from ingot.artifact.programs import LOGITS, Program
from ingot.artifact.quality import LEAST_COSINE, Quality, VectorQuality
from ingot.artifact.writer import ArtifactWriter
from ingot.compiler.beside import OnRead
from ingot.compiler.describe import Part, model_info, stored_format
from ingot.compiler.front import Front
from ingot.compiler.golden import golden_outputs, golden_prompts
from ingot.compiler.golden_rows import golden_rows
from ingot.compiler.golden_text import TEXT, added_before
from ingot.compiler.lazy_rows import by_rows
from ingot.compiler.model import OpenModel
from ingot.compiler.options import Clock
from ingot.compiler.quality import Setting, measure, measure_vectors, seconds_of
from ingot.compiler.quality_gate import check_quality
from ingot.compiler.quality_texts import own_texts, paragraphs, pieces_of
from ingot.compiler.quantization.store import QuantizedWeights
from ingot.compiler.reference import ReadParameter
from ingot.compiler.rounding import Rounded, Roundings, roundings_of
from ingot.compiler.tokenizer import encode
from ingot.errors import QualityError


def add_golden(
    writer: ArtifactWriter,
    model: OpenModel,
    front: Front,
    parts: Sequence[Part],
    weights: QuantizedWeights,
    on_read: OnRead,
) -> None:
    """Runs the float32 reference, in any thread, and writes what it says."""
    own = weights.beside(model.checkpoint.beside().read, on_read)
    resolved, name = model.resolved, stored_format(model, front)
    text, whole = (
        encode(model.tokenizer, TEXT, "English text", add_special_tokens=special)
        for special in (False, True)
    )
    prompts = golden_prompts(
        text or [0],
        added_before(text, whole),
        page_size=resolved.limits.page_size,
        max_model_len=resolved.limits.max_model_len,
        windows=model.config.windows,
    )
    named = model_of(model_info(model, front))
    if LOGITS in front.main.program.names:
        golden = golden_outputs(
            front.reference,
            own.stored,
            prompts,
            named,
            {name: ways_to_round(parts, own.stored)},
        )
        writer.write(GOLDEN, encode_golden(golden))
    for each in front.programs:
        if LOGITS in each.program.names:
            continue
        program = each.program
        ways = {name: ways_to_round(parts, own.stored, program)}
        rows = golden_rows(program.name, front.graph(each), own.stored, prompts, named, ways)
        writer.write(rows_file(program.name), encode_rows(rows))


def error_allowed(writer: ArtifactWriter, front: Front) -> float:
    """Error that the written goldens allow: the mean one of log-probabilities, or the relative one
    of rows."""
    program = front.main.program
    if LOGITS not in program.names:
        name = rows_file(program.name)
        rows = decode_rows(writer.file(name).read_bytes(), name)
        return next(iter(rows.tolerances.values())).allowed
    golden = decode_golden(writer.file(GOLDEN).read_bytes(), GOLDEN)
    (tolerance,) = golden.tolerances.values()
    return tolerance.mean


def ways_to_round(
    parts: Sequence[Part], read: ReadParameter, program: Program | None = None
) -> list[Rounded]:
    """Ways in which targets round in a program, by default the main one, each once."""
    found: list[Roundings] = []
    for part in parts:
        roundings = roundings_of(part.plans[program.name] if program else part.plan)
        if roundings not in found:
            found.append(roundings)
    return [Rounded(roundings, read) for roundings in found]


def measured_vectors(
    model: OpenModel,
    front: Front,
    parts: Sequence[Part],
    weights: QuantizedWeights,
    clock: Clock,
) -> VectorQuality | None:
    """Measures what number formats cost the vectors of texts; None of a model that gives none.

    Raises QualityError where that is ruin.
    """
    if model.pooler is None or model.pooler.labels:
        return None
    texts = paragraphs(model.tokenizer, model.resolved.limits.max_model_len)
    texts = [text for text in texts if text.tokens]
    ways = ways_to_round(parts, weights.stored)
    setting = Setting(front.reference, by_rows(model.checkpoint), ways, texts)
    sizes = {name: parameter.numel() for name, parameter in model.module.named_parameters()}
    told = f"vectors of {len(texts)} texts, about {seconds_of(setting, sizes):.0f} s"
    with weights.telling(clock.stage_over("quality", told, sizes)):
        found = measure_vectors(setting)
    if found.cosine < LEAST_COSINE:
        raise QualityError(
            f"the quality gate refuses this format: a text's vector has a cosine of "
            f"{found.cosine:.4g} with the checkpoint's own, at least {LEAST_COSINE} is needed",
            hint="Take a finer format, such as --quantize int8 --group-size 32 or --dtype float32; "
            "--no-quality compiles it nevertheless.",
        )
    return found


def measured_quality(
    model: OpenModel,
    front: Front,
    parts: Sequence[Part],
    weights: QuantizedWeights,
    conversation: Sequence[int],
    clock: Clock,
) -> Quality | None:
    """Measures the cost of the number formats on text; None where the model takes no text.

    Raises QualityError where it is more than is allowed.
    """
    options, longest = model.options, model.resolved.limits.max_model_len
    texts = model.quality_text or own_texts(model.tokenizer, conversation)
    pieces = pieces_of(texts, options.quality_positions, longest)
    if not pieces:
        return None
    setting = Setting(
        front.reference, by_rows(model.checkpoint), ways_to_round(parts, weights.stored), pieces
    )
    sizes = {name: parameter.numel() for name, parameter in model.module.named_parameters()}
    seconds = seconds_of(setting, sizes)
    told = f"{setting.positions} positions of text, about {seconds:.0f} s"
    with weights.telling(clock.stage_over("quality", told, sizes)):
        quality = measure(setting)
    check_quality(quality, options.max_kl, model.config.vocab_size, setting)
    return quality
