"""Models of the Hugging Face Hub by their names: found in the hub's own cache, or downloaded.

What lies whole in the cache is used without asking the hub; `pull` asks for what is new.
huggingface_hub is imported only where a name is given.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ingot.errors import (
    CheckpointError,
    GatedModelError,
    HubUnreachableError,
    IngotError,
    ModelNotFoundError,
    ResourceError,
    UsageError,
    describe,
)
from ingot.hub.snapshots import MAIN, cache_dir, cached
from ingot.models.single_files import single_in

# Behind a colon stands which GGUF file of a repository is meant.
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*(:[\w./-]+)?", re.ASCII)
_REVISION = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)*", re.ASCII)


def hub_name(model: str | Path) -> str:
    """The name on the hub, owner/name or owner/name:Q4_K_M, that `model` is; empty for anything
    else.

    What exists here is a path, and so is a `Path`, whatever it says.
    """
    is_name = isinstance(model, str) and _NAME.fullmatch(model) and not model.endswith(".ingot")
    return str(model) if is_name and not os.path.lexists(model) else ""


def model_path(model: str | Path, revision: str | None = None) -> Path:
    """Where a model lies: the path itself, or what a name on the hub has in its cache.

    That is a folder, or a file that is a model, also where a path is that of a folder with one.

    A model that is not there yet is downloaded.

    Args:
        model: a path, or a name on the hub such as "Qwen/Qwen3-0.6B" or "owner/name:Q8_0".
        revision: a branch, tag or commit of a model on the hub; None: its main branch.

    Raises:
        UsageError: a revision of a path.
        HubError: its type says why the hub does not hand the model out.
        ModelDirError: the model is none that ingot compiles.
        CompileError: PyTorch is not installed, so that nothing can be compiled.
        ResourceError: the disk has no room for it.
    """
    name = _named(model, revision)
    if not name:
        return single_in(Path(model)) or Path(model)
    folder = cached(name, revision)
    if folder is None:
        from ingot.compiler.torch_import import check_torch

        check_torch()  # who asks for the folder compiles it
        folder = pull(name, revision)
    return folder


@contextmanager
def model_outline(model: str | Path, revision: str | None = None) -> Iterator[Path]:
    """Like `model_path`, but of a model to download only as much as `explain` reads.

    The folder then has the weights' headers alone, and is removed at the end.
    """
    name = _named(model, revision)
    folder = cached(name, revision) if name else single_in(Path(model)) or Path(model)
    if folder:
        yield folder
        return
    from ingot.hub.download import outline

    with ExitStack() as stack:
        with asking_for(name, revision):  # and not what happens to the folder
            folder = stack.enter_context(outline(name, revision))
        yield folder


def pull(name: str, revision: str | None = None) -> Path:
    """Downloads what is new of a model; returns where it is. Raises what `model_path` does."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r:.80} is no name on the hub", hint="Names are OWNER/MODEL.")
    _check(revision)
    from ingot.hub.download import begin, check_family, finish

    with asking_for(name, revision):
        remote = begin(name, revision)
    with ExitStack() as stack:
        with asking_for(name, revision):
            model = stack.enter_context(remote.small_model())
        check_family(model)  # a family can be another package's; the hub has no part in it
    with asking_for(name, revision):
        return finish(remote, revision)


@contextmanager
def asking_for(name: str, revision: str | None) -> Iterator[None]:
    """Raises the typed error of whatever goes wrong with the hub inside."""
    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:
        raise HubUnreachableError(
            f"HF_HUB_OFFLINE is set, so that the hub cannot be asked for {name}",
            hint="Unset it; or download the model where there is a network, and copy the hub's "
            f"cache to {cache_dir()}.",
        )
    try:
        yield
    except (IngotError, ImportError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise ResourceError(
                f"{name}: no space is left on the disk of {cache_dir()}",
                hint="Free some space, or set HF_HOME to a folder on another disk. What has come "
                "is kept.",
            ) from error
        if isinstance(error, OSError) and error.errno:  # the disk's, not the hub's
            raise
        raise _typed(error, name, revision, constants.ENDPOINT) from error


def _typed(error: Exception, name: str, revision: str | None, endpoint: str) -> IngotError:
    from huggingface_hub import errors

    login = "set HF_TOKEN, or run `hf auth login`."
    if isinstance(error, errors.GatedRepoError):
        return GatedModelError(
            f"{name} is gated: its owners decide who may have it",
            hint=f"Ask for access at {endpoint}/{name}, then use a token of yours: {login}",
        )
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelNotFoundError(
            f"{name} has no revision {revision or MAIN}",
            hint=f"Give a branch, a tag or a whole commit: {endpoint}/{name}/tree/main lists them.",
        )
    if isinstance(error, (errors.RepositoryNotFoundError, errors.HFValidationError)):
        return ModelNotFoundError(
            f"there is no folder {name} here, and no model of that name on {endpoint}",
            hint=f"Check the name. A private model needs a token: {login}",
        )
    if isinstance(error, errors.SafetensorsParsingError):
        return CheckpointError(
            f"{name} has damaged weights: {error}", hint="Tell their owner, or take another model."
        )
    if not isinstance(error, errors.HfHubHTTPError):
        return HubUnreachableError(
            f"{name} would come from {endpoint}, which cannot be reached: {describe(error)}",
            hint="Check the network, and HF_ENDPOINT if it is set. What has come is kept: the same "
            f"command goes on from there. If a folder is meant, write ./{name}.",
        )
    status = error.response.status_code
    if status in (401, 403):
        return GatedModelError(
            f"{endpoint} does not let this account have {name} (status {status})",
            hint=f"Check the token: {login}",
        )
    return HubUnreachableError(
        f"{endpoint} answered with status {status}", hint="Try again later; what has come is kept."
    )


def _named(model: str | Path, revision: str | None) -> str:
    """The name on the hub, or nothing. Raises UsageError for a revision that can be none."""
    _check(revision)
    name = hub_name(model)
    if revision is not None and not name:
        raise UsageError(
            f"the revision {revision} is given, but {model} is a path",
            hint="A revision is one of a model on the hub, such as Qwen/Qwen3-0.6B.",
        )
    return name


def _check(revision: str | None) -> None:
    if revision is None:
        return
    if not isinstance(revision, str) or not _REVISION.fullmatch(revision):
        raise UsageError(
            f"revision is {revision!r:.80}", hint="Give a branch, a tag or a whole commit."
        )
