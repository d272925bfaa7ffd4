"""The supplier that docs/adding-a-supplier.md walks the reader through works, with its module and its test."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from heliograph.base.database.pool import Pool
from heliograph.http.heads import RequestHead
from heliograph.simulators.aggregators import profiles
from heliograph.simulators.aggregators.profiles import Post, Profile, SubmittedMessage
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.simulators.http import Reply
from heliograph.sms.accepting import sender_ids
from heliograph.sms.callbacks import addresses
from heliograph.sms.dispatch import suppliers
from heliograph.suppliers.http import by_name
from tests.house.project import DOCS, ROOT, blocks
from tests.processes import Program, installation, until_true

#: Lines that a supplier may take.
MOST = 150
KEY, SIGNING_KEY = "a key of the account", "a key for signatures"
NUMBER = "258840000001"
TEXT = "Olá, “preço” & mais"


def _written(name: str) -> str:
    """A file that the page shows."""
    (found,) = [one.text for one in blocks(DOCS / "adding-a-supplier.md") if one.words[1:] == [name]]
    return found


# -- Kestrel, as its documentation describes it ------------------------------------------------------------------------


def _reply(status: int, content: Any) -> Reply:
    return Reply(status, json.dumps(content).encode())


def _error(status: int, code: str) -> Reply:
    return _reply(status, {"error": {"code": code, "message": "No."}})


def _read(head: RequestHead, body: bytes, secret: str) -> SubmittedMessage | None:
    if head.path != "/v1/sms" or dict(head.headers).get(b"authorization") != f"Bearer {secret}".encode():
        return None
    one = json.loads(body)
    return SubmittedMessage(one["to"].removeprefix("+"), one["from"], one["text"], one.get("callback", ""))


def _event(url: str, **one: str) -> Post:
    return Post(url, json.dumps({"events": [one]}).encode(), {"Content-Type": "application/json"})


def _sign(post: Post, secret: str) -> Post:
    # It signs with a key of its own; a test gives another one to forge a signature.
    key = SIGNING_KEY if secret == KEY else secret
    signature = hmac.new(key.encode(), post.body, hashlib.sha256).hexdigest()
    return msgspec.structs.replace(post, headers={**post.headers, "X-Kestrel-Signature": signature})


KESTREL = Profile(
    name="kestrel",
    read=_read,
    accepted=lambda asked, id: _reply(202, {"id": id}),
    refused=lambda asked: _error(422, "invalid_number"),
    throttled=lambda asked: _error(429, "too_fast"),
    busy=lambda asked: _error(503, "busy"),
    unauthorized=_error(401, "bad_key"),
    receipt=lambda url, asked, id, state: _event(url, type="status", id=id, to=f"+{asked.to}", status=state),
    inbound=lambda url, sender, recipient, text, id: _event(
        url, type="message", id=id, **{"from": f"+{sender}", "to": recipient, "text": text}
    ),
    sign=_sign,
)

# ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The product with the page's file in it: links to everything that exists, and one additional file."""
    place = tmp_path / "tree"
    shutil.copytree(ROOT / "heliograph", place / "heliograph", copy_function=os.symlink)
    (place / "heliograph" / "suppliers" / "http" / "by_name" / "kestrel.py").write_text(_written("kestrel.py"))
    (place / "test_kestrel.py").write_text(_written("test_kestrel.py"))
    return place


async def _run(tree: Path, *arguments: str, environment: dict[str, str], stdin: str = "") -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", *arguments),
        env=environment | {"PYTHONPATH": str(tree)},
        cwd=tree,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    out, _ = await process.communicate(stdin.encode())
    assert process.returncode is not None
    return process.returncode, out.decode()


def test_a_supplier_is_a_short_file() -> None:
    lines = {one.name: len(one.read_text().splitlines()) for one in Path(by_name.__path__[0]).glob("*.py")}
    assert len(lines) > 5
    assert {name: number for name, number in lines.items() if number >= MOST} == {}


