"""Tokens and rates by themselves."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from streamguard.errors import SettingsFileError
from streamguard.gateway.access import Buckets, Tokens, read_tokens
from streamguard.settings import GatewaySettings

ONE, TWO = "a" * 16, "b" * 40


def test_tokens_come_from_the_setting_or_a_file(tmp_path: Path) -> None:
    """Blanks separate tokens; in a file lines that begin with # do not count."""
    file = tmp_path / "tokens"
    file.write_text(f"# of the fleet\n{ONE}\n\n{TWO}\n")

    assert (ONE, TWO) == read_tokens(GatewaySettings(tokens=f" {ONE}  {TWO}"))
    assert (ONE, TWO) == read_tokens(GatewaySettings(tokens_file=str(file)))
    assert () == read_tokens(GatewaySettings())


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (None, "cannot be read: No such file"),
        (b"# none\n", "holds no token"),
        (b"swordfish\n", "at least 16 characters"),
        ("schwertfische-überall\n".encode(), "not ASCII"),
        (b"swordfish\xff swordfish", "is no UTF-8 text"),
    ],
)
def test_a_file_without_good_tokens_is_refused(tmp_path: Path, content: bytes | None, fault: str) -> None:
    """A file that is missing, empty, or has a weak token is a wrong configuration; no token is in the error."""
    file = tmp_path / "tokens"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(SettingsFileError, match=re.escape(fault)) as caught:
        read_tokens(GatewaySettings(tokens_file=str(file)))
    assert "fish" not in str(caught.value)


def test_a_token_is_known_by_its_number() -> None:
    """Each token has a number, by which its requests are counted."""
    tokens = Tokens((ONE, TWO))

    assert (0, 1, None, None) == tuple(tokens.number(f"Bearer {one}") for one in (ONE, TWO, ONE + TWO, ""))


def test_a_bucket_fills_with_time() -> None:
    """So many requests a second, and as many at once after a pause; who comes too early is told when to come."""
    now = 0.0
    buckets = Buckets(2.0, lambda: now)
    first = [buckets.take("a") for _ in range(3)]
    now = 0.5
    second = [buckets.take("a") for _ in range(2)]
    now = 100.0
    third = [buckets.take("a") for _ in range(3)]

    assert [[0, 0, 0.5], [0, 0.5], [0, 0, 0.5]] == [first, second, third]


def test_a_slow_rate_still_lets_one_in() -> None:
    """Below one request a second the first one is served at once."""
    buckets = Buckets(0.1, lambda: 0.0)

    assert [0, 10] == [buckets.take("a") for _ in range(2)]
