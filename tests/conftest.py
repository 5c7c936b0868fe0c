"""Fixtures that all tests share: the broker, names of their own, captured logs; and a word on what they ran on."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from brokers.find import Broker, BrokerChoiceError, find_broker
from hypothesis import settings

settings.register_profile("default", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")

BROKER = pytest.StashKey[Broker]()
NEEDS_APACHE = "needs the real Apache Kafka"
NEEDS_OPENCLAW = "needs the real OpenClaw"


def pytest_configure(config: pytest.Config) -> None:
    """Register the marker of tests that only the real broker can pass."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in jobs in the background: our commands would inherit it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    config.addinivalue_line("markers", "apache: needs the real Apache Kafka; skipped on the embedded broker")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the broker before the first test if any needs it: resolving Kafka takes longer than a test may."""
    if session.config.option.collectonly:
        return
    if any("broker" in getattr(item, "fixturenames", ()) for item in session.items):
        try:
            session.config.stash[BROKER] = find_broker()
        except BrokerChoiceError as error:
            raise pytest.UsageError(str(error)) from error


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the broker, however the session ended."""
    if BROKER in config.stash:
        config.stash[BROKER].stop()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what the embedded broker cannot do."""
    if item.get_closest_marker("apache") and not item.config.stash[BROKER].is_apache:
        pytest.skip(NEEDS_APACHE)


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say which broker the tests ran on, and what was skipped for want of what is real."""
    terminalreporter.section("broker")
    ran = f"broker tests ran on {config.stash[BROKER].description}" if BROKER in config.stash else ""
    terminalreporter.write_line(ran or "no test needed a broker")
    _tell_skipped(terminalreporter, NEEDS_APACHE, "they need the real Apache Kafka")
    _tell_skipped(terminalreporter, NEEDS_OPENCLAW, "they need the real OpenClaw (STREAMGUARD_TEST_OPENCLAW=1)")


def _tell_skipped(terminalreporter: Any, reason: str, why: str) -> None:
    """Count and name the tests that were skipped for a reason."""
    reports = terminalreporter.stats.get("skipped", [])
    skipped = [report.nodeid for report in reports if reason in str(report.longrepr)]
    if skipped:
        terminalreporter.write_line(f"{len(skipped)} skipped because {why}:")
        for name in skipped:
            terminalreporter.write_line(f"  {name}")


@pytest.fixture(scope="session")
def broker(request: pytest.FixtureRequest) -> Broker:
    """The broker that this session runs on."""
    return request.config.stash[BROKER]


@pytest.fixture
def topic_prefix() -> str:
    """A prefix for the topics of one test."""
    return f"t{uuid.uuid4().hex[:10]}"


@pytest.fixture
def log_lines() -> Iterator[list[dict[str, Any]]]:
    """What is logged while the test runs."""
    with structlog.testing.capture_logs() as lines:
        yield lines  # type: ignore[misc]


@pytest.fixture(scope="session")
def repository() -> Path:
    """The folder of the checkout."""
    return Path(__file__).parent.parent


@pytest.fixture(scope="session")
def shared(repository: Path) -> Callable[[str], Path]:
    """Find a folder of material that is not part of the repository: by variable, else beside the checkout."""

    def find(name: str) -> Path:
        variable = f"STREAMGUARD_TEST_{name.upper()}"
        folder = Path(os.environ.get(variable) or repository.parent / "shared" / name)
        if not folder.is_dir():
            pytest.skip(f"no folder {name}: set {variable}")
        return folder

    return find
