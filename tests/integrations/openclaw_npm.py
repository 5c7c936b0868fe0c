"""OpenClaw and the Node that it needs, installed by npm into a cache folder, once.

Some 600 MB and a minute for OpenClaw, 190 MB for Node where the machine's is too old.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Final, NamedTuple

from brokers.jars import cache_folder, locked

OPENCLAW: Final = "2026.9.6"
NODE: Final = "24.22.3"
OLDEST_NODE: Final = (24, 16)
INSTALL_SECONDS: Final = 900


class CannotInstallError(Exception):
    """There is no node or npm, or npm could not install OpenClaw."""


class Installed(NamedTuple):
    """What runs OpenClaw, and its `dist` folder."""

    node: str
    dist: Path


def node() -> tuple[str, tuple[int, int]]:
    """Return the machine's own Node, and its version."""
    path = shutil.which("node")
    if path is None:
        raise CannotInstallError("no node on the path")
    found = re.match(r"v(\d+)\.(\d+)", _said(path, "--version"))
    if found is None:
        raise CannotInstallError(f"{path} does not tell its version")
    return path, (int(found[1]), int(found[2]))


def install() -> Installed:
    """Return OpenClaw, installing it first if need be; STREAMGUARD_TEST_OPENCLAW can name another version than ours."""
    asked = os.environ.get("STREAMGUARD_TEST_OPENCLAW", "")
    version = asked if re.fullmatch(r"\d{4}\.\d+\.\d+(-\S+)?", asked) else OPENCLAW
    folder = _installed(f"openclaw-{version}", f"openclaw@{version}")
    return Installed(_new_node(), folder / "node_modules" / "openclaw" / "dist")


def _new_node() -> str:
    """Return a Node that is new enough: the machine's, else one from npm."""
    path, version = node()
    if version >= OLDEST_NODE:
        return path
    package = "node-" + _said(path, "-p", "process.platform + '-' + process.arch").strip()
    folder = _installed(f"{package}-{NODE}", f"{package}@{NODE}")
    return str(folder / "node_modules" / package / "bin" / "node")


def _installed(name: str, package: str) -> Path:
    """Return a folder with a package; it appears under its name only when it is whole."""
    folder = cache_folder() / name
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        raise CannotInstallError("no npm on the path")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with locked(folder.parent / "npm-lock"):
        if not folder.is_dir():
            _fill(folder, npm, package)
    return folder


def _fill(folder: Path, npm: str, package: str) -> None:
    work = Path(tempfile.mkdtemp(prefix="installing-", dir=folder.parent))
    flags = ("--no-audit", "--no-fund", "--ignore-scripts", "--omit=optional", "--loglevel=error", "--force")
    try:
        (work / "package.json").write_text('{"private": true}')
        done = subprocess.run(
            [npm, "install", *flags, package],
            cwd=work,
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            timeout=INSTALL_SECONDS,
        )
        if done.returncode != 0:
            raise CannotInstallError(f"npm could not install {package}: {(done.stdout + done.stderr).strip()[-500:]}")
        work.rename(folder)
    except subprocess.TimeoutExpired:
        raise CannotInstallError(f"npm did not install {package} within {INSTALL_SECONDS} s") from None
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _said(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60).stdout
