"""Developers' commands, which use the API with a key: profiles, listening to and triggering events, requests."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import stat
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import aiohttp
import asyncpg
import pytest

from heliograph import __version__
from heliograph.accounts.api_keys import lifecycle
from heliograph.simulators.receiver import Options, Receiver
from tests.processes import Installation, Program, environment, installation, until, until_true

pytestmark = pytest.mark.lasts(25)

SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
#: What zsh does with completions of the directory `$1`, and with a Tab after `heliograph lis`.
TWO_TABS = """
fpath=($1 $fpath) path=($1 $path)
autoload -Uz compinit && compinit -uD
words=(heliograph lis) CURRENT=2
$_comps[heliograph]
$_comps[heliograph]
"""


class Desk:
    """A user's environment: no settings, no database, a home directory of its own."""

    def __init__(self, made: Installation, test_key: str, home: Path) -> None:
        self.made, self.test_key, self.home = made, test_key, home
        self.environment = environment(XDG_CONFIG_HOME=str(home), HOME=str(home))
        self._count = 0

    async def start(self, *words: str, **more: str) -> Program:
        self._count += 1
        log = self.home / f"{self._count}"
        return await Program.start(*words, log=log, environment=self.environment | more, forked=True)

    async def run(self, *words: str, status: int = 0, **more: str) -> Program:
        program = await self.start(*words, **more)
        assert await program.ended() == status, program.err
        return program

    def position(self) -> int:
        """When a listener last stored its position, in nanoseconds; 0: never."""
        places = self.home.glob("heliograph/listen-*.json")
        return max((place.stat().st_mtime_ns for place in places), default=0)

    async def login(self, profile: str, key: str, *, status: int = 0) -> Program:
        file = self.home / "key"
        file.write_text(f"{key}\n")
        words = ("--url", self.made.base_url, "--key-file", str(file), "--profile", profile, "--json")
        return await self.run("login", *words, status=status)


@pytest.fixture
async def desk(database_url: str, tmp_path: Path) -> AsyncIterator[Desk]:
    home = tmp_path / "home"
    home.mkdir()
    async with installation(database_url, tmp_path) as made:
        conn = await asyncpg.connect(database_url)
        _, key = await lifecycle.issue(conn, made.actor, name="test", profile="full_access", mode="test")
        await conn.close()
        async with made.serving(), made.working():
            yield Desk(made, key, home)


async def test_profiles_are_checked_kept_to_oneself_and_chosen(desk: Desk) -> None:
    told = await desk.run("requests", "list", status=2)
    assert "heliograph login" in told.err
    said = json.loads((await desk.login("live", desk.made.key)).out)
    assert (said["organization"], said["mode"]) == ("Acme", "live")
    await desk.login("test", desk.test_key)
    file = desk.home / "heliograph" / "profiles.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    for wrong in (f"{desk.test_key[:-6]}000000", "hg_live_nonsense"):
        assert "401" in (await desk.login("wrong", wrong, status=1)).err
    assert "not an API key" in (await desk.login("wrong", "nonsense", status=2)).err
    listed = await desk.run("profile", "list", "-o", "tsv")
    rows = [line.split("\t") for line in listed.out.splitlines()]
    assert [(row[0], row[1], row[3]) for row in rows] == [
        ("live", desk.made.base_url, "no"),
        ("test", desk.made.base_url, "yes"),
    ]
    assert desk.test_key not in listed.out
    await desk.run("profile", "use", "live")
    assert json.loads(file.read_text())["current"] == "live"
    assert "live" in (await desk.run("profile", "use", "elsewhere", status=2)).err
    await desk.run("profile", "remove", "live")
    os.chmod(file, 0o644)
    assert "chmod 600" in (await desk.run("profile", "list", status=2)).err


