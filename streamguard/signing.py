"""Signatures of verdicts: HMAC-SHA-256 in two record headers, and what consumers need to check them.

Keys are rotated in three steps, with no verdict refused on the way: the consumers get the new key as `signing.key` and
keep the old one as `signing.previous_key`; the workers get the new key; once the last verdict signed with the old one
is of no interest any more, the old key is dropped.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from streamguard.errors import BadSignatureError, SigningKeyError, UnsignedVerdictError

if TYPE_CHECKING:
    from streamguard.settings import SigningSettings

__all__ = ["KEY_HEADER", "SIGNATURE_HEADER", "Signer", "SigningKey", "Verifier", "signing_keys"]

SIGNATURE_HEADER: Final = "signature"
"""The record header with the HMAC-SHA-256 of the record's value, in lower-case hexadecimal."""

KEY_HEADER: Final = "signature-key"
"""The record header with the id of the key that signed."""

SECRET_BYTES: Final = 16
"""Shortest secret. 32 random bytes are as strong as the hash (RFC 2104, section 3)."""

_KEY_ID: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


@dataclass(frozen=True, slots=True)
class SigningKey:
    """A secret and the id by which records name it; the secret is never shown.

    Raises `SigningKeyError` for an id that is not 1 to 64 of `A-Za-z0-9._-`, and for a secret below 16 bytes.
    """

    id: str
    secret: bytes = field(repr=False)

    def __post_init__(self) -> None:
        if not _KEY_ID.fullmatch(self.id):
            raise SigningKeyError(f"signing key id {self.id[:80]!r}: allowed: 1 to 64 of A-Z a-z 0-9 . _ -")
        if len(self.secret) < SECRET_BYTES:
            raise SigningKeyError(
                f"signing key {self.id}: its secret has {len(self.secret)} bytes; allowed: at least {SECRET_BYTES}. "
                "`openssl rand -hex 32` makes one"
            )


class Signer:
    """Signs with one key, the current one."""

    def __init__(self, key: SigningKey) -> None:
        self._keyed = hmac.new(key.secret, digestmod="sha256")
        self._key_header = (KEY_HEADER, key.id.encode())

    def headers(self, value: bytes) -> list[tuple[str, bytes]]:
        """Return the headers that sign a verdict record's value, byte by byte as it is published.

        Topic, partition and offset are not signed beside it: the verdict names those of its event in `source`, so that
        a verdict copied elsewhere still speaks of that event only. The record's key is not signed either.
        """
        mac = self._keyed.copy()
        mac.update(value)
        return [(SIGNATURE_HEADER, mac.hexdigest().encode()), self._key_header]


class Verifier:
    """Accepts what any of its keys signed: the current one, and the previous or next one during a rotation.

    Raises `SigningKeyError` if there is no key, or if two have the same id.
    """

    def __init__(self, keys: Sequence[SigningKey]) -> None:
        self._keyed = {key.id.encode(): hmac.new(key.secret, digestmod="sha256") for key in keys}
        if not keys or len(self._keyed) < len(keys):
            raise SigningKeyError("a verifier needs at least one signing key, and each with an id of its own")

    def verify(self, value: bytes, headers: Sequence[tuple[str, bytes]]) -> None:
        """Check a verdict record's value against its headers; returns if it is genuine.

        That it is about the event one asked about is for the caller to check: by `source`, once it is decoded. Raises
        `UnsignedVerdictError` or `BadSignatureError`.
        """
        found = dict(headers)
        signature, key_id = found.get(SIGNATURE_HEADER), found.get(KEY_HEADER) or b""
        if not signature:
            raise UnsignedVerdictError(f"the record has no {SIGNATURE_HEADER!r} header; is signing on in every worker?")
        keyed = self._keyed.get(key_id)
        if keyed is None:
            raise BadSignatureError(f"the record is signed with key {_shown(key_id)}; known: {self._known()}")
        mac = keyed.copy()
        mac.update(value)
        if not hmac.compare_digest(mac.hexdigest().encode(), signature):
            raise BadSignatureError(
                f"the signature does not fit the record: it was changed, or signed by who has another secret for key "
                f"{_shown(key_id)}"
            )

    def _known(self) -> str:
        return ", ".join(key_id.decode() for key_id in self._keyed)


def signing_keys(settings: SigningSettings) -> tuple[SigningKey, ...]:
    """Return the keys of the settings, the one that signs first; none: signing is off.

    Raises `SigningKeyError` if a key file cannot be read, a secret is too short, or half a key is given.
    """
    current = _key(settings.key_id, settings.key, settings.key_file, "signing.key")
    previous = _key(settings.previous_key_id, settings.previous_key, settings.previous_key_file, "signing.previous_key")
    if previous is not None and current is None:
        raise SigningKeyError("signing.previous_key is given without signing.key: nothing would be signed")
    return tuple(key for key in (current, previous) if key is not None)


def _key(key_id: str | None, secret: str | None, file: str | None, name: str) -> SigningKey | None:
    """Return a key whose secret is given as it is or by a file; the line end of a file does not count."""
    if not key_id and not secret and not file:
        return None
    if not key_id or not (secret or file):
        raise SigningKeyError(f"{name}_id and {name} (or {name}_file) are needed together")
    if file:
        try:
            secret = Path(file).read_text(encoding="utf-8").rstrip("\r\n")
        except OSError as error:
            raise SigningKeyError(f"{name}_file: {file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError:
            # Without its cause: that would quote from the secret.
            raise SigningKeyError(f"{name}_file: {file} is no UTF-8 text; `openssl rand -hex 32` makes a key") from None
    return SigningKey(key_id, (secret or "").encode())


def _shown(key_id: bytes) -> str:
    """Show what a record claims, which may be anything."""
    return repr(key_id[:80])[1:]
