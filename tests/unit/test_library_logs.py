"""Logs of libraries: heard, but not again and again."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from streamguard.logs import SELDOM_MESSAGES, configure_logs


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    """Put the logs back as they were."""
    root, kafka = logging.getLogger(), logging.getLogger("aiokafka")
    handlers, level, of_kafka = root.handlers, root.level, kafka.level
    yield
    root.handlers, root.level, kafka.level = handlers, level, of_kafka


def test_the_kafka_client_repeats_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """What it says again within seconds is left out; others' lines, and other messages, are not."""
    configure_logs("info", "json")
    for number in range(SELDOM_MESSAGES):
        logging.getLogger("aiokafka").error("Unable connect to node %d", number)
        logging.getLogger("streamguard.x").error("line %d", number)
    logging.getLogger("aiokafka").error("Unable to do something else")
    lines = capsys.readouterr().err.splitlines()

    assert 1 == sum("Unable connect" in line for line in lines)
    assert 1 == sum("something else" in line for line in lines)
    assert SELDOM_MESSAGES == sum("streamguard.x" in line for line in lines)


def test_the_kafka_client_may_be_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    """A command whose own error tells what went wrong hears nothing of the client."""
    configure_logs("warning", "json", libraries=False)
    logging.getLogger("aiokafka").error("Unable connect to node %d", 1)
    logging.getLogger("streamguard.x").warning("ours")

    assert ["ours"] == [line.split('"event": "')[1].split('"')[0] for line in capsys.readouterr().err.splitlines()]
