"""The socket of a server: bound before anything is loaded, or an error that says what is wrong."""

from __future__ import annotations

import errno
import os
import resource
import socket
import stat
from contextlib import suppress
from pathlib import Path

from ingot.errors import UsageError
from ingot.serve.edge.settings import EdgeSettings

_KERNEL_BUFFER = 256 * 1024  # bytes of an answer that the kernel keeps for a client that is slow


def bind(settings: EdgeSettings) -> socket.socket:
    """The socket that the settings ask for, bound and not listening yet.

    Raises UsageError for an address that is in use, is not this machine's, or is not allowed.
    """
    settings.check()
    if settings.uds is not None:
        return _unix(settings.uds)
    try:
        family, _, _, _, address = socket.getaddrinfo(
            settings.host, settings.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
    except (OSError, UnicodeError) as error:
        raise UsageError(f"there is no address {settings.host!r}") from error
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _KERNEL_BUFFER)
    with suppress(OSError):
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    try:
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise _unusable(settings, error) from error
    return listener


def address_of(listener: socket.socket, settings: EdgeSettings) -> str:
    """Address at which clients reach the server."""
    scheme = "https" if settings.tls_cert else "http"
    if settings.uds is not None:
        return f"unix:{settings.uds}"
    port = listener.getsockname()[1]
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    return f"{scheme}://{host}:{port}"


def allow_many_files() -> None:
    """Lets this process open as many files as it may: every connection is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _unix(path: Path) -> socket.socket:
    """A socket that only its owner can open. One that nobody listens on is replaced."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    mask = os.umask(0o177)
    try:
        if path.exists() and stat.S_ISSOCK(path.stat().st_mode) and not _answers(path):
            path.unlink()
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        reason = "it exists" if error.errno == errno.EADDRINUSE else error.strerror or str(error)
        raise UsageError(
            f"{path} cannot be made a socket: {reason}", hint="Give --uds another path."
        ) from error
    finally:
        os.umask(mask)
    return listener


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            return False
    return True


def _unusable(settings: EdgeSettings, error: OSError) -> UsageError:
    where = f"port {settings.port} of {settings.host}"
    if error.errno == errno.EADDRINUSE:
        return UsageError(
            f"{where} is in use", hint="Stop what uses it, or give another --port; 0: any free one."
        )
    if error.errno == errno.EACCES:
        return UsageError(f"{where} needs rights that this user does not have")
    if error.errno == errno.EADDRNOTAVAIL:
        return UsageError(f"{settings.host} is no address of this machine")
    return UsageError(f"{where} cannot be used: {error.strerror}")
