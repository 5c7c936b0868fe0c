"""What the README shows works as it stands there."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, running
from commands import streamguard

from streamguard.policy import PolicySet
from streamguard.stream.worker import Worker


@pytest.fixture
async def cluster(broker: Any, topic_prefix: str) -> AsyncIterator[Cluster]:
    """Give a test topics of its own."""
    async with Cluster(broker, topic_prefix) as cluster:
        yield cluster


def block(repository: Path, language: str, within: str = "") -> str:
    """Return the first code block of a language that holds a text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (repository / "README.md").read_text(), re.DOTALL)
    return str(next(code for code in blocks if within in code))


@pytest.mark.parametrize("way", ["with the client", "without the client"])
async def test_the_executor_of_the_readme_obeys(cluster: Cluster, repository: Path, way: str) -> None:
    """The README's executors ask before every call, run what is allowed and skip what is blocked."""
    topics = cluster.settings.topics
    name = "work" if way == "with the client" else "run"
    code = block(repository, "python", f"async def {name}(")
    code = code.replace("KafkaSettings(bootstrap=bootstrap)", "KafkaSettings(bootstrap=bootstrap), topics=TOPICS")
    code = code.replace('"agent.events"', f'"{topics.events}"').replace('"agent.verdicts"', f'"{topics.verdicts}"')
    namespace: dict[str, Any] = {"TOPICS": topics}
    exec(code, namespace)  # noqa: S102 - that is what is tested
    ran = []

    async def execute(tool: str, args: object) -> str:
        ran.append((tool, args))
        return "same"

    async with running(Worker(cluster.settings, PolicySet({"enabled": True}))):
        await namespace[name]([("read", {"path": "/a"})] * 23 + [("write", {})], execute, cluster.bootstrap)
        verdicts = await cluster.verdicts(24)

    assert ["allow"] * 10 + ["warn"] + ["allow"] * 9 + ["block"] * 3 + ["allow"] == [v.action for v in verdicts]
    assert 21 == len(ran)


def test_the_case_of_the_readme_holds(repository: Path) -> None:
    """The README's case runs as it is printed."""
    done = streamguard("policy", "test", "-", stdin=block(repository, "json").encode())

    assert (0, "1 cases, 3 events, 0 mismatches\n") == (done.returncode, done.stdout)