async def test_events_are_triggered_listened_to_and_forwarded(desk: Desk) -> None:
    await desk.login("live", desk.made.key)
    await desk.login("test", desk.test_key)
    receiver = Receiver(Options(secrets=(SECRET,)))
    await receiver.start()
    try:
        words = ("--forward-to", receiver.url, "--secret", SECRET, "--since", "2020-01-01T00:00:00Z", "-o", "json")
        listening = await desk.start("listen", *words)
        await until(lambda: "Listening to" in listening.err)
        told = json.loads((await desk.run("trigger", "message.delivered", "--json")).out)
        (made,) = told
        await until(lambda: made["id"] in {one.message_id for one in receiver.events})
        await until(lambda: "message.delivered" in listening.out)
        # The position is stored after the output, so the next one is after the event.
        shown = desk.position()
        await until(lambda: desk.position() > shown)
        assert await listening.stop(signal.SIGINT) == 0
        printed: list[dict[str, Any]] = [json.loads(line) for line in listening.out.splitlines()]
        (one,) = [one for one in printed if one["event"]["type"] == "message.delivered"]
        assert one["answer"].startswith("200 in ")
        (event,) = [event for event in receiver.events if event.type == "message.delivered"]
        assert (event.problem, json.loads(event.body)) == (None, one["event"])
        # Events that happened meanwhile are there, and those shown before are not shown again.
        await desk.run("trigger", "message.failed")
        again = await desk.start("listen", "--resume", "-o", "tsv")
        await until(lambda: "message.failed" in again.out)
        assert await again.stop(signal.SIGINT) == 0
        assert "message.delivered" not in again.out
    finally:
        await receiver.stop()


async def test_a_receiver_that_is_away_and_an_api_that_comes_back(desk: Desk) -> None:
    await desk.login("test", desk.test_key)
    listening = await desk.start("listen", "--forward-to", "http://127.0.0.1:1/", "-o", "json")
    await until(lambda: "Signing secret of this run: whsec_" in listening.err)
    await desk.run("trigger", "message.delivered")
    await until(lambda: "message.delivered" in listening.out)
    assert "no answer from http://127.0.0.1:1" in json.loads(listening.out.splitlines()[-1])["answer"]
    assert await listening.stop(signal.SIGINT) == 0
    away = await desk.start(
        "listen", "--url", "http://127.0.0.1:1", "--since", "2020-01-01T00:00:00Z", "--profile", "test"
    )
    await until(lambda: "trying again" in away.err)
    assert away.status is None
    assert await away.stop(signal.SIGINT) == 0


async def test_only_test_keys_trigger_and_only_what_can_be(desk: Desk) -> None:
    await desk.login("live", desk.made.key)
    assert "test key" in (await desk.run("trigger", "message.delivered", status=2)).err
    await desk.login("test", desk.test_key)
    assert "message.failed" in (await desk.run("trigger", "message.read", status=2)).err
    assert "no active webhook endpoint" in (await desk.run("trigger", "webhook.test", status=1)).err


