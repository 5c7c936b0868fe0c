"""`streamguard policy`: check a file, show what is in force, test it on cases."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
import msgspec
import structlog
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from streamguard.cases import run_cases
from streamguard.cli.audit_output import moment
from streamguard.cli.service import load_policy
from streamguard.logs import configure_logs
from streamguard.policy_file import OPENCLAW, LoadedPolicy, load_policy_file
from streamguard.settings_file import load_service

__all__ = ["command"]

log = structlog.get_logger("streamguard.policy")

POLICY_FILE = click.Path(path_type=Path)


@click.group("policy", short_help="Check, show and test policies.")
def command() -> None:
    """Check, show and test policies: streamguard's TOML, or OpenClaw's own configuration (.json, .json5)."""


@command.command("check")
@click.argument("file", type=POLICY_FILE)
def check(file: Path) -> None:
    """Check a policy file; every fault is named by its place. Exits 2 if there is one.

    Settings of the service that stand in the same file are checked too.
    """
    configure_logs()
    loaded = load_policy_file(file)
    if file.suffix not in OPENCLAW:
        load_service(file, {}, {})
    _warn(loaded)
    agents = len(loaded.policies.agents)
    click.echo(f"{file}: ok ({agents} agent{'' if agents == 1 else 's'} with a block)")


@command.command("show")
@click.argument("file", type=POLICY_FILE)
@click.option("--agent", "agent_id", help="The policy of this agent instead of the global one.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def show(file: Path, agent_id: str | None, *, as_json: bool) -> None:
    """Show the effective policy, where each value comes from, and the overrides beside it."""
    configure_logs()
    loaded = load_policy_file(file)
    _warn(loaded)
    if agent_id is not None and agent_id not in loaded.policies.agents:
        click.echo(f"{file} has no block for agent {agent_id}: the global policy holds", err=True)
    values = loaded.explain(agent_id)
    fingerprint = loaded.policies.of(agent_id).fingerprint
    overrides = {
        name: override for name, override in loaded.policies.overrides.items()
        if agent_id is None or override.agent in {None, agent_id}
    }  # fmt: skip
    if as_json:
        fields = {value.field: {"value": value.value, "from": value.origin} for value in values}
        told = {"agent": agent_id, "policy": fingerprint, "fields": fields}
        if overrides:
            told["overrides"] = {name: msgspec.to_builtins(override) for name, override in overrides.items()}
        click.echo(json.dumps(told, indent=2))
        return
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for column in ("field", "value", "from"):
        table.add_column(column, overflow="fold")
    for value in values:
        table.add_row(value.field, "unset" if value.value is None else json.dumps(value.value), value.origin)
    console = Console(soft_wrap=not sys.stdout.isatty())
    console.print(f"policy {fingerprint}" + (f" of agent {agent_id}" if agent_id else ""), highlight=False)
    console.print(table)
    for name, override in overrides.items():
        console.print(
            f"override {name}: {override.signature} goes on until {moment(override.until)}"
            + (f" for agent {override.agent}" if override.agent else "")
            + f"; by {override.by}: {override.why}",
            highlight=False, markup=False,
        )  # fmt: skip


@command.command("test")
@click.argument("cases", nargs=-1, required=True, metavar="CASES...")
@click.option("--policy", "policy_file", type=POLICY_FILE, help="What the `policy` of least-action cases is laid over.")
def test(cases: tuple[str, ...], policy_file: Path | None) -> None:
    """Run case files (JSON lines, plain or gzip, - for standard input) through the worker's own guard.

    \b
    A line is one case: `id`, `events` (as on the events topic), and either
      exact         loopDetection, agentLoopDetection: policy blocks
                    expect: [[event index, action, detector, count], ...]
                    exactly these verdicts and no other
      least action  policy: laid over --policy, else over the documented
                    thresholds with enabled = true
                    expect: {"action": none|warn|block|abort,
                             "by": N, "not_before": N}
                    a stronger action counts; N numbers the tool calls
                    of the run from 1; by and not_before are optional

    Prints every mismatch and last `N cases, M events, K mismatches`. Exits 1 if there is one.
    """  # noqa: D301 - \b is click's mark against rewrapping
    base = load_policy(policy_file).block if policy_file is not None else None
    report = run_cases(cases, base)
    for mismatch in report.mismatches:
        click.echo(
            f"{mismatch.place}: {mismatch.case}: {mismatch.problem}" + (f" ({mismatch.note})" if mismatch.note else "")
        )
    click.echo(report.summary)
    if report.mismatches:
        raise SystemExit(1)


def _warn(loaded: LoadedPolicy) -> None:
    for warning in loaded.warnings:
        log.warning("policy thresholds out of order, clamped", **warning.as_log())
