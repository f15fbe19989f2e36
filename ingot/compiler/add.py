"""Adds targets to an artifact, from the model directory that it was compiled from.

What is added is what a compile for all targets would write. All other files stay as they are.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from contextlib import suppress
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from ingot.artifact.codec import encode_plan
from ingot.artifact.golden import GOLDEN, Golden, decode_golden, encode_golden
from ingot.artifact.manifest import Manifest
from ingot.artifact.plan import Limits
from ingot.artifact.reader import Artifact
from ingot.artifact.target import Target
from ingot.artifact.writer import ArtifactWriter, refuse_missing
from ingot.compiler.choose_targets import resolve_targets
from ingot.compiler.compile import report_of, target_plans, write_parts
from ingot.compiler.describe import describe
from ingot.compiler.front import Front
from ingot.compiler.golden import loosest, outputs_agree
from ingot.compiler.kept_front import front_of
from ingot.compiler.model import OpenModel, read_model
from ingot.compiler.options import Check, Clock, CompileOptions, Progress, Report, silent
from ingot.compiler.preflight import check_disk, check_tools, prepare
from ingot.errors import ArtifactError, UsageError
from ingot.models.model_dir import ModelDir
from ingot.targets.compilers import Builder
from ingot.targets.target import target_named
from ingot.version import __version__

_ANEW = "Compile it again, for all targets at once: --target LIST --force."
SAME_NOISE = 1.1  # what hosts may measure differently
_OPTIONS = {
    "max_model_len": "--max-model-len",
    "max_num_seqs": "--max-num-seqs",
    "max_num_batched_tokens": "--max-num-batched-tokens",
    "page_size": "--page-size",
}


def add_targets(
    model_dir: ModelDir,
    out: Path,
    options: CompileOptions | None = None,
    *,
    progress: Progress = silent,
    check: Check = lambda folder: None,
) -> Report:
    """Adds the targets of the options to the artifact at `out`.

    The artifact stays whole until one with the targets takes its place. Raises as `compile_model`,
    and UsageError for such a target that is there, another model directory, or other options.
    """
    options = options or CompileOptions()
    refuse_missing(out)
    clock = Clock(progress)
    waiting = partial(progress, "wait", f"another process writes {out}", None)
    with ArtifactWriter(out, on_wait=waiting) as writer:
        old = Artifact.open(out, flags=frozenset())
        new = new_targets(old.manifest, options, out)
        names = [target.name for target in (*targets_of(old.manifest), *new)]
        programs = tuple(old.manifest.targets[0].programs)
        same = replace(options, targets=tuple(names), programs=programs)
        model = read_model(model_dir, same, clock)
        with model.checkpoint:
            check_choices(old.manifest, model)
            check_tools(new)
            manifest, front = _write(writer, old, model, new, clock)
        with clock.stage("check", "golden prompts on this host"):
            golden_error = check(writer.directory)
        writer.publish()
    return report_of(out, manifest, model, front, clock, golden_error)


def targets_of(manifest: Manifest) -> list[Target]:
    """The targets that an artifact has, in order."""
    return [target_named(entry.name) for entry in manifest.targets]


def new_targets(manifest: Manifest, options: CompileOptions, out: Path) -> list[Target]:
    """The targets to add. Raises UsageError for one that is there."""
    there = targets_of(manifest)
    wanted = list(resolve_targets(options))
    for target in wanted:
        if target in there:
            raise UsageError(
                f"{out} has the target {target.name} already",
                hint=f"Name another one. To build it anew: {_ANEW}",
            )
    return wanted


def check_choices(manifest: Manifest, model: OpenModel) -> None:
    """Raises UsageError where options or ingot are others than at the first compile."""
    resolved, numerics = model.resolved, manifest.numerics
    if manifest.ingot_version != __version__:
        versions = f"the artifact is of ingot {manifest.ingot_version}, and this is {__version__}"
        raise UsageError(versions, hint=_ANEW)
    found = {"dtype": numerics.dtype} | asdict(manifest.limits)
    here = {"dtype": resolved.dtype} | asdict(resolved.limits)
    for name, value in found.items():
        if here[name] != value:
            raise UsageError(
                f"{name} is {value} in the artifact and would be {here[name]} here",
                hint=f"Give the options of the first compile: {spelled(manifest)}",
            )


def spelled(manifest: Manifest) -> str:
    """The options that an artifact was compiled with, as far as it says them."""
    limits = ((_OPTIONS.get(each.name), each.name) for each in fields(Limits))
    values = (f"{option} {getattr(manifest.limits, name)}" for option, name in limits if option)
    return " ".join((f"--dtype {manifest.numerics.dtype}", *values))


def check_front(old: Artifact, model: OpenModel, front: Front) -> None:
    """Raises UsageError where the model directory gives other plans than it did."""
    manifest = old.manifest
    here = describe(model, front, (), manifest.numerics.tolerance, manifest.numerics.quality)
    name = manifest.model.name  # the folder may have been renamed
    same = {
        "the model": (manifest.model, replace(here.model, name=name)),
        "the quantization": (manifest.numerics, here.numerics),
        "what passes matched": (manifest.ledger, here.ledger),
    }
    for what, (found, given) in same.items():
        if found != given:
            raise another(f"{what} is another: {found} in the artifact, {given} here")
    for entry, target in zip(manifest.targets, targets_of(manifest), strict=True):
        for program, (plan, _) in target_plans(target, front, model.options).items():
            file = manifest.files[entry.programs[program].plan]
            if hashlib.sha256(encode_plan(plan)).hexdigest() != file.sha256:
                raise another(f"{target.name} would have another plan than it has")


def another(found: str) -> UsageError:
    """The error for a directory or options that are not those of the first compile."""
    return UsageError(
        found,
        hint="Give the model directory and the options of the first compile; where the new target "
        f"cannot store weights like the old ones, none do. {_ANEW}",
    )


def _write(
    writer: ArtifactWriter, old: Artifact, model: OpenModel, new: list[Target], clock: Clock
) -> tuple[Manifest, Front]:
    """Writes what is new and takes over the rest; returns the sealed manifest, and the front."""
    only_new = replace(model, resolved=replace(model.resolved, targets=tuple(new)))
    # The compiler writes into the writer's folder, so it has to end first.
    with Builder() as compiler:
        prepare(new, compiler)
        front = front_of(model, clock)
        check_front(old, model, front)
        check_disk(front.plan, new, writer.directory)
        parts, _ = write_parts(writer, only_new, front, compiler, clock)
    with clock.stage("write", str(writer.path)):
        allowed = _keep_golden(writer, old)
        written = {name for name in old.manifest.files if (writer.directory / name).exists()}
        for name in sorted(set(old.manifest.files) - written):
            _take_over(old.path / name, writer.file(name))
        targets = (*old.manifest.targets, *(part.entry for part in parts))
        numerics = replace(old.manifest.numerics, tolerance=allowed)
        manifest = replace(old.manifest, targets=targets, numerics=numerics, files={}, digest="")
        sealed = writer.seal(manifest)
        _check_kept(old.manifest, sealed, written)
    return sealed, front


def _keep_golden(writer: ArtifactWriter, old: Artifact) -> float:
    """Leaves the golden outputs as they are, but allows what the new targets need. Returns the
    mean error that is allowed. Raises UsageError unless the model gives the same outputs."""
    if GOLDEN not in old.manifest.files:
        raise ArtifactError(f"the artifact has no {GOLDEN}", hint=_ANEW)
    data = old.read(GOLDEN)
    kept, made = (decode_golden(each, GOLDEN) for each in (data, writer.file(GOLDEN).read_bytes()))
    if not outputs_agree(kept, made):
        raise another("the model gives other golden outputs than those of the artifact")
    ((name, allowed),) = kept.tolerances.items()
    needed = made.tolerances[name]
    if needed.mean > SAME_NOISE * allowed.mean:
        allowed = loosest([allowed, needed])
        data = encode_golden(Golden(kept.format, kept.model, {name: allowed}, kept.prompts))
    writer.write(GOLDEN, data)
    return allowed.mean


def _take_over(source: Path, path: Path) -> None:
    """The same file under another name, or where the system does not allow that, a copy."""
    if os.stat(source).st_uid == os.geteuid():  # of others', the mode could not be set
        with suppress(OSError):
            os.link(source, path)
            return
    shutil.copyfile(source, path)


def _check_kept(old: Manifest, sealed: Manifest, written: set[str]) -> None:
    """Every file of the old artifact is in the new one, byte by byte.

    Args:
        written: those that were written again.
    """
    for name, entry in old.files.items():
        if sealed.files[name].sha256 == entry.sha256 or name == GOLDEN:  # it was compared
            continue
        if name in written:
            raise another(f"the model directory gives another {name}")
        raise ArtifactError(
            f"{name}: its hash is not the manifest's", hint="The artifact is damaged. " + _ANEW
        )
