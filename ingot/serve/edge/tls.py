"""The files of TLS, tried before anything listens."""

from __future__ import annotations

import ssl
from pathlib import Path

from ingot.errors import UsageError


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
