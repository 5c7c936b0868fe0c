"""Canonical hashing: equal values hash equally, different ones do not."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamguard.events import ToolCall, decode_event
from streamguard.guard.signature import public_signature, signature_of, tool_named

whole = st.integers(-(2**70), 2**70)
numbers = st.one_of(whole, st.floats(allow_nan=False, allow_infinity=False))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text(st.characters(exclude_categories=["Cs"]))),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text("abc"), inner, max_size=4)),
    max_leaves=12,
)


def signature(args_json: str, tool: str = "read") -> bytes:
    """Decode a call as the worker does and hash it."""
    event = decode_event(f'{{"type":"tool_call","run_id":"r","tool":"read","args":{args_json}}}'.encode())
    assert isinstance(event, ToolCall)
    return signature_of(tool_named(tool), event.args, event.args_hash)


def shuffled(value: Any, random: Any) -> Any:
    """Return an equal value with the keys of all objects in another order."""
    if isinstance(value, dict):
        keys = list(value)
        random.shuffle(keys)
        return {key: shuffled(value[key], random) for key in keys}
    return [shuffled(item, random) for item in value] if isinstance(value, list) else value


@given(value=values, random=st.randoms(use_true_random=False))
def test_key_order_and_blanks_do_not_matter(value: Any, random: Any) -> None:
    """The same value written with other key order and white space has the same signature."""
    assert signature(json.dumps(value)) == signature(json.dumps(shuffled(value, random), indent=2))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("1.0", "1"), ("-0", "0"), ("-0.0", "0"), ("1e2", "100"), ("1E+2", "100.00"), ("0.10", "0.1"), ("1e-1", "0.1"),
        ("9007199254740993.0", "9007199254740993"), ("1e30", "1" + "0" * 30), ("123e20", "123" + "0" * 20),
        ('"\\u0041"', '"A"'), ('"\\/"', '"/"'), ('{"a":1,"a":2}', '{"a":2}'),
    ],
)  # fmt: skip
def test_spelling_does_not_matter(left: str, right: str) -> None:
    """One value has one signature, however its numbers and strings are spelled."""
    assert signature(left) == signature(right)


@pytest.mark.parametrize(
    ("left", "right"),
    [
        ("[1,2]", "[2,1]"), ("null", "{}"), ('{"a":null}', "{}"), ("1", "true"), ("0", "false"), ('"1"', "1"),
        ("9007199254740993", "9007199254740992"), ("1.5", "1"), ('""', "null"), ("[]", "{}"), ('{"a":1}', '{"b":1}'),
        ("18446744073709551616", "18446744073709551617"),
    ],
)  # fmt: skip
def test_different_values_differ(left: str, right: str) -> None:
    """Array order, null against missing, types, and neighbouring whole numbers are told apart."""
    assert signature(left) != signature(right)


@given(number=whole, zeros=st.integers(0, 3))
def test_whole_numbers_have_one_signature(number: int, zeros: int) -> None:
    """A whole number with decimal zeros or with an exponent is the whole number."""
    assert signature(str(number)) == signature(f"{number}.{'0' * (zeros + 1)}") == signature(f"{Decimal(number):E}")


@given(value=values)
def test_msgpack_and_json_agree(value: Any) -> None:
    """The same call in either encoding has the same signature."""
    record = {"type": "tool_call", "run_id": "r", "tool": "read", "args": json.loads(json.dumps(value))}
    try:
        packed = msgspec.msgpack.encode(record)
    except (OverflowError, msgspec.MsgspecError):
        return  # MessagePack has no whole numbers beyond 64 bits
    event = decode_event(packed, msgpack=True)
    assert isinstance(event, ToolCall)
    if any(isinstance(item, float) and abs(item) >= 2**53 for item in leaves(value)):
        return  # JSON spells such a double by its shortest digits, which name another whole number

    assert signature(json.dumps(value)) == signature_of(tool_named("read"), event.args, None)


def leaves(value: Any) -> list[Any]:
    """Return all scalars within a value."""
    if isinstance(value, dict):
        value = list(value.values())
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_tools_are_told_apart_and_aliases_are_not() -> None:
    """The tool is part of the signature; names are trimmed, lower case, and known aliases are one tool."""
    assert signature("1", "read") != signature("1", "write")
    assert signature("1", " BASH ") == signature("1", "exec")
    assert signature("1", "apply-patch") == signature("1", "Apply_Patch")


def test_missing_arguments_are_null() -> None:
    """A call without `args` has the arguments null."""
    missing = decode_event(b'{"type":"tool_call","run_id":"r","tool":"read"}')
    assert isinstance(missing, ToolCall)

    assert signature("null") == signature_of(tool_named("read"), missing.args, missing.args_hash)


def test_a_producers_hash_is_no_argument() -> None:
    """`args_hash` stands for the arguments, and never equals arguments that read the same."""
    by_hash = signature_of(tool_named("read"), msgspec.UNSET, "1")

    assert by_hash == signature_of(tool_named("read"), None, "1")
    assert by_hash not in (signature("1"), signature('"1"'), signature('"#1"'))


def test_the_published_signature_is_stable() -> None:
    """Executors compare signatures across versions: this one must never change."""
    assert (
        public_signature("exec", signature('{"command":"make test"}', "exec"))
        == "exec:8eaf025b6aeac30c9375cad1c65b4321"
    )
