"""The documents' examples are run: commands to paste, on a fresh `heliograph up`, and receivers' code.

A block of shell is marked `sh run`, or `sh outside: ` and why it needs what no test has. A block of `json` after one
shows the response: it must have the same fields, and values of the same types. `<!-- until /path -->` waits until the
list at that path is not empty, because the test is faster than a reader; `<!-- until /path text -->`, until the
response contains that text.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import shutil
import sys
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
import pytest

from heliograph.base.database.clock import iso
from heliograph.base.database.pool import Pool
from heliograph.simulators.receiver import Options as ReceiverOptions
from heliograph.simulators.receiver import Receiver
from heliograph.webhooks.delivery import signing
from tests import forks
from tests.fork_server import standing_for
from tests.house.project import DOCS, ROOT, Block, blocks, documents
from tests.up import up


async def shell(text: str, environment: dict[str, str], place: Path) -> str:
    """A block's output. It must succeed."""
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
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode == 0, f"{text}\n{out.decode()}\n{err.decode()}"
    return out.decode()


class Shell:
    """A shell into which a document's lines are pasted, one block after the other, as a reader would.

    It records every command that fails and continues, also within `$(…)` and functions, except for conditions, as after
    `if` and before `&&`.
    """

    def __init__(self, process: asyncio.subprocess.Process, notes: Path) -> None:
        self._process = process
        self._notes = notes

    @staticmethod
    async def open(environment: dict[str, str], place: Path) -> Shell:
        notes = place / "failed commands"
        process = await asyncio.create_subprocess_exec(
            "bash",
            "-o",
            "pipefail",
            env=environment,
            cwd=place,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=2**24,
        )
        assert process.stdin is not None
        note = f"""printf '%d: %s\\n' $? "$BASH_COMMAND" >> {shlex.quote(str(notes))}"""
        process.stdin.write(f"set -o errtrace; trap {shlex.quote(note)} ERR\n".encode())
        return Shell(process, notes)

    async def paste(self, text: str) -> str:
        """A block's output. Every line must succeed, and no value may be extracted from where there is none."""
        self._notes.write_text("")
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        mark = uuid4().hex
        self._process.stdin.write(f"{{ {text.rstrip()}\n}} < /dev/null; printf '\\n%s %d\\n' {mark} $?\n".encode())
        async with asyncio.timeout(180):
            out = (await self._process.stdout.readuntil(f"{mark} ".encode())).decode()
            status = (await self._process.stdout.readline()).decode().strip()
        printed = out.removesuffix(f"{mark} ").rstrip("\n")
        failed = self._notes.read_text()
        assert (status, failed) == ("0", ""), f"{failed}\n{text}\n{printed}"
        assert "Traceback" not in printed, f"{text}\n{printed}"
        return printed

    async def close(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        await self._process.wait()


async def run_document(path: Path, shell: Shell, ports: dict[str, str], wrong: list[str]) -> int:
    """Paste a document's blocks in order; returns their number. `ports`: replacements for addresses in it.

    Errors are added to `wrong`, and the next block follows: someone who corrects a document wants to see all of them.
    """
    ran = 0
    listed = blocks(path)
    for number, block in enumerate(listed):
        if block.words[:2] != ["sh", "run"]:
            continue
        text = block.text
        for shown, real in ports.items():
            text = text.replace(shown, real)
        ran += 1
        at = f"{path.name}:{block.line}"
        try:
            out = await shell.paste(text)
            after = block.after
            if number + 1 < len(listed) and shows_its_answer(block, listed[number + 1]):
                alike(msgspec.json.decode(listed[number + 1].text), msgspec.json.decode(out), at)
                after += listed[number + 1].after
            else:
                assert '"success":false' not in out, out
            for where, what in re.findall(r"<!-- until (\S+)(?: (\S+))? -->", after):
                await shell.paste(UNTIL.format(where, what or '"items":[{'))
        except (AssertionError, msgspec.DecodeError) as error:
            wrong.append(f"{at}: {error}")
    return ran


#: A reader takes longer than the simulators do; this waits for them.
UNTIL = """for try in $(seq 300); do
  curl -sS "$BASE/v1{}" -H "Authorization: Bearer $KEY" | grep -cF '{}' > /dev/null && break
  sleep 0.1
done
[ $try -lt 300 ]
"""


def shows_its_answer(block: Block, following: Block) -> bool:
    return following.words == ["json"] and not re.sub(r"<!--.*?-->", "", block.after).strip()


def alike(shown: Any, answered: Any, at: str) -> None:
    """The same fields, and values of the same types."""
    if isinstance(shown, dict):
        assert isinstance(answered, dict), at
        assert shown.keys() == answered.keys(), at
        for name, value in shown.items():
            alike(value, answered[name], f"{at} {name}")
    elif at.endswith(("At", "_at", "statusReason")) and None in (shown, answered):
        pass  # a step that had not happened yet in one, and had in the other; what a status waited for
    elif isinstance(shown, list):
        assert isinstance(answered, list), at
        assert bool(shown) == bool(answered), at
        for value in answered:
            alike(shown[0], value, at)
    else:
        assert type(shown) is type(answered), f"{at}: {shown!r} is shown, {answered!r} came"


#: Documents to paste from, in an order in which a reader may go through them.
READ_IN_ORDER = (
    *("api.md", "webhooks.md", "whatsapp.md", "operations.md", "people.md", "installing.md", "organizations.md"),
    *("suppliers.md", "privacy.md", "backup.md", "whatsapp-accounts.md", "guard.md", "adding-a-supplier.md"),
    *("routing.md", "senders.md"),
)


def can_be_pasted(path: Path) -> bool:
    """Whether a document has lines that a test pastes."""
    return any(block.words[:2] == ["sh", "run"] for block in blocks(path))


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Receiver]:
    """A receiver of webhooks."""
    receiver = Receiver(ReceiverOptions())
    await receiver.start()
    try:
        yield receiver
    finally:
        await receiver.stop()


