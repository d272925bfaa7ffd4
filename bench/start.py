"""From nothing to a first delivered message: `heliograph up` on a fresh data directory, as `make run` starts it."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
import time
from pathlib import Path

import asyncpg
import msgspec

from bench.accept import Lengths
from bench.figures import Report
from bench.load import TEXT
from bench.stage import BenchError, Part, Stage, end_with_parent
from heliograph.demo.credentials import Credentials

LONGEST = 60.0


async def start(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Seconds until `up` reports that it is ready, and until a message sent then is delivered."""
    ready, delivered = [], []
    for number in range(lengths.rounds):
        one, other = await _once(stage, stage.place / f"up-{number}")
        ready.append(one)
        delivered.append(other)
    report.add("start_ready", "`up` on a new data directory, ready", ready, "s")
    report.add("start_delivered", "`up` on a new data directory, first message delivered", delivered, "s")


async def _once(stage: Stage, directory: Path) -> tuple[float, float]:
    directory.mkdir()
    directory.chmod(0o711)  # root's PostgreSQL runs as another user
    said = directory / "said"
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")}
    began = time.monotonic()
    with said.open("wb") as output:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "heliograph", "up", "--json", "--port", "0", "--data-dir", str(directory / "data")),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=output,
            stderr=(directory / "complaints").open("wb"),
            env=environment,
            start_new_session=True,
            preexec_fn=end_with_parent,
        )
    stage.parts["up"] = part = Part("up", process, directory / "complaints")
    try:
        while not (content := said.read_bytes()).endswith(b"}\n"):
            part.check()
            _bound(began, "ready", part)
            await asyncio.sleep(0.01)
        ready = time.monotonic() - began
        credentials = msgspec.json.decode(content, type=Credentials)
        await _send(credentials)
        conn = await asyncpg.connect(credentials.database_url)
        try:
            while not await conn.fetchval("SELECT EXISTS (SELECT FROM messages WHERE status = 'delivered')"):
                part.check()
                _bound(began, "delivered", part)
                await asyncio.sleep(0.01)
        finally:
            await conn.close()
        return ready, time.monotonic() - began
    finally:
        await stage.stop("up")
        shutil.rmtree(directory, ignore_errors=True)


def _bound(began: float, what: str, part: Part) -> None:
    if time.monotonic() - began > LONGEST:
        raise BenchError(f"`heliograph up`: not {what} within {LONGEST:.0f} s\n{part.last_words()}")


async def _send(credentials: Credentials) -> None:
    port = int(credentials.base_url.rpartition(":")[2])
    body = msgspec.json.encode({"to": "+258841234567", "message": TEXT})
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (
        f"POST /v1/sms/send HTTP/1.1\r\nhost: bench\r\nauthorization: Bearer {credentials.live_key}\r\n"
        f"idempotency-key: first\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n"
        "connection: close\r\n\r\n"
    )
    writer.write(head.encode() + body)
    answer = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    if not answer.startswith(b"HTTP/1.1 202 "):
        raise BenchError(f"the first message was answered: {answer[:300]!r}")
