"""Settings of a server's edge: where it listens, whom it lets in, and how much they may ask."""

from __future__ import annotations

import ipaddress
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from ingot.errors import UsageError
from ingot.serve.edge.pages import Pages


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientLimits:
    """The most that clients may ask of the server. Times are in seconds; 0 bounds nothing.

    max_queue            requests of a model that wait for a seat
    max_queue_tokens     their tokens, prompt and answer; None: 4 times what the KV cache holds
    max_key_requests     requests of a key, waiting and running
    max_key_tokens       their tokens
    queue_timeout        how long a request waits for its model to load, and then for a seat
    request_timeout      how long a request takes in all
    connection_keep_alive  how long a connection stays open without a request
    write_timeout        how long a client may leave a full send buffer unread
    """

    body_bytes: int = 8_000_000
    body_chunks: int = 65_536
    header_bytes: int = 64 * 1024
    header_lines: int = 100
    pipelined: int = 32
    send_buffer_bytes: int = 64 * 1024
    header_timeout: float = 10.0
    body_timeout: float = 30.0
    write_timeout: float = 30.0
    connection_keep_alive: float = 5.0
    max_queue: int = 512
    max_queue_tokens: int | None = None
    max_key_requests: int = 0
    max_key_tokens: int = 0
    queue_timeout: float = 60.0
    request_timeout: float = 600.0
    shutdown_timeout: float = 30.0

    @property
    def load_seconds(self) -> float | None:
        """Seconds that a request waits for its model to load; None: no limit."""
        bounds = [each for each in (self.queue_timeout, self.request_timeout) if each]
        return min(bounds, default=None)


@dataclass(frozen=True, slots=True, kw_only=True)
class EdgeSettings:
    """Settings of a server towards its clients.

    `uds` is the path of a Unix socket, which replaces host and port. Without a file of keys
    everyone who reaches the server may use it, and nobody may load or unload models, unless
    `open_admin` is set or the socket is a file that only its owner can open. With one, `/live` and
    `/health` ask for no key, and with `open_health` the latter names the models all the same.
    Pages of `origins` may call from browsers besides the server's own: see `Pages`.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: Path | None = None
    key_file: Path | None = None
    allow_no_key: bool = False
    open_admin: bool = False
    open_health: bool = False
    origins: Sequence[str] = ()
    tls_cert: Path | None = None
    tls_key: Path | None = None
    limits: ClientLimits = field(default_factory=ClientLimits)
    log_level: str = "info"
    log_format: str = "text"
    log_prompts: bool = False
    max_log_len: int = 2_000
    metrics_compat: str = ""
    traces: bool = False

    def check(self) -> None:
        """Raises UsageError for what contradicts itself, or is not safe and not asked for."""
        Pages(self.origins)
        if (self.tls_cert is None) != (self.tls_key is None):
            raise UsageError(
                "TLS needs a certificate and its key",
                hint="Give both --tls-cert and --tls-key.",
            )
        if self.tls_cert is not None and self.tls_key is not None:
            check_tls(self.tls_cert, self.tls_key)
        if self.key_file is None and not self.is_local and not self.allow_no_key:
            raise UsageError(
                f"{self.host} can be reached from other machines, and no key is asked for",
                hint="Make a key with `ingot key NAME --file keys.txt` and add --api-key-file "
                "keys.txt, or say --allow-no-key where something else guards the port.",
            )

    @property
    def of_port(self) -> EdgeSettings:
        """Settings of a port beside a Unix socket, whose permissions do not guard the port."""
        return replace(self, uds=None)

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        if self.uds is not None or self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def admin_without_key(self) -> bool:
        """True if those without a key may load and unload models, where no keys are asked for.

        Loading runs the native code of an artifact, and every user of a machine reaches its ports.
        """
        return self.key_file is None and (self.open_admin or self.uds is not None)


def check_tls(certificate: Path, key: Path) -> None:
    """Raises UsageError for files that no server can use."""
    for path in (certificate, key):
        try:
            path.read_bytes()
        except OSError as error:
            raise UsageError(f"{path} cannot be read: {error.strerror}") from error
    try:
        # Without an answer for a pass phrase, OpenSSL would ask on the terminal.
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key, lambda: "")
    except (ssl.SSLError, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise UsageError(
            f"{certificate} and {key} are no certificate with its key: {reason}",
            hint="Give a certificate chain and its private key in PEM, the key without a pass "
            "phrase.",
        ) from error
