"""Signatures of verdicts: who can make them, who accepts them, and that secrets stay secret."""

from __future__ import annotations

import hashlib
import hmac
import re
from pathlib import Path

import pytest
from rich.pretty import pretty_repr

from streamguard.errors import BadSignatureError, SettingsFileError, SigningKeyError, UnsignedVerdictError
from streamguard.settings import KafkaSettings, Settings, SigningSettings
from streamguard.settings_file import load_service
from streamguard.signing import Signer, SigningKey, Verifier, signing_keys

OLD = SigningKey("2025-12", b"the old secret, long enough")
NEW = SigningKey("2026-01", b"the new secret, long enough")
VALUE = b'{"verdict_id":"1","action":"block"}'


def test_what_is_signed_is_accepted() -> None:
    """A verifier with the signer's key accepts the value as it was signed, beside headers of others."""
    headers = [("trace", b"1"), *Signer(NEW).headers(VALUE)]

    assert [True, False] == [accepts(Verifier([key]), headers) for key in (NEW, OLD)]


def accepts(verifier: Verifier, headers: list[tuple[str, bytes]]) -> bool:
    """Tell whether a verifier takes the value with these headers."""
    try:
        verifier.verify(VALUE, headers)
    except BadSignatureError:
        return False
    return True


def test_a_signature_is_hmac_sha_256_in_hexadecimal() -> None:
    """The headers are those that any other implementation of HMAC makes; signing again gives the same."""
    signer = Signer(NEW)
    signer.headers(b"another")
    expected = hmac.new(NEW.secret, VALUE, hashlib.sha256).hexdigest().encode()

    assert [("signature", expected), ("signature-key", b"2026-01")] == signer.headers(VALUE)


@pytest.mark.parametrize("index", range(len(VALUE)))
def test_a_flipped_bit_is_found(index: int) -> None:
    """A value that differs from the signed one at any place is refused."""
    changed = bytes([*VALUE[:index], VALUE[index] ^ 1, *VALUE[index + 1 :]])

    with pytest.raises(BadSignatureError, match="does not fit"):
        Verifier([NEW]).verify(changed, Signer(NEW).headers(VALUE))


@pytest.mark.parametrize(
    "signature", [b"00" * 32, b"\xff", Signer(NEW).headers(VALUE)[0][1][:-1], Signer(NEW).headers(b"")[0][1]]
)
def test_a_wrong_signature_is_refused(signature: bytes) -> None:
    """A signature that is made up, cut or of another value is refused."""
    with pytest.raises(BadSignatureError, match="does not fit"):
        Verifier([NEW]).verify(VALUE, [("signature", signature), ("signature-key", b"2026-01")])


def test_another_secret_under_a_known_id_is_refused() -> None:
    """To know a key's id is not enough to sign."""
    with pytest.raises(BadSignatureError, match="another secret for key '2026-01'"):
        Verifier([NEW]).verify(VALUE, Signer(SigningKey(NEW.id, OLD.secret)).headers(VALUE))


@pytest.mark.parametrize("named", [[("signature-key", b"\xff\n")], [("signature-key", b"")], []])
def test_an_unknown_key_is_refused(named: list[tuple[str, bytes]]) -> None:
    """A key that the verifier does not have is refused, whatever its name; known ones are listed."""
    with pytest.raises(BadSignatureError, match=r"known: 2026-01, 2025-12$"):
        Verifier([NEW, OLD]).verify(VALUE, [*Signer(NEW).headers(VALUE)[:1], *named])


@pytest.mark.parametrize("headers", [[], [("signature-key", b"2026-01")], [("signature", b"")]])
def test_an_unsigned_verdict_is_told_from_a_forged_one(headers: list[tuple[str, bytes]]) -> None:
    """Without a signature the verdict is unsigned, key id or not."""
    with pytest.raises(UnsignedVerdictError, match="no 'signature' header"):
        Verifier([NEW]).verify(VALUE, headers)


def test_a_rotation_refuses_nothing_until_the_old_key_is_dropped() -> None:
    """With both keys a verifier accepts what either signed; with the new one alone only what that signed."""
    both, new = Verifier([NEW, OLD]), Verifier([NEW])
    for key in (OLD, NEW):
        both.verify(VALUE, Signer(key).headers(VALUE))
    new.verify(VALUE, Signer(NEW).headers(VALUE))

    with pytest.raises(BadSignatureError, match=r"signed with key '2025-12'; known: 2026-01$"):
        new.verify(VALUE, Signer(OLD).headers(VALUE))


@pytest.mark.parametrize("keys", [[], [NEW, SigningKey(NEW.id, OLD.secret)]])
def test_a_verifier_needs_keys_that_it_can_tell_apart(keys: list[SigningKey]) -> None:
    """No key, or two of one id, is a configuration error."""
    with pytest.raises(SigningKeyError, match="at least one signing key, and each with an id of its own"):
        Verifier(keys)


