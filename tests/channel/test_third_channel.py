"""A third channel, from accept to signed webhook, through the same engine: everything it needs is in `email.py`."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from uuid import UUID

import pytest

from heliograph.base.database import clock
from heliograph.base.database.pool import Pool, open_pool
from heliograph.simulators.receiver import Receiver
from heliograph.webhooks.delivery import signing
from heliograph.worker import CHANNELS, Worker
from tests.channel import email
from tests.channel.email import Acceptor, Email, EmailWork
from tests.hooks import endpoint, organization, settings, until


class Mail:
    """A mail server that answers as told: "250 <id>" unless something else was set for a recipient."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.answers: dict[str, list[str]] = {}
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = (await reader.readline()).decode().strip()
        self.lines.append(line)
        planned = self.answers.get(line.split(" ")[0])
        answer = planned.pop(0) if planned else f"250 mail-{len(self.lines)}"
        if answer != "silence":
            writer.write(f"{answer}\n".encode())
        writer.close()


@pytest.fixture
async def mail() -> AsyncIterator[Mail]:
    made = Mail()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.port = server.sockets[0].getsockname()[1]
    yield made
    server.close()


@pytest.fixture
async def database(database_url: str, as_owner: Callable[[str], Awaitable[None]]) -> AsyncIterator[Pool]:
    await as_owner(f"{email.SCHEMA}; GRANT ALL ON email_messages TO PUBLIC")
    opened = await open_pool(database_url, size=4)
    yield opened
    opened.terminate()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    await made.start()
    yield made
    await made.stop()


@contextlib.asynccontextmanager
async def working(pool: Pool, url: str, mail: Mail) -> AsyncIterator[None]:
    """A complete worker with one channel more."""
    under = settings(database_url=url, uncertain_grace_seconds=1.0)
    worker = Worker(under, pool, channels={**CHANNELS, "email": partial(EmailWork, port=mail.port)})
    running = asyncio.create_task(worker.run())
    try:
        yield
    finally:
        worker.stop()
        await running


async def test_from_accept_to_signed_webhook(database: Pool, database_url: str, mail: Mail, receiver: Receiver) -> None:
    actor = await organization(database)
    _, secret = await endpoint(database, actor, receiver.url, kinds=("message.delivered", "message.failed"))
    mail.answers = {"later@example.com": ["421 later", "421 later"], "no@example.com": ["550 no"]}
    acceptor = Acceptor(database)
    people = [f"{n}@example.com" for n in range(50)] + list(mail.answers)
    answers = await asyncio.gather(*(acceptor.accept(Email(actor, one, "hello")) for one in people))
    ids = {json.loads(one.body)["id"]: to for one, to in zip(answers, people, strict=True)}
    assert {one.status for one in answers} == {202}
    async with working(database, database_url, mail):
        await receiver.wait_for(lambda it: it.counters.received == len(people))
    now = clock.now()
    told = {}
    for event in receiver.events:
        signed = (event.headers["x-service-timestamp"], event.headers["x-service-signature"])
        verdict = signing.verify([secret], timestamp=signed[0], signature=signed[1], body=event.body, now=now)
        assert verdict is None
        body = json.loads(event.body)
        told[body["data"]["message"]["id"]] = body["type"]
    expected = {id: "message.failed" if to == "no@example.com" else "message.delivered" for id, to in ids.items()}
    assert told == expected
    sent = Counter(line.split(" ")[0] for line in mail.lines)
    assert sent == Counter(people) + Counter({"later@example.com": 2})
    assert await database.fetchval("SELECT count(*) FROM queue") == 0


async def test_what_was_lost_is_not_sent_again(database: Pool, database_url: str, mail: Mail) -> None:
    """One whose response never came, and one whose worker ended between its commit and the first byte."""
    actor = await organization(database)
    mail.answers = {"silent@example.com": ["silence"]}
    acceptor = Acceptor(database)
    silent, taken_over = [
        UUID(json.loads((await acceptor.accept(Email(actor, to, "hello"))).body)["id"])
        for to in ("silent@example.com", "lost@example.com")
    ]
    await database.execute(
        "UPDATE queue SET attempt = 1, begun_at = now() - interval '1 hour', target_id = $2, claims = 1,"
        " lease_token = gen_random_uuid(), lease_until = now() - interval '1 minute' WHERE id = $1",
        taken_over,
        email.SERVER,
    )

    async def ended() -> bool:
        # A worker that finds an unfinished attempt waits for a response that may be on its way into the database.
        await database.execute("UPDATE queue SET due_at = now() WHERE kind = 'email' AND lease_until IS NULL")
        rows = await database.fetch("SELECT status FROM email_messages")
        return {row["status"] for row in rows} == {"failed"}

    async with working(database, database_url, mail):
        await until(ended)
    rows = await database.fetch("SELECT message_id, attempt, state FROM attempts ORDER BY attempt")
    assert {tuple(row) for row in rows} == {(silent, 1, "unknown"), (taken_over, 1, "unknown")}
    assert mail.lines == ["silent@example.com hello"]


def test_a_channel_is_small() -> None:
    assert len(Path(email.__file__).read_text().splitlines()) < 300
