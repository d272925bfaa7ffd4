"""How commands that use the API handle servers that are down, of another kind or overloaded, and input that no request
can contain.

The server responds as told; nothing here needs a database. It has over 400 lines because every command is tried against
this one server.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from typer.testing import CliRunner

from heliograph.cli import app
from heliograph.webhooks.recording.events import KINDS
from tests.processes import Program, environment, until

KEY = "hg_test_0123456789abcdef"
NOW = "2027-01-31T12:00:00.000Z"
ACCOUNT = {"account": {"organization": {"name": "Acme"}}}
NOWHERE = "http://127.0.0.1:1"
HTML = (502, b"<html>Bad Gateway</html>", {})

Answer = tuple[int, bytes, dict[str, str]]


def answer(body: Any, status: int = 200, **headers: str) -> Answer:
    return status, json.dumps(body).encode(), headers


class Server:
    """Responds as `says` tells it, and records the requests: method, path with query, and headers."""

    def __init__(self, says: Callable[[str, dict[str, str]], Answer]) -> None:
        self.says, self.asked = says, list[tuple[str, str, dict[str, str]]]()
        self.bodies: list[bytes] = []
        self.url = ""

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
        method, target, _ = first.split(" ")
        headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.asked.append((method, target, headers))
        self.bodies.append(await reader.readexactly(int(headers.get("content-length", 0))))
        status, body, more = self.says(urlsplit(target).path, dict(parse_qsl(urlsplit(target).query)))
        head = "".join(f"{name}: {value}\r\n" for name, value in more.items())
        writer.write(f"HTTP/1.1 {status} x\r\n{head}content-length: {len(body)}\r\n\r\n".encode() + body)
        writer.close()


class Shell:
    """A user's environment, with a home directory of its own, and a server."""

    def __init__(self, home: Path, server: Server) -> None:
        self.home, self.server = home, server
        self._environment = environment(XDG_CONFIG_HOME=str(home), HOME=str(home), XDG_DATA_HOME=str(home))
        self._count = itertools.count()

    async def start(self, *words: str, **more: str) -> Program:
        log = self.home / f"{next(self._count)}"
        return await Program.start(*words, log=log, environment=self._environment | more, forked=True)

    async def run(self, *words: str, status: int = 0, **more: str) -> Program:
        program = await self.start(*words, **more)
        assert await program.ended() == status, (words, program.err)
        assert "Traceback" not in program.err, program.err
        assert "Errno" not in program.err, program.err
        return program

    def profiles(self) -> dict[str, Any]:
        file = self.home / "heliograph" / "profiles.json"
        return dict(json.loads(file.read_text())) if file.exists() else {}


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Shell]:
    server = Server(lambda path, query: answer(ACCOUNT))
    async with await asyncio.start_server(server, "127.0.0.1", 0) as listening:
        server.url = "http://{}:{}".format(*listening.sockets[0].getsockname())
        yield Shell(tmp_path, server)


