"""The webhook receiver over real sockets: what it counts, and how it responds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec

from heliograph.base.database import clock
from heliograph.simulators.receiver import Options, Receiver
from heliograph.webhooks.delivery import signing
from tests import forks
from tests.processes import until

SECRET = signing.new_secret()


@contextlib.asynccontextmanager
async def receiving(options: Options | None = None, **extra: object) -> AsyncIterator[Receiver]:
    receiver = Receiver(options, **extra)  # type: ignore[arg-type]
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()


def event(id: str, type: str = "message.delivered", message_id: str = "m1") -> bytes:
    return msgspec.json.encode({"id": id, "type": type, "data": {"message": {"id": message_id, "to": "+49"}}})


def callback(body: bytes, *, secret: str = SECRET, path: str = "/hook", headers: str = "") -> bytes:
    signed = signing.headers([secret], event_id="e", request_id="req-1", body=body, at=clock.now())
    lines = "".join(f"{name.title()}: {value}\r\n" for name, value in signed.items())
    head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n{lines}{headers}\r\n"
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 120)).decode()
    first, *lines = head.strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return int(first.split()[1]), headers, await reader.readexactly(int(headers.get("content-length", "0")))


async def exchange(receiver: Receiver, *requests: bytes) -> list[int]:
    """Send requests one after the other over one connection; returns the statuses of the responses."""
    reader, writer = await asyncio.open_connection(receiver.options.host, receiver.port)
    statuses = []
    for request in requests:
        writer.write(request)
        statuses.append((await answer(reader))[0])
    writer.close()
    return statuses


async def test_events_are_kept_and_counted() -> None:
    async with receiving(Options(secrets=(SECRET,))) as receiver:
        assert receiver.url == f"http://127.0.0.1:{receiver.port}/"
        assert (
            await exchange(receiver, callback(event("e1")), callback(event("e2", "message.failed", "m2"))) == [200] * 2
        )
        first, second = receiver.events
        assert (first.id, first.type, first.message_id, first.status) == ("e1", "message.delivered", "m1", 200)
        assert (first.problem, first.duplicate, first.request_id, first.body) == (None, False, "req-1", event("e1"))
        assert first.headers["x-service-signature"].startswith("v1=")
        assert (second.type, second.message_id) == ("message.failed", "m2")
        assert (receiver.counters.requests, receiver.counters.received) == (2, 2)


async def test_duplicates_are_told_from_retries() -> None:
    async with receiving(Options(status=500)) as receiver:
        await exchange(receiver, callback(event("e1")))
        assert (receiver.counters.refused, receiver.counters.received) == (1, 0)
    async with receiving(Options(fail_share=0.5, seed=1, remember=100)) as receiver:
        for _ in range(20):
            await exchange(receiver, callback(event("e1")))
        counters = receiver.counters
        assert counters.requests == 20
        assert counters.received == 1
        assert counters.duplicates == 20 - 1 - counters.refused
        assert 3 < counters.refused < 17
        assert not receiver.events[0].duplicate
        assert receiver.events[-1].duplicate


async def test_memory_is_bounded() -> None:
    async with receiving(Options(keep=5, remember=10)) as receiver:
        await exchange(receiver, *(callback(event(f"e{n}")) for n in range(30)))
        assert [kept.id for kept in receiver.events] == ["e25", "e26", "e27", "e28", "e29"]
        await exchange(receiver, callback(event("e29")), callback(event("e0")))
        assert (receiver.counters.received, receiver.counters.duplicates) == (31, 1)


async def test_a_signature_that_is_not_good_is_refused() -> None:
    async with receiving(Options(secrets=(SECRET, signing.new_secret()))) as receiver:
        forged = callback(event("e1"), secret=signing.new_secret())
        unsigned = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(event("e2")) + event("e2")
        assert await exchange(receiver, forged, unsigned, callback(event("e3"))) == [401, 401, 200]
        assert (receiver.counters.bad_signatures, receiver.counters.received) == (2, 1)
        assert [kept.problem for kept in receiver.events] == ["wrong signature", "malformed timestamp", None]


async def test_what_is_no_event_is_refused() -> None:
    async with receiving() as receiver:
        bodies = (b"", b"{", b"[]", b'{"id":1}', b"\xff")
        assert await exchange(receiver, *(callback(body) for body in bodies)) == [400] * 5
        assert (receiver.counters.malformed, receiver.counters.received) == (5, 0)
        assert await exchange(receiver, callback(b'{"id":"e","type":"contact.opted_out","data":{"contact":{}}}')) == [
            200
        ]


async def test_the_ledger_has_a_line_for_each_event_taken(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    ledger.write_text("e0 before m0\n")
    async with receiving(Options(secrets=(SECRET,), ledger=str(ledger))) as receiver:
        await exchange(receiver, callback(event("e1")), callback(event("e2"), secret=signing.new_secret()))
        await until(lambda: "e1" in ledger.read_text())  # without being asked
        await exchange(receiver, callback(event("e1")), callback(event("e3", message_id="m3")))
    assert ledger.read_text().splitlines() == [
        "e0 before m0",
        "e1 message.delivered m1",
        "e1 message.delivered m1",
        "e3 message.delivered m3",
    ]


async def test_a_line_is_said_for_each_callback() -> None:
    said: list[str] = []
    async with receiving(Options(secrets=(SECRET,)), said=said.append) as receiver:
        await exchange(
            receiver, callback(event("e1")), callback(event("e1")), callback(event("e2"), secret=signing.new_secret())
        )
    one, two, three = "\n".join(said).splitlines()
    assert one.endswith("message.delivered e1 m1 200")
    assert two.endswith("message.delivered e1 m1 200 duplicate")
    assert three.endswith("message.delivered e2 m1 401 wrong signature")


async def test_status_and_retry_after_are_answered() -> None:
    async with receiving(Options(status=429, retry_after=7)) as receiver:
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(callback(event("e1")))
        status, headers, _ = await answer(reader)
        assert (status, headers["retry-after"]) == (429, "7")
        writer.close()
    async with receiving(Options(status=204)) as receiver:
        assert await exchange(receiver, callback(event("e1")), callback(event("e2"))) == [204, 204]


async def test_latency_delays_the_answer_and_keeps_the_order() -> None:
    async with receiving(Options(latency=0.1)) as receiver:
        started = time.monotonic()
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(callback(event("e1")) + callback(event("e2")))
        assert [(await answer(reader))[0] for _ in range(2)] == [200, 200]
        assert time.monotonic() - started >= 0.1
        writer.close()


async def test_a_slow_answer_comes_byte_by_byte() -> None:
    async with receiving(Options(byte_interval=0.002)) as receiver:
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(callback(event("e1")))
        assert await asyncio.wait_for(reader.readexactly(1), 120) == b"H"
        assert (await answer(reader))[1]["content-length"] == "0"
        writer.close()


async def test_a_hanging_receiver_reads_and_says_nothing() -> None:
    async with receiving(Options(hang=True)) as receiver:
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(callback(event("e1")))
        await receiver.wait_for(lambda it: it.counters.requests == 1)
        assert (receiver.counters.received, receiver.counters.refused) == (0, 1)
        assert receiver.events[0].status == 0
    assert await asyncio.wait_for(reader.read(), 120) == b""  # stopping ends the connection
    writer.close()


RUN = """
import asyncio
from heliograph.simulators.receiver import Options, run
print(asyncio.run(run(Options())).received)
"""


async def test_run_says_where_it_listens_and_ends_with_sigterm() -> None:
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", RUN, stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None
    try:
        said = (await asyncio.wait_for(process.stdout.readline(), 120)).decode()
        assert said.startswith("listening on http://127.0.0.1:")
        reader, writer = await asyncio.open_connection("127.0.0.1", int(said.strip().rstrip("/").rsplit(":", 1)[1]))
        writer.write(callback(event("e1")))
        assert (await answer(reader))[0] == 200
        line = (await asyncio.wait_for(process.stdout.readline(), 120)).decode()
        assert line.endswith("message.delivered e1 m1 200\n")
        process.send_signal(signal.SIGTERM)
        assert (await asyncio.wait_for(process.stdout.read(), 120)).decode() == "1\n"
        assert await process.wait() == 0
        writer.close()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_it_ends_once_nobody_reads_its_lines() -> None:
    """As with `| head`."""
    ours, theirs = os.pipe()
    with os.fdopen(theirs, "wb") as out:
        pipe = asyncio.subprocess.PIPE
        process = await forks.start("simulate", "receiver", environment=os.environ, stdout=out, stderr=pipe)
    os.close(ours)
    assert process.stderr is not None
    said = (await asyncio.wait_for(process.stderr.readline(), 120)).decode()
    reader, writer = await asyncio.open_connection("127.0.0.1", int(said.partition("/. ")[0].rsplit(":", 1)[1]))
    writer.write(callback(event("e1")))
    assert (await answer(reader))[0] == 200
    writer.close()
    async with asyncio.timeout(120):
        _, err = await process.communicate()
    assert (process.returncode, err.decode().partition("  ")[0]) == (1, "requests: 1")
    assert b"Traceback" not in err


async def test_get_answers_the_counters() -> None:
    async with receiving() as receiver:
        await exchange(receiver, callback(event("e1")))
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        writer.write(b"GET /counters HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        status, headers, body = await answer(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert msgspec.json.decode(body)["received"] == 1
        assert await reader.read() == b""
        writer.close()
        assert receiver.counters.requests == 1


async def test_a_body_in_pieces_and_in_chunks_is_one_callback() -> None:
    async with receiving(Options(secrets=(SECRET,))) as receiver:
        reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
        request = callback(event("e1"))
        for at in range(0, len(request), 50):
            writer.write(request[at : at + 50])
            await writer.drain()
        assert (await answer(reader))[0] == 200
        head, body = callback(event("e2")).split(b"\r\n\r\n")
        head = head.replace(b"Content-Length: %d" % len(body), b"Transfer-Encoding: chunked")
        writer.write(head + b"\r\n\r\n" + b"5\r\n%s\r\n%x\r\n%s\r\n0\r\n\r\n" % (body[:5], len(body) - 5, body[5:]))
        assert (await answer(reader))[0] == 200
        writer.close()
        assert receiver.counters.received == 2


async def test_garbage_and_endless_requests_end_the_connection_only() -> None:
    async with receiving() as receiver:
        for garbage in (
            b"not http\r\n\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\n" + b"X: y\r\n" * 300 + b"\r\n",
            b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\n" + b"a" * 2_000_000,
        ):
            reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
            writer.write(garbage)
            with contextlib.suppress(ConnectionError):
                assert len(await asyncio.wait_for(reader.read(), 120)) < 200
            writer.close()
        assert await exchange(receiver, callback(event("e1"))) == [200]
