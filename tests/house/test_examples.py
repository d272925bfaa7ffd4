"""The documents' examples are run: lines marked `sh run` against a real server and database, and receivers' code.

A block of `json` after such a block shows the answer: it must have the same fields, and values of the same types.
`<!-- keep NAME = path.to.value -->` between them keeps a value of the answer for the lines that follow.
"""

from __future__ import annotations

import asyncio
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from typer.testing import CliRunner

from heliograph.base.clock import iso
from heliograph.base.db import Pool
from heliograph.cli import app
from heliograph.webhooks import signing
from tests.api.conftest import Tenant, make_tenant, running
from tests.house.project import DOCS, Block, blocks, documents
from tests.rules import making_whatsapp

SECRET_KEY = "a secret key for these examples only"


async def shell(text: str, environment: dict[str, str], place: Path) -> str:
    """What a block prints. It must end well."""
    process = await asyncio.create_subprocess_exec(
        "bash",
        "-euo",
        "pipefail",
        "-c",
        text,
        env=environment,
        cwd=place,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(30):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{text}\n{out.decode()}\n{err.decode()}"
    return out.decode()


async def run_document(path: Path, environment: dict[str, str], place: Path) -> int:
    """Run a document's blocks in order; returns how many there were."""
    ran = 0
    listed = blocks(path)
    for number, block in enumerate(listed):
        if block.words != ["sh", "run"]:
            continue
        out = await shell(block.text, environment, place)
        ran += 1
        if number + 1 < len(listed) and shows_its_answer(block, listed[number + 1]):
            answer = msgspec.json.decode(out)
            alike(msgspec.json.decode(listed[number + 1].text), answer, f"{path.name}:{block.line}")
        for name, keys in re.findall(r"<!-- keep (\w+) = ([\w.]+) -->", block.after):
            value = msgspec.json.decode(out)
            for key in keys.split("."):
                value = value[int(key) if key.isdigit() else key]
            environment[name] = value
    return ran


def shows_its_answer(block: Block, following: Block) -> bool:
    return following.words == ["json"] and not re.sub(r"<!--.*?-->", "", block.after).strip()


def alike(shown: Any, answered: Any, at: str) -> None:
    """The same fields, and values of the same types."""
    if isinstance(shown, dict):
        assert isinstance(answered, dict), at
        assert shown.keys() == answered.keys(), at
        for name, value in shown.items():
            alike(value, answered[name], f"{at} {name}")
    elif isinstance(shown, list):
        assert isinstance(answered, list), at
        assert bool(shown) == bool(answered), at
        for value in answered:
            alike(shown[0], value, at)
    else:
        assert type(shown) is type(answered), f"{at}: {shown!r} is shown, {answered!r} came"


async def test_the_api_by_example(database_url: str, pool: Pool, tmp_path: Path) -> None:
    assert shutil.which("curl"), "docs/api.md is made of lines for curl, which is not installed"
    tenant = await make_tenant(pool)
    campaign = await make_whatsapp(pool, tenant)
    async with running(database_url) as api:
        environment = dict(os.environ) | {"BASE": api.base_url, "KEY": tenant.secret, "WHATSAPP_CAMPAIGN": campaign}
        assert await run_document(DOCS / "api.md", environment, tmp_path) >= 9
    recipients = [row[0] for row in await pool.fetch("SELECT recipient FROM messages")]
    assert recipients == ["+258841234567"] * 3


async def make_whatsapp(pool: Pool, tenant: Tenant) -> str:
    """A WhatsApp number that was looked at, and a message that arrived within an open window; returns the id of a
    campaign that has begun."""
    made = await making_whatsapp.made(pool, organization_id=tenant.id)
    await making_whatsapp.conversation(pool, made)
    await making_whatsapp.message(pool, made, status="delivered", queued=False)
    await pool.execute("UPDATE whatsapp_numbers SET messaging_limit = 2000, last_checked_at = now()")
    await pool.execute("UPDATE whatsapp_conversations SET last_outbound_at = now()")
    await pool.execute(
        "UPDATE whatsapp_messages SET client_reference = 'order-1001', sent_at = now(), delivered_at = now()"
    )
    return str(await making_whatsapp.campaign(pool, made))


@pytest.mark.parametrize(("name", "count"), [("operations.md", 10), ("adding-a-supplier.md", 8)])
async def test_commands_by_example(name: str, count: int, database_url: str) -> None:
    """In this process: a process for each command would take most of the time of all these tests."""
    environment = {"HELIOGRAPH_DATABASE_URL": database_url, "HELIOGRAPH_SECRET_KEY": SECRET_KEY}
    ran = 0
    for block in blocks(DOCS / name):
        if block.words != ["sh", "run"]:
            continue
        for line in block.text.splitlines():
            match = re.fullmatch(r"(?:echo (\w+) \| )?heliograph (.*)", line)
            assert match, f"{name}: {line}"
            arguments = shlex.split(match[2])
            done = await asyncio.to_thread(CliRunner().invoke, app, arguments, input=match[1], env=environment)
            assert done.exit_code == 0, f"{line}: {done.output} {done.exception!r}"
            ran += 1
    assert ran == count


async def test_queries_by_example(pool: Pool) -> None:
    queries = [block.text for path in documents() for block in blocks(path) if block.words == ["sql"]]
    assert queries
    for query in queries:
        await pool.fetch(query)


# ── Is a callback genuine? ────────────────────────────────────────────────────────────────────────────────────────

#: (secret, timestamp, signature, body, genuine)
Case = tuple[str, str, str, bytes, bool]


def cases() -> list[Case]:
    secret, other = signing.new_secret(), signing.new_secret()
    body = '{"id":"1","text":"Olá 👋"}\n'.encode()
    now = datetime.now(UTC)
    at, early, late = iso(now), iso(now - timedelta(minutes=6)), iso(now + timedelta(minutes=6))
    good = signing.sign(secret, at, body)
    return [
        (secret, at, good, body, True),
        (
            secret,
            iso(now - timedelta(minutes=4)),
            signing.sign(secret, iso(now - timedelta(minutes=4)), body),
            body,
            True,
        ),
        (secret, at, good, body + b" ", False),
        (other, at, good, body, False),
        (secret, at, good.replace("v1=", "v2="), body, False),
        (secret, at, good[:-1], body, False),
        (secret, at, "", body, False),
        (secret, early, signing.sign(secret, early, body), body, False),
        (secret, late, signing.sign(secret, late, body), body, False),
        (secret, "yesterday-ish", signing.sign(secret, "yesterday-ish", body), body, False),
        (secret, iso(now - timedelta(seconds=1)), good, body, False),
    ]


def code(language: str) -> str:
    (found,) = [
        block.text for block in blocks(DOCS / "webhooks.md") if block.words == [language] and "enuine" in block.text
    ]
    return found


async def judged_by_python(judged: list[Case], place: Path) -> list[bool]:
    space: dict[str, Any] = {}
    exec(code("python"), space)  # noqa: S102 (our own document)
    return [space["is_genuine"](*case[:4]) for case in judged]


async def judged_by_node(judged: list[Case], place: Path) -> list[bool]:
    (place / "cases.json").write_bytes(
        msgspec.json.encode([[secret, at, signature, body.hex()] for secret, at, signature, body, _ in judged])
    )
    (place / "check.js").write_text(
        code("js")
        + 'const cases = JSON.parse(require("node:fs").readFileSync("cases.json"));\n'
        + 'const judge = ([key, at, mark, body]) => isGenuine(key, at, mark, Buffer.from(body, "hex"));\n'
        + "console.log(JSON.stringify(cases.map(judge)));\n"
    )
    answered: list[bool] = msgspec.json.decode(await shell("node check.js", dict(os.environ), place))
    return answered


async def judged_by_shell(judged: list[Case], place: Path) -> list[bool]:
    lines = [code("sh")]
    for number, (secret, at, signature, body, _) in enumerate(judged):
        (place / str(number)).write_bytes(body)
        lines.append(
            f"if is_genuine '{secret}' '{at}' '{signature}' {number} 2>/dev/null; then echo 1; else echo 0; fi"
        )
    return [line == "1" for line in (await shell("\n".join(lines), dict(os.environ), place)).split()]


Judge = Callable[[list[Case], Path], Any]
JUDGES: dict[str, tuple[str, Judge]] = {
    "python": (sys.executable, judged_by_python),
    "node": ("node", judged_by_node),
    "shell": ("openssl", judged_by_shell),
}


@pytest.mark.parametrize("name", [name for name, (needs, _) in JUDGES.items() if shutil.which(needs)])
async def test_receivers_code_tells_what_is_genuine(name: str, tmp_path: Path) -> None:
    judged = cases()
    assert await JUDGES[name][1](judged, tmp_path) == [genuine for *_, genuine in judged]
    standings = [
        signing.verify([secret], timestamp=at, signature=signature, body=body, now=datetime.now(UTC)) is None
        for secret, at, signature, body, _ in judged
    ]
    assert standings == [genuine for *_, genuine in judged]