async def test_a_login_is_checked_before_it_is_kept(shell: Shell) -> None:
    file = shell.home / "key"
    file.write_text(f"\ufeff{KEY}\r\n")  # as some editors save it
    words = ("login", "--key-file", str(file))
    refused = {"error": {"code": "organization_suspended", "message": "Suspended."}}
    for said, told, status in (
        (answer({"hello": "world"}), "does not respond like a Heliograph server", 1),
        (answer([]), "does not respond like a Heliograph server", 1),
        (answer({"account": None}), "does not respond like a Heliograph server", 1),
        ((200, b"", {}), "does not respond like a Heliograph server", 1),
        ((403, b"<html>", {}), "does not respond like a Heliograph server", 1),
        ((301, b"<html>", {"Location": "https://sms.example.com/"}), "redirects to https://sms.example.com/: give", 1),
        ((308, b"", {"Location": "https://sms.example.com/"}), "redirects to https://sms.example.com/: give", 1),
        (answer({"message": "Forbidden"}, 403), "does not respond like a Heliograph server", 1),
        (answer({"error": {"code": "forbidden"}}, 403), "does not respond like a Heliograph server", 1),
        (answer(refused, 403), "organization_suspended", 1),
        (HTML, "does not respond like a Heliograph server", 3),
    ):
        shell.server.says = lambda path, query, said=said: said  # type: ignore[misc]
        assert told in (await shell.run(*words, "--url", shell.server.url, status=status)).err, said
    assert "--profile" in (await shell.run(*words, "--profile", " ", "--url", shell.server.url, status=2)).err
    assert shell.profiles() == {}
    # A key without the scope for the account is still valid.
    scope = {"error": {"code": "api_key_scope_required", "message": "x"}}
    shell.server.says = lambda path, query: answer(scope, 403)
    await shell.run(*words, "--profile", "one", "--url", shell.server.url)
    # A profile keeps its URL.
    shell.server.says = lambda path, query: answer(ACCOUNT)
    assert "Acme" in (await shell.run(*words, "--profile", "one")).out
    assert shell.profiles()["profiles"]["one"]["url"] == shell.server.url
    await shell.run("login", "--key-file", str(file), "--profile", "two", "--url", shell.server.url)
    # What the next command would not use is told, such as the test key after a live one.
    wins = "wins over the current profile: unset it, or give --profile one"
    for variable, other, is_told in (
        ("HELIOGRAPH_PROFILE", "two", True),
        ("HELIOGRAPH_PROFILE", "one", False),
        ("HELIOGRAPH_API_KEY", KEY, True),
    ):
        used = await shell.run("profile", "use", "one", **{variable: other})
        again = await shell.run(*words, "--profile", "one", **{variable: other})
        assert [wins in one.err for one in (used, again)] == [is_told, is_told], variable
        assert KEY not in used.err
    await shell.run("profile", "use", "two")
    await shell.run("profile", "remove", "two")
    told = (await shell.run("logs", status=2)).err
    assert "heliograph profile use" in told
    assert "one" in told


async def test_a_key_is_stripped_checked_and_never_shown(shell: Shell) -> None:
    shell.server.says = lambda path, query: answer({"items": [], "nextCursor": None, "hasMore": False})
    for given in (f"{KEY}\r", f"  {KEY}\n"):
        told = await shell.run("logs", "--url", shell.server.url, HELIOGRAPH_API_KEY=given)
        assert told.err == "Nothing to show.\n"
        assert shell.server.asked[-1][2]["authorization"] == f"Bearer {KEY}"
    for given in (f"{KEY}\n{KEY}", f"{KEY}é", f"{KEY} x", " "):
        for command in (("logs",), ("send", "--to", "+258840000000", "--message", "x"), ("listen",)):
            told = await shell.run(*command, "--url", shell.server.url, "--key", given, status=2)
            assert "API key" in told.err
            assert KEY not in told.err


async def test_where_a_key_goes(shell: Shell) -> None:
    """A key given without a profile may be another installation's: it is not sent to the profile's server."""
    file = shell.home / "key"
    file.write_text(KEY)
    await shell.run("login", "--key-file", str(file), "--url", shell.server.url)
    sent = {"message": {"id": "019c", "clientReference": None}, "status": "accepted", "remainingQuota": 1}
    shell.server.says = lambda path, query: answer(sent, 202)
    words = ("send", "--to", "+258840000000", "--message", "x")
    await shell.run(*words)
    await shell.run(*words, "--profile", "default", "--key", "hg_test_other")
    # A key in the environment may be live: a named profile uses its own key.
    await shell.run("send", "--profile", "default", *words[1:], HELIOGRAPH_API_KEY="hg_live_other")
    await shell.run(*words, "--profile", "default", HELIOGRAPH_API_KEY="hg_live_other")
    asked = [one[2]["authorization"] for one in shell.server.asked[1:]]
    assert asked == [f"Bearer {KEY}", "Bearer hg_test_other", f"Bearer {KEY}", f"Bearer {KEY}"]
    # If `up` was never started: this machine's default port, or the one that its data directory names.
    (shell.home / "directory").mkdir()
    for command in (("logs",), words):
        told = await shell.run(*command, "--data-dir", "/nowhere/at/all", status=2)
        assert "the data directory /nowhere/at/all does not exist" in told.err
    assert len(shell.server.asked) == 5
    for help in ("logs", "login", "listen", "trigger", "call", "send"):
        assert "whose URL to use" in " ".join((await shell.run(help, "--help")).out.split())