async def test_requests_are_listed_shown_and_followed(desk: Desk) -> None:
    await desk.login("test", desk.test_key)
    following = await desk.start("requests", "tail", "--status", "4xx", "-o", "json")
    await until(lambda: "Requests to" in following.err)
    stop, sent = asyncio.Event(), 0

    async def refused() -> None:
        nonlocal sent
        while not stop.is_set():
            sent += 1
            await desk.run(
                "send",
                "--to",
                "+1",
                "--message",
                "x",
                "--url",
                desk.made.base_url,
                status=1,
                HELIOGRAPH_API_KEY=desk.test_key,
            )
            await asyncio.sleep(0.2)  # a list is 200 long

    sending = asyncio.create_task(refused())
    await until(lambda: following.out)
    stop.set()
    await sending
    assert await following.stop(signal.SIGINT) == 0
    one = json.loads(following.out.splitlines()[-1])
    assert (one["status"], one["errorCode"]) == (400, "validation_error")
    listed: list[dict[str, Any]] = []

    async def all_are_listed() -> bool:
        # The log is written after the responses.
        listed[:] = json.loads((await desk.run("requests", "list", "--status", "4xx", "--limit", "200", "--json")).out)
        return len(listed) == sent

    await until_true(all_are_listed)
    assert one["id"] in [other["id"] for other in listed]
    # The log ends with the latest entry, and continues from there.
    newest = listed[0]["requestId"]
    last = (await desk.run("logs", "-n", "1", "-o", "tsv")).out.splitlines()
    assert [entry.split("\t")[-1] for entry in last] == [newest]
    followed = await desk.start("logs", "-f", "-n", "2", "--json")
    await until(lambda: len(followed.out.splitlines()) == 2)
    assert await followed.stop(signal.SIGINT) == 0
    assert [json.loads(entry)["id"] for entry in followed.out.splitlines()] == [listed[1]["id"], listed[0]["id"]]
    for words, fits in (
        (("--status", "400"), True),
        (("--status", "409"), False),
        (("--method", "post", "--path", "/v1/sms/send/"), True),
        (("--path", "/sms"), True),
        (("--path", "/contacts"), False),
        (("--method", "GET"), False),
    ):
        for command in (("logs", "-n", "1"), ("requests", "list", "--limit", "1")):
            lines = (await desk.run(*command, *words, "-o", "tsv")).out.splitlines()
            assert [entry.split("\t")[-1] for entry in lines] == ([newest] if fits else []), words
    assert "4xx" in (await desk.run("logs", "--status", "9xx", status=2)).err
    shown = json.loads((await desk.run("requests", "get", one["id"], "-o", "json")).out)
    assert (shown["id"], "answer" in shown) == (one["id"], True)
    assert "404" in (await desk.run("requests", "get", "01990000-0000-7000-8000-000000000000", status=1)).err
    assert "there is no request order-4711" in (await desk.run("requests", "get", "order-4711", status=1)).err
    # Ids chosen by programs; some proxies write a UUID without hyphens.
    for name in ("order-4711", "5f3c1d0e9b7a4c2d8e6f0a1b2c3d4e5f", "5F3C1D0E-9B7A-4C2D-8E6F-0A1B2C3D4E60"):
        headers = {"Authorization": f"Bearer {desk.test_key}", "Idempotency-Key": name, "X-Request-Id": name}
        async with aiohttp.ClientSession(desk.made.base_url, headers=headers) as session:
            assert (await session.post("/v1/sms/send", json={"to": "+258841230000", "message": "x"})).status == 202
        shown = json.loads((await desk.run("requests", "get", name, "-o", "json")).out)
        assert (shown["requestId"], shown["status"]) == (name, 202)
    shown = json.loads((await desk.run("requests", "get", one["id"].upper(), "-o", "json")).out)
    assert shown["id"] == one["id"]


async def test_version_and_completion(tmp_path: Path) -> None:
    async def run(*words: str, **more: str) -> str:
        log = tmp_path / "-".join(words or ("completed",))
        program = await Program.start(*words, log=log, environment=environment(**more), forked=True)
        assert await program.ended() == 0, program.err
        return program.out

    assert await run("--version") == f"heliograph {__version__}\n"
    for shell in ("bash", "zsh", "fish"):
        script = await run("completion", shell)
        assert "_HELIOGRAPH_COMPLETE" in script
        assert ('_heliograph_completion "$@"' in script) == (shell == "zsh")  # see the test with a zsh
    told = {"_HELIOGRAPH_COMPLETE": "complete_bash", "COMP_WORDS": "heliograph lis", "COMP_CWORD": "1"}
    assert (await run(**told)).split() == ["listen"]
    told |= {"COMP_WORDS": "heliograph requests ta", "COMP_CWORD": "2"}
    assert (await run(**told)).split()[-1] == "tail"


