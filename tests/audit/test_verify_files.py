"""`audit verify` on files: what `replay` printed is verified, and any change of it is found."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest
from commands import streamguard
from events import call, loop
from hypothesis import given
from hypothesis import strategies as st

from streamguard.audit.files import verify_files
from streamguard.audit.verify import Scope
from streamguard.policy import PolicySet

POLICY = "[policy]\nenabled = true\nwarningThreshold = 3\n"
EVENTS = [*loop("run-1", 24), b"no event", call("run-2", 0, gate=True)]


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with events, a policy, and what `replay` says about them."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "events.jsonl").write_bytes(b"\n".join(EVENTS) + b"\n")
    (folder / "policy.toml").write_text(POLICY)
    done = streamguard("replay", folder / "events.jsonl", "--policy", folder / "policy.toml")
    (folder / "verdicts.jsonl").write_text(done.stdout)
    return folder


def verify(folder: Path, verdicts: Path, *arguments: str) -> tuple[int, str]:
    """Verify files with the command; return its exit code and what it printed last."""
    done = streamguard(
        "audit", "verify", "--events", folder / "events.jsonl", "--verdicts", verdicts,
        "--policy", folder / "policy.toml", *arguments,
    )  # fmt: skip
    return done.returncode, (done.stdout.splitlines() or [done.stderr])[-1]


def test_what_replay_said_is_verified(recorded: Path) -> None:
    """The summary says how many verdicts, and that nothing is missing, extra or different; also packed."""
    packed = recorded / "verdicts.jsonl.gz"
    packed.write_bytes(gzip.compress((recorded / "verdicts.jsonl").read_bytes()))
    count = len((recorded / "verdicts.jsonl").read_text().splitlines())

    expected = (0, f"{count} verdicts verified, 0 missing, 0 extra, 0 different")
    assert [expected] * 2 == [verify(recorded, recorded / "verdicts.jsonl"), verify(recorded, packed)]


def test_offsets_of_files_are_their_lines(recorded: Path) -> None:
    """Of files the offsets count the lines, from 0: the newest event is one, and there is one verdict about it."""
    newest = len(EVENTS) - 1

    assert verify(recorded, recorded / "verdicts.jsonl", "--offsets", f"{newest}:{newest + 1}") == (
        0, "1 verdicts verified, 0 missing, 0 extra, 0 different",
    )  # fmt: skip


@given(data=st.data())
def test_any_flipped_bit_is_found(
    recorded: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever bit of whatever verdict is flipped: the tally is not clean."""
    value = bytearray((recorded / "verdicts.jsonl").read_bytes())
    at = data.draw(st.integers(0, len(value) - 1).filter(lambda at: value[at] != 0x0A))
    value[at] ^= 1 << data.draw(st.integers(0, 7))
    forged = tmp_path_factory.mktemp("forged") / "verdicts.jsonl"
    forged.write_bytes(value)
    policies = PolicySet({"enabled": True, "warningThreshold": 3})
    tally = verify_files([str(recorded / "events.jsonl")], [str(forged)], policies, Scope())

    assert not tally.clean


def test_half_of_the_files_is_a_wrong_usage(recorded: Path) -> None:
    """Files are verified with all three of them; what is missing is said."""
    done = streamguard("audit", "verify", "--events", recorded / "events.jsonl")

    assert 2 == done.returncode
    assert "--events, --verdicts and --policy are needed together" in done.stderr