async def test_a_send_is_waited_for_through_the_api(shell: Shell) -> None:
    statuses = iter(["accepted", "sent", "undelivered"])
    sent = {"message": {"id": "019c", "clientReference": None}, "status": "accepted", "remainingQuota": 1}

    def says(path: str, query: dict[str, str]) -> Answer:
        if path == "/v1/sms/send":
            return answer(sent, 202)
        if path == "/v1/sms/messages":
            return answer({"items": [], "nextCursor": None, "hasMore": False})
        assert path == "/v1/sms/messages/019c"
        status = next(statuses)
        if status == "revoked":
            return answer({"error": {"code": "unauthorized", "message": "No."}}, 401)
        return HTML if status == "sent" else answer({"message": {"status": status}})

    shell.server.says = says
    words = ("send", "--to", "+258840000000", "--message", "x", "--url", shell.server.url, "--key", KEY)
    done = await shell.run(*words, "--wait", "--json", "--idempotency-key", "k-1", status=1)
    assert json.loads(done.out)["status"] == "undelivered"
    (posted,) = [one for one in shell.server.asked if one[0] == "POST"]
    assert posted[2]["idempotency-key"] == "k-1"
    # What was accepted is printed even if its outcome is not known in time.
    statuses = iter(["accepted"])
    late = await shell.run(*words, "--wait", "--timeout", "0", "--json", status=1)
    assert (json.loads(late.out)["id"], json.loads(late.out)["status"]) == ("019c", "accepted")
    assert "message 019c is still accepted after 0 s" in late.err
    # Or if the key is revoked meanwhile.
    statuses = iter(["accepted", "revoked"])
    lost = await shell.run(*words, "--wait", "--json", status=1)
    assert (json.loads(lost.out)["id"], json.loads(lost.out)["status"]) == ("019c", "accepted")
    assert "401 unauthorized" in lost.err
    # What another server sends, although its fields are called as ours are.
    shell.server.says = lambda path, query: answer(sent | {"message": 5}, 202)
    assert "does not respond like a Heliograph server" in (await shell.run(*words, status=1)).err
    # A refusal names the command's own options.
    wrong = {"code": "validation_error", "message": "`senderName` and `to` and `sendAt` are wrong."}
    shell.server.says = lambda path, query: answer({"error": wrong}, 400)
    assert "--from and --to and `sendAt` are wrong." in (await shell.run(*words, status=1)).err
    # A key that may not read messages is refused before one is sent.
    shell.server.asked.clear()
    refused = {"error": {"code": "api_key_scope_required", "message": "This key lacks a scope."}}
    shell.server.says = lambda path, query: answer(refused, 403)
    assert "api_key_scope_required" in (await shell.run(*words, "--wait", status=1)).err
    for given in ("", "two words", "é"):
        assert "--idempotency-key" in (await shell.run(*words, "--idempotency-key", given, status=2)).err
    assert [one[0] for one in shell.server.asked] == ["GET"]


async def test_what_follows_goes_on_until_it_is_refused(shell: Shell) -> None:
    """Lost connections, a proxy's pages, empty responses and Retry-After dates end nothing; a refusal does."""
    troubles: list[Answer] = []
    event = {"id": "e1", "type": "message.sent", "timestamp": NOW, "requestId": "r", "data": {}}
    request = {"id": "q1", "at": NOW, "method": "PUT", "path": "/x", "status": 200, "requestId": "r1"}

    def says(path: str, query: dict[str, str]) -> Answer:
        if troubles:
            return troubles.pop(0)
        if path == "/v1/health":
            return answer({"time": NOW})
        return answer({"items": [event if path == "/v1/events" else request], "nextCursor": "c", "hasMore": False})

    shell.server.says = says
    key = ("--url", shell.server.url, "--key", KEY)
    for words in (("listen",), ("logs", "-f"), ("requests", "tail")):
        troubles[:] = [
            HTML,
            answer({"error": {}}, 503, **{"retry-after": "Sun, 31 Jan 2027 12:00:00 GMT"}),
        ]
        program = await shell.start(*words, *key)
        await until(lambda program=program: "Connected again" in program.err)
        troubles[:] = [(200, b"", {})]
        await until(lambda: not troubles)
        troubles[:] = [answer({"error": {"code": "unauthorized", "message": "No."}}, 401)]
        assert await program.ended() == 1, program.err
        assert program.err.count("trying again") == 2
        assert "401 unauthorized" in program.err
        assert "Traceback" not in program.err
        away = await shell.start(*words, "--url", NOWHERE, "--key", KEY)
        await until(lambda away=away: "Connection refused; trying again" in away.err)
        assert (away.status, await away.stop(signal.SIGINT)) == (None, 0)
    ends = {"nextCursor": None, "hasMore": False}
    others = (answer({"items": None, **ends}), answer({"items": [1], **ends}), answer({"items": [{}], **ends}))
    for said in ((200, b"", {}), answer({"items": []}), answer([]), *others):
        troubles[:] = [said]
        assert "does not respond like a Heliograph server" in (await shell.run("logs", *key, status=1)).err
    # If it cannot store its position.
    (shell.home / "taken").mkdir()
    (shell.home / "taken" / "heliograph").touch()
    told = await shell.run("listen", *key, status=1, XDG_CONFIG_HOME=str(shell.home / "taken"))
    assert "cannot be written: File exists" in told.err