async def test_the_file_is_short_and_its_test_holds(tree: Path) -> None:
    assert len(_written("kestrel.py").splitlines()) < MOST
    status, out = await _run(
        tree, "pytest", "-q", "-p", "no:cacheprovider", "test_kestrel.py", environment=dict(os.environ)
    )
    assert (status, "7 passed" in out) == (0, True), out


async def test_it_carries_messages_the_whole_way(
    tree: Path, database_url: str, pool: Pool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(profiles.PROFILES, "kestrel", KESTREL)  # type: ignore[arg-type]
    fates = {
        "+258841230000": "delivered",
        "+258841230001": "undelivered",
        "+258841230100": "rejected",
        "+258841230101": "delivered",  # throttled first
        "+258841230103": "delivered",  # its response was lost, and its receipt was matched
        "+258841230104": "delivered",  # its receipt came before the response
        "+258841230105": "delivered",  # its receipt came twice
    }
    async with installation(database_url, tmp_path, HELIOGRAPH_UNCERTAIN_GRACE_SECONDS="5") as made:
        environment = made.environment | {"HELIOGRAPH_PUBLIC_URL": made.base_url, "PYTHONPATH": str(tree)}
        settings = msgspec.structs.replace(made.settings, public_url=made.base_url)
        async with pool.acquire() as conn:
            await suppliers.set_state(conn, supplier="main", state="removed")
            number = await sender_ids.request(conn, made.actor, value=NUMBER)
            await sender_ids.review(conn, made.actor, id=number.id, status="approved")
        supplier = Aggregator(Options(profile="kestrel", secret=KEY))
        await supplier.start()
        programs: list[Program] = []
        try:
            status, out = await _run(
                tree,
                *("heliograph", "supplier", "add", "kestrel", "birds", "--base-url", supplier.base_url),
                *("--signing-key", SIGNING_KEY),
                environment=environment,
                stdin=f"{KEY}\n",
            )
            assert status == 0, out
            id = await pool.fetchval("SELECT id FROM suppliers WHERE name = 'birds'")
            callback = addresses.address(settings, id)
            supplier.options = msgspec.structs.replace(supplier.options, callback=callback)
            for name, *arguments in (("api", "--json", "--port", str(made.port)), ("worker", "--json")):
                log = tmp_path / f"kestrel-{name}"
                # A program's own directory is the first in which modules are looked for.
                there = ("env", "-C", str(tree))
                programs.append(await Program.start(name, *arguments, log=log, environment=environment, through=there))
            for program in programs:
                await program.ready()
            async with aiohttp.ClientSession(headers={"authorization": f"Bearer {made.key}"}) as http:
                ids = {to: await _send(http, made.base_url, to) for to in fates}
                for to, wanted in fates.items():
                    await until_true(lambda to=to, wanted=wanted: _is(pool, ids[to], wanted))
            assert {taken.submitted.text for taken in supplier.taken} == {TEXT}
            assert sorted(taken.submitted.to for taken in supplier.taken) == sorted(
                to[1:] for to, wanted in fates.items() if wanted != "rejected"
            )
            for text, key, answer in (("STOP", None, 200), ("STOP", "another key", 403)):
                given = await supplier.write(sender="258841230000", recipient=NUMBER, text=text, secret=key)
                assert given == answer

            async def is_out() -> bool:
                return await pool.fetchval("SELECT count(*) FROM opt_outs") == 1

            await until_true(is_out)
        finally:
            for program in programs:
                await program.kill()
            await supplier.stop()


async def _send(http: aiohttp.ClientSession, url: str, to: str) -> str:
    body, headers = {"to": to, "message": TEXT}, {"idempotency-key": to}
    async with http.post(f"{url}/v1/sms/send", json=body, headers=headers) as answer:
        assert answer.status == 202, await answer.text()
        id: str = (await answer.json())["message"]["id"]
        return id


async def _is(pool: Pool, id: str, wanted: str) -> bool:
    return bool(await pool.fetchval("SELECT status = $2 FROM messages WHERE id = $1", id, wanted))
