"""Policy files that people write: both formats, every fault named by its place."""

from __future__ import annotations

from pathlib import Path

import pytest

from streamguard.errors import PolicyFileError
from streamguard.policy import Policy
from streamguard.policy_file import LoadedPolicy, load_policy_file

OPENCLAW = """
// the rest of the file is OpenClaw's own business
{
  gateway: { port: 18789 },
  tools: { profile: 'full', loopDetection: { enabled: true, warningThreshold: 12, detectors: { pingPong: false }, } },
  agents: {
    list: [
      { id: 'safe-runner', model: 'x', tools: { loopDetection: { criticalThreshold: 15 } } },
      { id: 'plain' }, { id: 'null', tools: { loopDetection: null } },
    ],
    entries: { "other one": { tools: { loopDetection: { enabled: false } } } },
  },
}
"""


def load(folder: Path, text: str, name: str = "policy.toml") -> LoadedPolicy:
    """Write a file and load it."""
    file = folder / name
    file.write_text(text)
    return load_policy_file(file)


def faults(folder: Path, text: str, name: str = "policy.toml") -> str:
    """Return the message that refuses a file."""
    with pytest.raises(PolicyFileError) as caught:
        load(folder, text, name)
    return str(caught.value)


def test_native_toml(tmp_path: Path) -> None:
    """[policy] is the global block, [agents.<id>] an agent's; snake_case is taken too."""
    loaded = load(
        tmp_path,
        "[policy]\nenabled = true\nwarning_threshold = 5\n[policy.detectors]\nping_pong = false\n"
        "[policy.postCompactionGuard]\nwindowSize = 4\n[agents.'a b']\nhistorySize = 50\nsendTools = ['Telegram']\n",
    )

    assert Policy(
        enabled=True,
        warning_threshold=5,
        ping_pong=False,
        compaction_window=4,
        history_size=50,
        send_tools=("telegram",),
    ) == loaded.policies.of("a b")
    assert 30 == loaded.policies.of("c").history_size


def test_openclaws_own_file(tmp_path: Path) -> None:
    """tools.loopDetection and both places of agents are found; everything else is OpenClaw's own business."""
    policies = load(tmp_path, OPENCLAW, "openclaw.json").policies

    assert Policy(enabled=True, warning_threshold=12, critical_threshold=15, ping_pong=False) == policies.of(
        "safe-runner"
    )
    assert False is policies.of("other one").enabled
    assert policies.of(None) == policies.of("plain") == policies.of("null")