async def test_of_two_listeners_the_first_keeps_the_position(shell: Shell) -> None:
    """What only the second one has seen is not skipped by --resume."""
    times = [f"2027-0{month}-01T00:00:00.000Z" for month in (1, 2)]
    shell.server.says = lambda path, query: answer({"items": [], "nextCursor": query["dateFrom"], "hasMore": False})

    def asked(cursor: str) -> bool:
        return any(dict(parse_qsl(urlsplit(one[1]).query)).get("cursor") == cursor for one in shell.server.asked)

    key = ("--url", shell.server.url, "--key", KEY)
    first = await shell.start("listen", "--resume", "--since", times[0], *key)
    await until(lambda: asked(times[0]))
    assert "Nothing to resume: no listener with this URL, key and kind of event stopped here. " in first.err
    assert f"Beginning with {times[0]}.\n" in first.err
    second = await shell.start("listen", "--since", times[1], *key)
    await until(lambda: asked(times[1]))
    assert "Another listener with this URL, key and kind of event is running" in second.err
    assert await first.stop(signal.SIGINT) == 0
    assert first.err.endswith("Stopped. --resume continues here.\n")
    shell.server.asked.clear()
    third = await shell.start("listen", "--resume", "--url", f"{shell.server.url}/v1/", "--key", KEY)
    await until(lambda: asked(times[0]))
    assert [line for line in third.err.splitlines() if "Listening" not in line] == []
    for listener, told in ((second, "Stopped.\n"), (third, "Stopped. --resume continues here.\n")):
        assert await listener.stop(signal.SIGINT) == 0
        assert listener.err.splitlines(keepends=True)[-1] == told
    # A position that is no longer accepted, as after the installation's secret key was changed.
    refused = {"code": "validation_error", "message": "`cursor` was not issued for this list and these filters"}
    shell.server.says = lambda path, query: answer({"error": refused}, 400)
    assert "these filters: begin again without --resume" in (await shell.run("listen", "--resume", *key, status=1)).err


async def test_events_of_any_type_stand_under_each_other(shell: Shell) -> None:
    about = {"message": {"id": "the subject"}}
    events = [{"id": f"event-{n}", "timestamp": NOW, "type": kind, "data": about} for n, kind in enumerate(KINDS)]

    def says(path: str, query: dict[str, str]) -> Answer:
        if path == "/v1/health":
            return answer({"time": NOW})
        return answer({"items": [] if "cursor" in query else events, "nextCursor": "c", "hasMore": False})

    shell.server.says = says
    program = await shell.start("listen", "--url", shell.server.url, "--key", KEY)
    await until(lambda: program.out.count("\n") == len(events))
    assert await program.stop(signal.SIGINT) == 0
    assert len({line.index("event-") for line in program.out.splitlines()}) == 1, program.out


async def test_no_request_is_left_out_however_many_come_at_once(shell: Shell) -> None:
    log = ["old"]

    def says(path: str, query: dict[str, str]) -> Answer:
        if path == "/v1/health":
            return answer({"time": NOW})
        begin, limit = int(query.get("cursor", 0)), int(query["limit"])
        items = [{"id": one, "method": "GET", "path": "/x", "status": 409} for one in log[begin : begin + limit]]
        return answer({"items": items, "nextCursor": str(begin + limit), "hasMore": begin + limit < len(log)})

    shell.server.says = says
    program = await shell.start("requests", "tail", "--json", "--url", shell.server.url, "--key", KEY)
    await until(lambda: any("/requests" in one[1] for one in shell.server.asked))
    log[:] = [*(f"{n}" for n in reversed(range(250))), "old"]
    await until(lambda: len(program.out.splitlines()) >= 250)
    assert await program.stop(signal.SIGINT) == 0
    assert [json.loads(line)["id"] for line in program.out.splitlines()] == [f"{n}" for n in range(250)]


