"""The proxy of the fault bench: each way to spoil a connection, against a server that sends back what it gets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeAlias

import pytest
from proxy import CHUNK_BYTES, Proxy

NEVER_SECONDS = 3_600.0
MOMENT_SECONDS = 0.1
"""How long something that must not arrive is waited for."""

Connection: TypeAlias = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Connect: TypeAlias = Callable[[], Awaitable[Connection]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send everything back, and the end too."""
    with suppress(OSError):
        while chunk := await reader.read(CHUNK_BYTES):
            writer.write(chunk)
            await writer.drain()
    writer.close()


@pytest.fixture(autouse=True)
async def limit() -> AsyncIterator[None]:
    """Let no test hang."""
    async with asyncio.timeout(30):
        yield


@pytest.fixture
async def proxy() -> AsyncIterator[Proxy]:
    """A proxy in front of an echo server."""
    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    proxy = Proxy()
    await proxy.start()
    proxy.target = server.sockets[0].getsockname()
    yield proxy
    await proxy.stop()
    server.close()
    await server.wait_closed()


@pytest.fixture
async def connect(proxy: Proxy) -> AsyncIterator[Connect]:
    """Open connections through the proxy, which are closed afterwards."""
    writers = []

    async def open_one() -> Connection:
        reader, writer = await asyncio.open_connection(*proxy.address.split(":"))
        writers.append(writer)
        return reader, writer

    yield open_one
    for writer in writers:
        writer.close()
        with suppress(OSError):
            await writer.wait_closed()


async def ask(connection: Connection, sent: bytes) -> bytes:
    """Send something and read as much."""
    reader, writer = connection
    writer.write(sent)
    return await reader.readexactly(len(sent))


async def still_waiting(answer: asyncio.Task[bytes]) -> bool:
    """Tell whether something has not arrived after a moment."""
    done, _ = await asyncio.wait([answer], timeout=MOMENT_SECONDS)
    return not done


async def test_bytes_pass_both_ways(connect: Connect) -> None:
    """What is sent comes back unchanged, more of it than any buffer holds."""
    sent = bytes(range(256)) * 16 * 1024

    assert sent == await ask(await connect(), sent)


async def test_close_arrives_after_what_was_sent(connect: Connect) -> None:
    """A side that ends its sending still gets all of the answer, and then its end."""
    reader, writer = await connect()
    sent = b"x" * 1_000_000
    writer.write(sent)
    writer.write_eof()

    assert sent == await reader.read(-1)


async def test_sender_waits_for_a_reader_that_does_not_read(proxy: Proxy, connect: Connect) -> None:
    """Nothing heaps up in the proxy: who sends to a side that does not take it has to wait."""
    _, writer = await connect()
    proxy.silent = True
    writer.write(b"x" * 64_000_000)
    drained = asyncio.create_task(writer.drain())

    done, _ = await asyncio.wait([drained], timeout=MOMENT_SECONDS)

    assert not done
    await proxy.cut()
    with suppress(OSError):
        await drained


async def test_cut_resets_what_is_open_and_takes_new_connections(proxy: Proxy, connect: Connect) -> None:
    """A cut is a reset for every connection there is, and nothing for the next one."""
    connections = [await connect(), await connect()]
    for connection in connections:
        await ask(connection, b"here")

    await proxy.cut()

    for reader, _ in connections:
        with pytest.raises(ConnectionResetError):
            await reader.read(1)
    assert b"again" == await ask(await connect(), b"again")


async def test_cut_reaches_connections_that_are_held_up(proxy: Proxy, connect: Connect) -> None:
    """A cut does not wait for delays."""
    connection = await connect()
    await ask(connection, b"here")
    proxy.delay_seconds = NEVER_SECONDS
    connection[1].write(b"held")

    await proxy.cut()

    with pytest.raises(ConnectionResetError):
        await connection[0].read(1)


async def test_refusing_closes_new_connections_only(proxy: Proxy, connect: Connect) -> None:
    """While it refuses, who comes is turned away and who is there stays; then all may come again."""
    old = await connect()
    await ask(old, b"here")
    proxy.refuse = True

    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await ask(await connect(), b"new")
    assert b"old" == await ask(old, b"old")
    proxy.refuse = False
    assert b"new" == await ask(await connect(), b"new")


async def test_target_that_is_down_is_a_reset(proxy: Proxy, connect: Connect) -> None:
    """Where nothing listens the client is turned away; once the target is set, it is reached."""
    target, proxy.target = proxy.target, ("127.0.0.1", 1)

    with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
        await ask(await connect(), b"x")
    proxy.target = target
    assert b"x" == await ask(await connect(), b"x")


async def test_delay_holds_back_until_it_is_taken_away(proxy: Proxy, connect: Connect) -> None:
    """What is held back arrives when the delay ends, also if that is set while it waits."""
    proxy.delay_seconds = NEVER_SECONDS
    answer = asyncio.create_task(ask(await connect(), b"late"))

    assert await still_waiting(answer)
    proxy.delay_seconds = 0.001
    assert b"late" == await answer


async def test_throttle_lets_through_little_by_little(proxy: Proxy, connect: Connect) -> None:
    """A low rate gives the start of an answer and not the whole; the rest comes once the rate is lifted."""
    reader, writer = await connect()
    proxy.bytes_per_second = 1_000.0
    writer.write(b"x" * 1_000_000)
    await reader.readexactly(1)
    rest = asyncio.create_task(reader.readexactly(999_999))

    assert await still_waiting(rest)
    proxy.bytes_per_second = None
    assert 999_999 == len(await rest)


async def test_silence_keeps_connections_open_and_loses_nothing(proxy: Proxy, connect: Connect) -> None:
    """In a black hole old and new connections stay open and hear nothing; afterwards all of it arrives."""
    old = await connect()
    await ask(old, b"here")
    with proxy.blackhole():
        answers = [asyncio.create_task(ask(connection, b"lost?")) for connection in (old, await connect())]

        assert all([await still_waiting(answer) for answer in answers])
    assert [b"lost?", b"lost?"] == await asyncio.gather(*answers)


async def test_silence_holds_back_a_close(proxy: Proxy, connect: Connect) -> None:
    """A close is not heard through a black hole either."""
    reader, writer = await connect()
    await ask((reader, writer), b"here")
    proxy.silent = True
    writer.write_eof()
    end = asyncio.create_task(reader.read(1))

    assert await still_waiting(end)
    proxy.silent = False
    assert b"" == await end


async def test_stop_ends_everything(proxy: Proxy, connect: Connect) -> None:
    """After a stop nothing is open and nothing listens; stopping twice is fine."""
    address = proxy.address.split(":")
    connection = await connect()
    await ask(connection, b"here")

    await proxy.stop()
    await proxy.stop()

    with pytest.raises(ConnectionResetError):
        await connection[0].read(1)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(*address)