@pytest.mark.timeout(900)
@pytest.mark.lasts(60)
async def test_every_line_of_the_documents_works_on_a_fresh_start(public_place: Path, tmp_path: Path) -> None:
    """`make run` on a new data directory; then everything that can be pasted, document by document."""
    assert shutil.which("curl"), "the documents are made of lines for curl, which is not installed"
    home = public_place / "home"
    home.mkdir()
    # Its data directory is not the one that commands find by themselves; a list of backups needs none.
    given = f'[ "$1 $2" = "backup list" ] || set -- "$@" --data-dir "{home / "data"}"'
    command = f'exec {shlex.join(standing_for(forks.address()))} "$@"'
    (tmp_path / "heliograph").write_text(f"#!/bin/sh\n{given}\n{command}\n")
    (tmp_path / "heliograph").chmod(0o755)
    async with up(home) as running, listening() as receiver:
        environment = {name: value for name, value in os.environ.items() if not name.startswith("HELIOGRAPH_")} | {
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "CREDENTIALS": str(home / "data" / "credentials.json"),
        }
        graph = running.credentials["whatsapp"]
        ports = {
            "http://127.0.0.1:9000/": receiver.url,
            "http://127.0.0.1:8090": f"http://{graph['host']}:{graph['port']}",
        }
        wrong: list[str] = []
        session = await Shell.open(environment, tmp_path)
        try:
            ran = {name: await run_document(DOCS / name, session, ports, wrong) for name in READ_IN_ORDER}
        finally:
            await session.close()
    assert wrong == [], "\n\n".join(wrong)
    assert all(ran.values()), ran
    assert set(READ_IN_ORDER) == {path.name for path in documents() if can_be_pasted(path)}


@pytest.mark.parametrize(
    ("text", "failed"),
    [
        ("true\necho done", []),
        ("ls there-is-none\necho done", ["ls there-is-none"]),
        ("ls there-is-none | sed -n 1p\necho done", ["sed -n 1p"]),
        ("found=$(ls there-is-none)\necho done", ["ls there-is-none"]),
        ("look() {\n  ls there-is-none\n  echo done\n}\nlook", ["ls there-is-none"]),
        ("if ls there-is-none; then echo done; fi\n! false", []),
        ("false", ["false"]),
    ],
)
async def test_a_line_that_fails_before_the_last_is_found(text: str, failed: list[str], tmp_path: Path) -> None:
    session = await Shell.open(dict(os.environ), tmp_path)
    try:
        if not failed:
            await session.paste(text)
        for command in failed:
            with pytest.raises(AssertionError, match=rf"^[1-9]\d*: {re.escape(command)}\n"):
                await session.paste(text)
        assert await session.paste("echo well") == "well", "what failed before does not count again"
    finally:
        await session.close()


def test_a_block_of_shell_says_whether_it_can_be_pasted() -> None:
    """`sh run`: a test runs it. `sh outside: why`: it needs what no test has. There is no third kind."""
    unclear = [
        f"{path.name}:{block.line}"
        for path in documents()
        for block in blocks(path)
        if block.words[:1] == ["sh"]
        and block.words != ["sh", "run"]
        and not (block.words[1:2] == ["outside:"] and len(block.words) > 3)
    ]
    assert unclear == [], "write `sh run`, or `sh outside: ` and why"


async def test_queries_by_example(pool: Pool) -> None:
    queries = [block.text for path in documents() for block in blocks(path) if block.words == ["sql"]]
    assert queries
    for query in queries:
        await pool.execute(query)


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
        block.text for block in blocks(DOCS / "webhooks.md") if block.words[:1] == [language] and "enuine" in block.text
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