async def test_columns_of_a_stream_stand_below_each_other(shell: Shell) -> None:
    kinds = (("GET", 404), ("POST", 202), ("PATCH", 200), ("DELETE", 204))
    items = [{"id": path, "at": NOW, "method": path, "path": "/x", "status": status} for path, status in kinds]
    shell.server.says = lambda path, query: answer({"items": items, "nextCursor": None, "hasMore": False})
    told = await shell.run("logs", "--url", shell.server.url, "--key", KEY)
    assert {line.index("/x") for line in told.out.splitlines()} == {len(f"{NOW}  DELETE  ")}
    assert len(told.out.splitlines()) == 4


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        (("logs", "--url", "http://[::1"), 2, "is not a valid URL"),
        (("logs", "--url", "http://127.0.0.1:99999"), 2, "is not a valid URL"),
        (("logs", "--url", "http://127.0.0.1:1/a b"), 2, "has a space"),
        (("logs", "--url", "http://a b/"), 2, "has a space"),
        (("logs", "--url", "http://127.0.0.1:1/ü"), 2, "not percent-encoded"),
        (("logs", "--url", "127.0.0.1:1"), 2, "is not an http:// or https:// URL"),
        (("send", "--to", "+1", "--message", "x", "--url", ""), 2, "'' is not an http:// or https:// URL"),
        (("logs", "--profile", ""), 2, "there is no profile ''"),
        (("logs", "--url", NOWHERE), 3, f"no answer from {NOWHERE}: Connection refused"),
        (("listen", "--forward-to", "http://[::1"), 2, "--forward-to: 'http://[::1' is not a valid URL"),
        (("listen", "--forward-to", "http://127.0.0.1:99999/x"), 2, "--forward-to: "),
        (("call", "/contacts/ü ä", "--url", NOWHERE), 2, "write '/v1/contacts/%C3%BC%20%C3%A4'"),
        (("call", "//[x", "--url", NOWHERE), 3, "Connection refused"),
        (("call", "/contacts", "-d", "@/nowhere", "--url", NOWHERE), 2, "/nowhere cannot be read: No such file"),
        (("call", "/contacts", "-d", "{}", "--url", NOWHERE), 2, "a GET takes no body: with --data, give --method"),
        (("call", "liftOptOut", "recipient=+1", "-d", "{}", "--url", NOWHERE), 2, "liftOptOut takes no body"),
        (("call", "openCatcher", "-d", "{}", "--url", NOWHERE), 2, "openCatcher takes no body"),
        (("login", "--url", "https://ana:secret@sms.example.com"), 2, "without a user name, password, query"),
        (("login", "--key-file", "/nowhere"), 2, "/nowhere cannot be read: No such file"),
        (("send", "--to", "+1", "--message", "a\udcff"), 2, "argument 5 (--message) is not UTF-8 text"),
        (("call", "getAccountSummary", "a=\udcff"), 2, "argument 3 is not UTF-8 text"),
        (("requests", "list", "--path=\udcff"), 2, "argument 3 (--path) is not UTF-8 text"),
        (("login", "--profile", "\udcff"), 2, "argument 3 (--profile) is not UTF-8 text"),
    ],
)
async def test_a_word_that_no_request_can_hold_is_refused(
    shell: Shell, words: tuple[str, ...], status: int, told: str
) -> None:
    assert told in (await shell.run(*words, status=status, HELIOGRAPH_API_KEY=KEY)).err


async def test_a_variable_that_is_not_text_is_refused(shell: Shell) -> None:
    told = await shell.run("profile", "list", status=2, HELIOGRAPH_SUPPLIER_PASSWORD="ge\udce9heim", OTHER="\udce9")
    assert told.err == "heliograph: HELIOGRAPH_SUPPLIER_PASSWORD is not UTF-8 text\n"