@pytest.mark.skipif(shutil.which("zsh") is None, reason="zsh is not here")
async def test_the_first_tab_of_a_zsh_completes_like_any_other(tmp_path: Path) -> None:
    """The file is loaded at the first Tab, and has to complete that one, not only define how."""
    words = ("completion", "zsh")
    program = await Program.start(*words, log=tmp_path / "log", environment=environment(), forked=True)
    assert await program.ended() == 0, program.err
    (tmp_path / "_heliograph").write_text(program.out)
    called = tmp_path / "heliograph"
    called.write_text('#!/bin/sh\necho "print completed $_TYPER_COMPLETE_ARGS"\n')
    called.chmod(0o700)
    zsh = await asyncio.create_subprocess_exec(
        *("zsh", "-fc", TWO_TABS, "zsh", tmp_path), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    assert (await zsh.communicate())[0].decode().splitlines() == ["completed heliograph lis"] * 2


async def test_the_guide_stands_alone(tmp_path: Path) -> None:
    """No settings, no database: one command, and a browser shows everything, including the API reference."""
    home = environment(HOME=str(tmp_path))
    words = ("guide", "--port", "0", "--json")
    program = await Program.start(*words, log=tmp_path / "guide", environment=home, forked=True)
    await until(lambda: program.out.endswith("\n"))
    url = json.loads(program.out)["url"]
    async with aiohttp.ClientSession() as session:
        for path in ("/", "/guide", "/docs", "/docs/errors/quota_exceeded", "/guide/search?q=webhooks"):
            async with session.get(urljoin(url, path)) as answer:
                assert (answer.status, answer.content_type) == (200, "text/html"), path
                assert answer.url.path == path.partition("?")[0] if path != "/" else answer.url.path == "/guide"
        async with session.get(urljoin(url, "/v1/openapi.json")) as answer:
            assert "/sms/send" in "".join((await answer.json())["paths"])
    # It does not share an address that somebody else serves.
    again = await Program.start(
        *("guide", "--port", str(urlsplit(url).port)), log=tmp_path / "again", environment=home, forked=True
    )
    assert await again.ended() == 1
    assert "Address already in use" in again.err
    assert await program.stop(signal.SIGTERM) == 0


async def test_any_operation_is_called_by_name_or_path(desk: Desk) -> None:
    await desk.login("live", desk.made.key)
    account = json.loads((await desk.run("call", "getAccountSummary")).out)
    assert account["success"] is True
    for n in range(3):
        made = await desk.run("call", "createContact", f"phone=+25884123456{n}", "name=Ana", 'tags:=["vip"]')
    contact = json.loads(made.out)["contact"]
    once = ("call", "createContact", "phone=+258841234588", "name=Eva", "--idempotency-key", "eva-1")
    assert (await desk.run(*once)).out == (await desk.run(*once)).out
    once = ("call", "changeContact", f"contactId={contact['id']}", "name=Bea", "--idempotency-key", "bea-1")
    assert (await desk.run(*once)).out == (await desk.run(*once)).out
    changed = await desk.run("call", "changeContact", f"contactId={contact['id']}", "name=Bia")
    assert json.loads(changed.out)["contact"]["name"] == "Bia"
    listed = await desk.run("call", "/v1/contacts?limit=2", "tag=vip", "--all")
    assert sorted(json.loads(line)["phone"][-1] for line in listed.out.splitlines()) == ["0", "1", "2"]
    unwritten = await desk.run("call", "listContacts", "not_written_days=1", "limit=2")
    assert len(json.loads(unwritten.out)["items"]) == 2
    body = desk.home / "body.json"
    body.write_text("\ufeff" + json.dumps({"phone": "+258841234599", "name": "Carla"}))  # as some editors save it
    assert json.loads((await desk.run("call", "/contacts", "-X", "POST", "-d", f"@{body}")).out)["success"] is True
    await desk.run("call", "deleteContact", f"id={contact['id']}")
    wrongs = {
        ("call", "createContacts"): (2, "did you mean createContact"),
        ("call", "changeContact", "name=x"): (2, "needs contactId="),
        ("call", "listContacts", "tagg=vip"): (2, "has no parameter 'tagg'; did you mean tag?"),
        ("call", "getAccountSummary", "tag=vip"): (2, "has no parameter 'tag'"),
        ("call", "createContact", "phone"): (2, "NAME=VALUE"),
        ("call", "createContact", "tags:=[vip"): (2, "tags:"),
        ("call", "/contacts", "-d", "@/nowhere"): (2, "--data"),
        ("call", "createContact", "-d", '{"name": "x"}', "phone=+258841234560"): (2, "move phone into it"),
        ("call", "/campaigns", "-X", "POST", "-d", "{}", "scheduled_at=x"): (2, "move scheduled_at into it"),
        ("call", "listSmsMessages", "status=sent", "status=failed"): (2, "status is given twice"),
        ("call", "/contacts?limit=1", "limit=2"): (2, "limit is given twice"),
        ("call", "/contacts?tag="): (1, "`tag` must not be empty"),
        ("call", "getAccountSummary", "--all"): (2, "no items"),
        ("call", "getAccountSummary", "--idempotency-key", "x"): (2, "for requests that change something"),
        ("call", "createContact", "--idempotency-key", "a b"): (2, "ASCII without spaces"),
        ("call", "createContact", "phone=12", "name=x"): (1, "400 validation_error"),
    }
    for words, (status, said) in wrongs.items():
        assert said in (await desk.run(*words, status=status)).err, words
