"""The simulators of `heliograph up` keep their ports, whoever else wants them."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from tests.load import Client
from tests.processes import until, until_true
from tests.up import Up, up

TEMPLATE = {
    "name": "appointment_reminder",
    "language": "en",
    "category": "utility",
    "parameters": ["Ana", "Thursday"],
}


@pytest.mark.lasts(22)
async def test_nobody_else_gets_a_simulators_port(public_place: Path, empty_database_url: str) -> None:
    """Whoever took it before the simulator listened, at the start or after it was killed, kept it out forever."""
    data = public_place / "data"
    given = {"HELIOGRAPH_DATABASE_URL": empty_database_url}
    async with thief(data, "smsc") as smsc, thief(data, "whatsapp") as whatsapp:
        async with up(public_place, **given) as first, Client(first.url, first.credentials["live_key"]) as client:
            await carried(client, first, 1)
            for name in ("smsc", "graph"):
                await first.killed(name)
            await carried(client, first, 2)
            assert (smsc, whatsapp) == ([], [])
            await first.stopped(signal.SIGTERM)
        await until(lambda: smsc and whatsapp)
        assert [*smsc, *whatsapp] == simulators(first)
        async with up(public_place, **given) as second, Client(second.url, second.credentials["live_key"]) as client:
            assert not set(simulators(second)) & set(simulators(first))
            await carried(client, second, 3)
            await second.stopped(signal.SIGTERM)


def simulators(ran: Up) -> list[int]:
    """The simulators' ports."""
    return [ran.credentials[name]["port"] for name in ("smsc", "whatsapp")]


@contextlib.asynccontextmanager
async def thief(data: Path, name: str) -> AsyncIterator[list[int]]:
    """Tries again and again to listen on a simulator's port, from the moment that it is written down. Yields a list
    that gets the port once that has succeeded."""
    got: list[int] = []

    async def steal() -> None:
        while True:
            for file in (data / "credentials.starting.json", data / "credentials.json"):
                with contextlib.suppress(OSError):
                    port = msgspec.json.decode(file.read_bytes())[name]["port"]
                    with socket.create_server(("127.0.0.1", port)):
                        got.append(port)
                        await asyncio.Event().wait()
            await asyncio.sleep(0.01)

    stealing = asyncio.create_task(steal())
    try:
        yield got
    finally:
        stealing.cancel()
        await asyncio.gather(stealing, return_exceptions=True)


async def carried(client: Client, ran: Up, number: int) -> None:
    """Send a message to each simulator, and wait until it is delivered."""
    to, from_ = f"+25884123{number:04d}", ran.credentials["whatsapp"]["phone_number_id"]
    sms = await client.send(to)
    body = {"type": "template", "to": to, "phoneNumberId": from_, "template": TEMPLATE}
    whatsapp = await client.send_until_accepted("/whatsapp/messages", f"{to} by WhatsApp", body)

    async def ended() -> bool:
        found = [await client.ask("GET", path) for path in (f"/sms/messages/{sms}", f"/whatsapp/messages/{whatsapp}")]
        return [body["message"]["status"] for _, body in found] == ["delivered", "read"]

    await until_true(ended)