async def test_what_is_triggered_may_not_be_shown(shell: Shell) -> None:
    shell.server.says = lambda path, query: answer({"message": {"id": "019c"}}, 202)
    words = ("--url", shell.server.url, "--key", KEY)
    told = (await shell.run("trigger", "message.sent", *words)).err
    assert "only if a webhook endpoint subscribes to message.sent" in told
    assert "only if" not in (await shell.run("trigger", "message.failed", *words)).err


async def test_events_are_triggered_where_the_organization_may_send(shell: Shell) -> None:
    details = {"country": "MZ", "reason": "country"}
    refused = {"code": "destination_not_allowed", "message": "It may not send to `to`: `reason` says why."}
    refused |= {"details": details}
    sent = {"message": {"id": "019c"}}

    def says(path: str, query: dict[str, str]) -> Answer:
        portuguese = json.loads(shell.server.bodies[-1])["to"].startswith("+351")
        return answer(sent, 202) if portuguese else answer({"error": refused}, 403)

    shell.server.says = says
    words = ("trigger", "message.failed", "--url", shell.server.url, "--key", KEY)
    told = "`reason` says why (country: MZ, reason: country). Name a number in a country that it may send to: --to\n"
    assert (await shell.run(*words, status=1)).err.endswith(told)
    await shell.run(*words, "--to", "+351912345678")
    assert [json.loads(one)["to"] for one in shell.server.bodies] == ["+258840000001", "+351912340001"]
    for wrong in ("351912345678", "+351 912 345 678", "+1"):
        assert "--to" in (await shell.run(*words, "--to", wrong, status=2)).err


async def test_a_body_on_stdin_is_utf_8_in_every_locale(shell: Shell) -> None:
    body = json.dumps({"name": "João"}, ensure_ascii=False)
    words = ["call", "/contacts", "-X", "POST", "-d", "@-", "--url", shell.server.url, "--key", KEY]
    for mark in ("", "\ufeff"):
        invoked = asyncio.to_thread(CliRunner(charset="latin-1").invoke, app, words, input=f"{mark}{body}".encode())
        assert (await invoked).exit_code == 0
        assert json.loads(shell.server.bodies[-1]) == {"name": "João"}


async def test_a_long_list_goes_on_where_the_rate_or_a_lost_connection_stops_it(shell: Shell) -> None:
    limited = {"error": {"code": "rate_limit_exceeded", "message": "Too many requests in this minute."}}
    troubles = [answer(limited, 429, **{"retry-after": "1"}), HTML]

    def says(path: str, query: dict[str, str]) -> Answer:
        if "cursor" in query and troubles:
            return troubles.pop(0)
        number = int(query.get("cursor", 0))
        return answer({"items": [{"id": f"{number}"}], "nextCursor": f"{number + 1}", "hasMore": number < 2})

    shell.server.says = says
    words = ("call", "/contacts", "--all", "--url", shell.server.url, "--key", KEY)
    listed = await shell.run(*words)
    assert [json.loads(one)["id"] for one in listed.out.splitlines()] == ["0", "1", "2"]
    assert "429 rate_limit_exceeded" in listed.err
    # A list that does not begin is an error at once.
    shell.server.says = lambda path, query: answer(limited, 429)
    assert "429" in (await shell.run(*words, status=1)).err


async def test_a_call_whose_answer_is_lost_can_be_repeated(shell: Shell) -> None:
    """It may have been accepted, and with another idempotency key it would be done twice."""
    shell.server.says = lambda path, query: HTML
    words = ("call", "sendSms", "to=+258840000000", "message=x", "--url", shell.server.url, "--key", KEY)
    lost = await shell.run(*words, status=3)
    (asked,) = shell.server.asked
    assert lost.err.endswith(
        f"to repeat it, in case it was accepted: --idempotency-key {asked[2]['idempotency-key']}\n"
    )
    shell.server.says = lambda path, query: answer({"success": True}, 202)
    await shell.run(*words, "--idempotency-key", asked[2]["idempotency-key"])
    assert shell.server.asked[1][2]["idempotency-key"] == asked[2]["idempotency-key"]
    shell.server.says = lambda path, query: HTML
    assert "repeat" not in (await shell.run("call", "/contacts", "--url", shell.server.url, "--key", KEY, status=3)).err