@pytest.mark.parametrize("secret", [b"", b"fifteen bytes.."])
def test_a_short_secret_is_refused(secret: bytes) -> None:
    """Below 16 bytes a secret is refused with its length, and is not shown."""
    with pytest.raises(SigningKeyError, match=f"signing key k: its secret has {len(secret)} bytes") as caught:
        SigningKey("k", secret)

    assert "fifteen" not in str(caught.value)


@pytest.mark.parametrize("key_id", ["", "a b", "a\n", "ä", "k" * 65])
def test_a_key_id_is_plain_and_short(key_id: str) -> None:
    """An id that is no plain name is refused."""
    with pytest.raises(SigningKeyError, match="allowed: 1 to 64 of"):
        SigningKey(key_id, NEW.secret)


def test_without_keys_signing_is_off() -> None:
    """The default settings have no key."""
    assert () == signing_keys(SigningSettings())


def test_keys_come_from_settings_and_files(tmp_path: Path) -> None:
    """The current key is first; a key file's line end does not count, and its blanks do."""
    file = tmp_path / "key"
    file.write_bytes(b" the old secret, long enough\r\n")
    settings = SigningSettings(
        key_id=NEW.id, key=NEW.secret.decode(), previous_key_id=OLD.id, previous_key_file=str(file)
    )

    assert (NEW, SigningKey(OLD.id, b" the old secret, long enough")) == signing_keys(settings)


def test_a_key_file_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    """A missing file, one that is no text and an empty one are refused by name, without a word of their content."""
    (tmp_path / "binary").write_bytes(b"\xff" * 32)
    (tmp_path / "empty").write_bytes(b"\n")
    faults = {
        "missing": "signing.key_file: .*missing cannot be read: No such file",
        "binary": "signing.key_file: .*binary is no UTF-8 text",
        "empty": "signing key k: its secret has 0 bytes",
    }
    for name, fault in faults.items():
        with pytest.raises(SigningKeyError, match=fault) as caught:
            signing_keys(SigningSettings(key_id="k", key_file=str(tmp_path / name)))

        assert "0xff" not in str(caught.value)


HALVES = [
    ({"key_id": "a"}, "signing.key_id is given without signing.key or signing.key_file"),
    ({"key": "s" * 16}, "signing.key or signing.key_file is given without signing.key_id"),
    ({"key_file": "f"}, "signing.key or signing.key_file is given without signing.key_id"),
    ({"previous_key_id": "a", "previous_key": "s" * 16}, "given without signing.key_id: nothing would be signed"),
]


@pytest.mark.parametrize(("given", "fault"), HALVES)
def test_half_a_key_is_refused_when_settings_are_read(given: dict[str, str], fault: str) -> None:
    """An id without a key, a key without an id, and a previous key alone would leave verdicts unsigned."""
    with pytest.raises(SettingsFileError, match=re.escape(fault)):
        load_service(None, {}, {f"signing.{name}": value for name, value in given.items()})


@pytest.mark.parametrize("given", [given for given, _ in HALVES])
def test_half_a_key_never_means_that_signing_is_off(given: dict[str, str]) -> None:
    """Settings made in code are held to the same."""
    with pytest.raises(SigningKeyError, match=r"needed together|nothing would be signed"):
        signing_keys(SigningSettings(**given))


@pytest.mark.parametrize(
    ("variables", "fault"),
    [
        ({"KEY": "s" * 16, "KEY_FILE": "f"}, "signing.key and signing.key_file are both given"),
        (
            {"KEY": "s" * 16, "PREVIOUS_KEY": "t" * 16, "PREVIOUS_KEY_ID": "a"},
            "both a: each key needs an id of its own",
        ),
    ],
)
def test_ambiguous_keys_are_refused(variables: dict[str, str], fault: str) -> None:
    """One key in two places, or two keys of one id, leaves open which one is meant."""
    environ = {f"STREAMGUARD_SIGNING_{name}": value for name, value in variables.items()}

    with pytest.raises(SettingsFileError, match=re.escape(fault)):
        load_service(None, {"STREAMGUARD_SIGNING_KEY_ID": "a", **environ}, {})


def test_secrets_are_never_shown() -> None:
    """Neither keys nor settings show a secret: not by repr or str, and not in rich's tracebacks."""
    settings = Settings(
        kafka=KafkaSettings(sasl_password="swordfish"),  # noqa: S106
        signing=SigningSettings(key_id="a", key="swordfish" * 2, previous_key_id="b", previous_key="swordfish" * 2),
    )
    shown = [
        show(thing)
        for show in (repr, str, pretty_repr)
        for thing in (settings, settings.kafka, settings.signing, signing_keys(settings.signing))
    ]

    assert "swordfish" not in "".join(shown)
    assert all("***" in text for text in (repr(settings.signing), pretty_repr(settings.signing)))
