"""Apache Kafka's jars, resolved by Maven into a cache folder, once."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

KAFKA: Final = "4.1.0"
DEPENDENCY_PLUGIN: Final = "3.8.1"
RESOLVE_SECONDS: Final = 900

POM: Final = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>streamguard.tests</groupId><artifactId>kafka</artifactId><version>1</version><packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA}</version></dependency>
    <dependency><groupId>org.slf4j</groupId><artifactId>slf4j-simple</artifactId><version>1.7.36</version></dependency>
  </dependencies>
</project>
"""


class CannotResolveError(Exception):
    """Java or Maven is missing or too old, or Maven could not resolve the jars."""


def cache_folder() -> Path:
    """Return where jars are kept between runs."""
    if folder := os.environ.get("STREAMGUARD_TEST_CACHE"):
        return Path(folder)
    caches = os.environ.get("XDG_CACHE_HOME")
    return (Path(caches) if caches else Path.home() / ".cache") / "streamguard-tests"


def java() -> str:
    """Return the Java to run Kafka with; it needs 17."""
    path = shutil.which("java")
    if path is None:
        raise CannotResolveError("no java on the path")
    said = subprocess.run([path, "-version"], capture_output=True, text=True, check=False, timeout=60).stderr
    found = re.search(r'version "(\d+)', said)
    if found is None or int(found[1]) < 17:
        raise CannotResolveError(f"Java 17 is needed, {path} is {found[1] if found else 'of an unknown version'}")
    return path


def resolve() -> Path:
    """Return the folder of jars, filling it first if need be.

    It appears under its name only when it is whole, so that a broken run leaves nothing half done. Of two runs at once
    the second waits for the first: Maven's own repository does not bear two writers. The name depends on the pom.
    """
    folder = cache_folder() / f"kafka-{KAFKA}-{hashlib.sha256(POM.encode()).hexdigest()[:8]}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked(folder.parent / "lock"):
            if not folder.is_dir():
                _fill(folder)
    return folder


def _fill(folder: Path) -> None:
    maven = shutil.which("mvn")
    if maven is None:
        raise CannotResolveError("no mvn on the path")
    work = Path(tempfile.mkdtemp(prefix="resolving-", dir=folder.parent))
    try:
        (work / "pom.xml").write_text(POM)
        goal = f"org.apache.maven.plugins:maven-dependency-plugin:{DEPENDENCY_PLUGIN}:copy-dependencies"
        done = subprocess.run(
            [maven, "-q", "-B", "-f", str(work / "pom.xml"), goal, f"-DoutputDirectory={work / 'jars'}"],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=RESOLVE_SECONDS,
        )
        if done.returncode != 0 or not any((work / "jars").glob("kafka_*.jar")):
            raise CannotResolveError(f"Maven could not resolve Kafka: {(done.stdout + done.stderr).strip()[-500:]}")
        (work / "jars").rename(folder)
    except subprocess.TimeoutExpired:
        raise CannotResolveError(f"Maven did not resolve Kafka within {RESOLVE_SECONDS} s") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock that the kernel lets go of if we die."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