def test_a_file_without_a_policy_has_the_documented_default(tmp_path: Path) -> None:
    """A policy that does not say `enabled` leaves it unset."""
    assert Policy() == load(tmp_path, "[kafka]\nbootstrap = 'x'\n").policies.of(None)
    assert Policy() == load(tmp_path, "{}", "openclaw.json").policies.of(None)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("[policy]\nenabled = 'yes'", 'policy.enabled is "yes"; allowed: true, false, or null for unset'),
        ("[policy]\nwarningThreshold = 2.5", "policy.warningThreshold is 2.5; allowed: a positive whole number"),
        ("[policy]\nhistorySize = true", "policy.historySize is true; allowed: a positive whole number"),
        ("[policy]\nwarningTreshold = 2", "policy.warningTreshold: unknown key; did you mean warningThreshold?"),
        ("[policy.detectors]\npingPong = 1", "policy.detectors.pingPong is 1; allowed: true or false"),
        ("[policy]\ndetectors = 1", "policy.detectors is 1; allowed: an object"),
        ("[policy]\nsendTools = 'x'", 'policy.sendTools is "x"; allowed: a list of tool names'),
        ("[policy]\nhistorySize = 1\nhistory_size = 2", "policy.history_size: given twice"),
        ("policy = 3", "policy is 3; allowed: a loopDetection block"),
        ("[agents.a]\nwindowSize = 3", "agents.a.windowSize: unknown key"),
        ("agents = 1", "agents is 1; allowed: a table for each agent"),
        ("[polcy]", "polcy: unknown key; did you mean policy?"),
        ("[policy\n", "not TOML: Expected ']' at the end of a table declaration (at line 1"),
    ],
)
def test_a_fault_is_named_by_place_value_and_what_is_allowed(tmp_path: Path, text: str, fault: str) -> None:
    """A wrong native file is refused with the path of the key, the value, and what is allowed."""
    assert f"{tmp_path / 'policy.toml'}: {fault}" in faults(tmp_path, text)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{tools:{loopDetection:{warningThreshold:null}}}", "tools.loopDetection.warningThreshold is null; allowed"),
        ("{tools:{loopDetection:[]}}", "tools.loopDetection is []; allowed: a loopDetection block"),
        ("{tools:{loopDetection:{warning_threshold:3}}}", "tools.loopDetection.warning_threshold: unknown key"),
        (
            "{agents:{list:[{id:'a'},{id:'b',tools:{loopDetection:{detectors:{pingPong:'no'}}}}]}}",
            'agents.list[1].tools.loopDetection.detectors.pingPong is "no"; allowed: true or false',
        ),
        ("{agents:{list:[{tools:{loopDetection:{}}}]}}", "agents.list[0].id is null; allowed: the agent's id"),
        (
            "{agents:{list:[{id:'a',tools:{loopDetection:{}}}],entries:{a:{tools:{loopDetection:{}}}}}}",
            "agents.entries.a.tools.loopDetection: agent 'a' has a block already, at agents.list[0]",
        ),
        ("{a:1,,}", "not JSON5: line 1"),
        ("[]", "an object was expected"),
    ],
)
def test_faults_in_openclaws_file(tmp_path: Path, text: str, fault: str) -> None:
    """Within OpenClaw's file the loopDetection blocks are checked as hard, and agents are told apart."""
    assert fault in faults(tmp_path, text, "openclaw.json5")


def test_all_faults_are_told_at_once(tmp_path: Path) -> None:
    """Whoever mends a file need not run the check once per fault."""
    message = faults(tmp_path, "[policy]\nenabled = 1\nhistorySize = 0\n[agents.a]\nx = 1\n")

    assert 3 == message.count("\n  ")


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file, a directory and bytes that are no text are errors of their own."""
    (tmp_path / "latin.toml").write_bytes(b"# \xe9")
    for name, reason in (
        ("nowhere.toml", "No such file"),
        (".", "Is a directory"),
        ("latin.toml", "not UTF-8: byte 2"),
    ):
        with pytest.raises(PolicyFileError, match=reason):
            load_policy_file(tmp_path / name)


def test_a_misordered_pair_is_a_warning(tmp_path: Path) -> None:
    """Thresholds out of order are clamped, and the warning says where and to what, once."""
    loaded = load(
        tmp_path, "[policy]\nwarningThreshold = 25\n[agents.a]\nwarningThreshold = 10\n[agents.b]\nenabled = true\n"
    )

    assert [
        (None, "criticalThreshold", 20, 26),
    ] == [(w.agent, w.field, w.value, w.clamped) for w in loaded.warnings]


def test_every_value_says_where_it_came_from(tmp_path: Path) -> None:
    """`policy show` can tell defaults, both blocks and clamping apart."""
    loaded = load(
        tmp_path, "[policy]\nwarningThreshold = 30\n[policy.detectors]\npingPong = false\n[agents.a]\nhistorySize = 5\n"
    )
    origins = {value.field: (value.value, value.origin) for value in loaded.explain("a")}

    assert (30, "policy.warningThreshold") == origins["warningThreshold"]
    assert (5, "agents.a.historySize") == origins["historySize"]
    assert (False, "policy.detectors.pingPong") == origins["detectors.pingPong"]
    assert (3, "default") == origins["postCompactionGuard.windowSize"]
    assert (31, "default, clamped from 20: criticalThreshold must be above warningThreshold") == origins[
        "criticalThreshold"
    ]


def test_a_file_nested_too_deep_is_refused(tmp_path: Path) -> None:
    """However deep the nesting, it is an error in a sentence: a worker that watches the file goes on."""
    file = tmp_path / "deep.toml"
    file.write_text(f"a = {'[' * 5_000}{']' * 5_000}\n")

    with pytest.raises(PolicyFileError, match="nested too deep to read"):
        load_policy_file(file)
