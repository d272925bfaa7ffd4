"""`heliograph up` with real processes: started, used, stopped, killed and started again."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import secrets
import signal
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import asyncpg
import msgspec
import psutil
import pytest

from heliograph.base.database import clock
from heliograph.base.process.settings import Settings, from_environment
from heliograph.http.server.server import bound
from heliograph.simulators.receiver import Event, Options, Receiver
from heliograph.up import secret_keys
from heliograph.up.parts import part_environment
from heliograph.webhooks import endpoints
from heliograph.webhooks.delivery import signing
from tests.embedded import processes, slow
from tests.judge import until_settled
from tests.load import Client
from tests.ports import held_port
from tests.processes import Program, alive, descendants, environment, until, until_true
from tests.up import NOBODY, PARTS, accounts, up

pytestmark = pytest.mark.lasts(8)

EVENTS = ["message.delivered", "message.failed"]
KEYS = {"base_url", "organization_id", "live_key", "test_key", "database_url", "smsc", "whatsapp", "has_local_webhooks"}


@pytest.fixture
def place(public_place: Path, request: pytest.FixtureRequest) -> Path:
    """A directory that belongs to the account used by the test."""
    home = public_place / "home"
    home.mkdir()
    account = getattr(request, "param", os.geteuid())
    os.chown(home, account, -1)
    return home


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver(Options())
    await made.start()
    yield made
    await made.stop()


async def subscribed(client: Client, receiver: Receiver) -> str:
    """The signing secret of a new endpoint."""
    status, body = await client.ask("POST", "/webhooks", json={"url": receiver.url, "subscribed_events": EVENTS})
    assert status == 201, body
    return str(body["signingSecret"])


async def event_of(receiver: Receiver, message_id: str, secret: str) -> Event:
    """The only event of a message, once it has arrived, correctly signed. It may arrive again if a worker was
    killed."""
    await receiver.wait_for(lambda one: any(event.message_id == message_id for event in one.events), within=120)
    found = {event.id: event for event in receiver.events if event.message_id == message_id}
    (event,) = found.values()
    assert genuine(event, secret)
    return event


def genuine(event: Event, secret: str) -> bool:
    """Whether it is signed as the contract says."""
    timestamp, signature = event.headers["x-service-timestamp"], event.headers["x-service-signature"]
    problem = signing.verify((secret,), timestamp=timestamp, signature=signature, body=event.body, now=clock.now())
    return problem is None


async def read_by_its_user(client: Client, id: str) -> None:
    """Wait until a WhatsApp message is read."""

    async def read() -> bool:
        status, body = await client.ask("GET", f"/whatsapp/messages/{id}")
        return status == 200 and body["message"]["status"] == "read"

    await until_true(read, within=120)


async def run_as_printed(text: str, path: str, home: Path) -> tuple[int, Any]:
    """Run the welcome's curl command for `path` in a shell, unchanged; returns the response."""
    (line,) = [one for one in re.findall(r"  curl .*?(?=\n\n)", text, re.DOTALL) if path in one]
    (home / ".curlrc").write_text('write-out = "\\n%{http_code}"\n')
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", line, env=os.environ | {"CURL_HOME": str(home)}, stdout=asyncio.subprocess.PIPE
    )
    out, _ = await asyncio.wait_for(process.communicate(), 120)
    body, status = out.decode().rsplit("\n", 1)
    return int(status), msgspec.json.decode(body)


@contextlib.contextmanager
def moved(data: Path, credentials: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Between two starts: replace the ports in these credentials, and in the directory, by others that nobody else gets
    meanwhile. Yields the credentials."""
    with contextlib.ExitStack() as held:
        smsc, graph, postgres = (held.enter_context(held_port()) for _ in range(3))
        given = msgspec.json.decode(msgspec.json.encode(credentials))
        given["smsc"]["port"], given["whatsapp"]["port"] = smsc, graph
        given["database_url"] = re.sub(r":\d+/", f":{postgres}/", given["database_url"])
        (data / "credentials.json").write_bytes(msgspec.json.encode(given))
        (data / "postgres" / "port").write_text(f"{postgres}\n")
        yield given


async def statuses(url: str) -> dict[str, str]:
    """Every message's status by its recipient's last four digits."""
    conn = await asyncpg.connect(url)
    try:
        return {row[0][-4:]: row[1] for row in await conn.fetch("SELECT recipient, status FROM messages")}
    finally:
        await conn.close()


@pytest.mark.parametrize(("umask", "place"), [(0o077, os.geteuid()), (0, accounts()[-1])], indirect=["place"])
async def test_what_it_creates_has_its_modes_whatever_the_umask(place: Path, umask: int) -> None:
    before = os.umask(umask)
    try:
        async with up(place, "--data-dir", str(place / "deep" / "data")):
            # PostgreSQL, which does not run as root, has to pass through root's directory.
            mode = 0o711 if place.stat().st_uid == 0 else 0o700
            for directory in (place / "deep", place / "deep" / "data", place / "deep" / "data" / "postgres"):
                assert stat.S_IMODE(directory.stat().st_mode) == mode
            # PostgreSQL's log of its start, too, of which an error message may quote lines.
            home = place / "deep" / "data" / "postgres"
            ours = [path for path in home.iterdir() if path.is_file()]
            assert home / "start.log" in ours
            assert [path for path in ours if path.stat().st_mode & 0o022] == []
    finally:
        os.umask(before)


@pytest.mark.lasts(20)
@pytest.mark.parametrize("place", accounts(), indirect=True)
async def test_from_the_first_start_to_the_second(place: Path, receiver: Receiver, tmp_path: Path) -> None:
    async with up(place) as first, Client(first.url, first.credentials["live_key"]) as client:
        assert first.credentials.keys() == KEYS
        assert first.credentials["smsc"].keys() == {"host", "port", "system_id", "password"}
        kept = place / "data" / "credentials.json"
        for file in (first.file, kept, *(place / "data" / name for name in ("secret_key", "graph.json", "smsc.json"))):
            assert stat.S_IMODE(file.stat().st_mode) == 0o600
            assert file.stat().st_uid == place.stat().st_uid
        assert kept.read_bytes() == first.file.read_bytes()
        commands = [process.cmdline() for processes in first.parts().values() for process in processes]
        graph = first.credentials["whatsapp"]
        for word in (graph["app_secret"], graph["verify_token"], graph["token"], first.credentials["live_key"]):
            assert not any(word in command for command in commands), "everybody on the machine reads command lines"
        secret_key = (place / "data" / "secret_key").read_text().strip()
        password = first.credentials["smsc"]["password"]
        for word in (password, secret_key):
            assert not any(word in part for command in commands for part in command)
        for name in ("smsc", "graph"):
            given = first.part(name).environ()
            assert not [key for key in given if key.startswith("HELIOGRAPH_")], "it stands for somebody outside"
        assert first.credentials["live_key"] in first.program.out

        secret = await subscribed(client, receiver)
        status, body = await run_as_printed(first.program.out, "/sms/send", tmp_path)
        assert (status, body["queued"], body["status"], body["remainingQuota"]) == (202, True, "accepted", 999_999)
        event = await event_of(receiver, body["message"]["id"], secret)
        assert event.type == "message.delivered"

        status, body = await run_as_printed(first.program.out, "/whatsapp/messages", tmp_path)
        assert (status, body["queued"], body["status"]) == (202, True, "accepted")
        await read_by_its_user(client, body["message"]["id"])
        event = await event_of(receiver, body["message"]["id"], secret)
        assert msgspec.json.decode(event.body)["data"]["message"]["channel"] == "whatsapp"

        async with Client(first.url, first.credentials["test_key"]) as tester:
            test_secret = await subscribed(tester, receiver)
            sent = {n: await tester.send(f"+25884123{n:04d}") for n in range(8)}
        expected = {0: "delivered", 1: "undelivered", 2: "failed", 3: "expired", 6: "delivered", 7: "delivered"}
        for n, end in expected.items():
            event = await event_of(receiver, sent[n], test_secret)
            assert event.type == ("message.delivered" if end == "delivered" else "message.failed")
            assert msgspec.json.decode(event.body)["data"]["message"]["status"] == end
        found = await statuses(first.database)
        assert {n: found[f"{n:04d}"] for n in expected} == expected
        assert {found["0004"], found["0005"]} == {"sent"}, "no receipt, and one after a minute"
        assert len(receiver.events) == 2 + len(expected)
        connection = await asyncpg.connect(first.database)
        await connection.execute("UPDATE organizations SET name = 'Padaria'")
        await connection.close()
        await first.stopped(signal.SIGTERM)

    with moved(place / "data", first.credentials) as kept:
        async with up(place) as second, Client(second.url, second.credentials["live_key"]) as client:
            for name in KEYS - {"base_url"}:
                assert second.credentials[name] == kept[name]
            # To its user's country, whichever it is, and to the simulators' own numbers, which belong to none.
            id = await client.send("+88810000000000")
            event = await event_of(receiver, id, secret)
            assert event.type == "message.delivered"
            assert len(await statuses(second.database)) == 9, "the messages of the first start are there"
            for key in ("live_key", "test_key"):
                assert second.credentials[key] not in second.program.out + second.program.err, (
                    "shown at the first start"
                )
            assert str(second.file) in second.program.out
            assert (await run_as_printed(second.program.out, "/sms/send", tmp_path))[0] == 202
            status, body = await run_as_printed(second.program.out, "/whatsapp/messages", tmp_path)
            assert status == 202
            await read_by_its_user(client, body["message"]["id"])
            await second.stopped(signal.SIGINT)


@pytest.mark.lasts(30)
async def test_every_part_may_be_killed_and_then_the_whole(place: Path, receiver: Receiver) -> None:
    numbers = (f"+25884200{n:04d}" for n in range(100, 10_000))
    async with up(place) as first, Client(first.url, first.credentials["live_key"]) as client:
        secret = await subscribed(client, receiver)
        for victim in PARTS:
            before = [await client.send(next(numbers)) for _ in range(5)]
            if victim == "smsc":
                # What an SMSC forgets when it is killed cannot be recovered: wait until it has sent its receipts.
                await until_settled(first.database)
            await first.killed(victim)
            before += [await client.send(next(numbers)) for _ in range(5)]
            for id in before:
                await event_of(receiver, id, secret)
        await until_settled(first.database)
        assert set((await statuses(first.database)).values()) == {"delivered"}

        accepted = {number[-4:]: await client.send(number) for number, _ in zip(numbers, range(20), strict=False)}
        parts = first.parts()
        await first.program.kill()
        for name in PARTS[:-1]:
            await until(lambda name=name: not any(alive(one) for one in parts[name]))
        assert alive(*parts["postgres"]), "it waits for the next start"
        # Receipts that the SMSC still owed died with it.
        forgotten = {digits for digits, status in (await statuses(first.database)).items() if status == "sent"}

    async with up(place) as second, Client(second.url, second.credentials["live_key"]):
        assert "already running" in second.program.err
        for digits, id in accepted.items():
            if digits not in forgotten:
                await event_of(receiver, id, secret)
        others = {
            digits: status for digits, status in (await statuses(second.database)).items() if status != "delivered"
        }
        assert others == dict.fromkeys(forgotten, "sent")
        await second.stopped(signal.SIGTERM)
        assert not any(alive(one) for one in parts["postgres"])


async def test_a_second_signal_ends_what_still_drains(place: Path) -> None:
    async with up(place, HELIOGRAPH_DRAIN_SECONDS="600") as first:
        everything = descendants(first.program.pid)
        first.part("worker").suspend()
        first.program.send(signal.SIGTERM)
        # It waits for the worker, which stops after the API.
        await until(lambda: not first.parts()["api"])
        first.program.send(signal.SIGTERM)
        assert await first.program.ended() == 0
        assert not [process for process in everything if alive(process)]


async def test_what_it_says_among_lines_of_json_is_json(place: Path) -> None:
    async with up(place, HELIOGRAPH_LOG_FORMAT="json", HELIOGRAPH_LOG_LEVEL="info", HELIOGRAPH_ZEBRA="x") as first:
        before = first.part("worker")
        before.kill()

        async def is_new() -> bool:
            return any(one.pid != before.pid for one in first.parts()["worker"]) and "worker ready" in first.program.err

        await until_true(is_new)
        await first.stopped(signal.SIGTERM)
    status, text = await refused(place, "--host", "192.0.2.1", HELIOGRAPH_LOG_FORMAT="json")
    assert status == 1
    lines = [msgspec.json.decode(line) for line in (first.program.err + text).splitlines()]
    assert all(line.keys() >= {"event", "level", "timestamp"} for line in lines)
    said = "\n".join(line["event"] for line in lines)
    for word in ("HELIOGRAPH_ZEBRA is not a setting", "worker ended (-9); restarting it.", "Stopping;", "192.0.2.1"):
        assert word in said
    assert [line["level"] for line in lines][-1] == "error"


@pytest.mark.lasts(15)
async def test_on_a_database_that_is_given_with_two_web_processes(
    place: Path, receiver: Receiver, empty_database_url: str
) -> None:
    given = {"HELIOGRAPH_DATABASE_URL": empty_database_url}
    # What a start without that setting has left that could not create its database.
    unused = place / "data" / "postgres"
    unused.mkdir(parents=True)
    async with (
        up(place, "--api-processes", "2", "-o", "json", **given) as ran,
        Client(ran.url, ran.credentials["live_key"]) as client,
    ):
        assert ran.database == empty_database_url
        assert msgspec.json.decode(ran.program.out) == ran.credentials
        assert list(unused.iterdir()) == []
        # A second one would revoke the keys of the first, and move its suppliers to simulators of its own.
        status, text = await refused(place, **given)
        assert (status, "another `heliograph up` from 127.0.0.1 (process " in text) == (1, True)
        parts = ran.parts()
        assert [len(parts[name]) for name in PARTS] == [2, 1, 1, 1, 0]
        secret = await subscribed(client, receiver)
        sent = [await client.send(f"+25884300{n:04d}") for n in range(100, 120)]
        parts["api"][0].kill()
        sent += [await client.send(f"+25884300{n:04d}") for n in range(120, 140)]
        await until(lambda: len([one for one in ran.parts()["api"] if alive(one)]) == 2)
        for id in sent:
            await event_of(receiver, id, secret)
        await ran.stopped(signal.SIGHUP)
    # No new key opens what this installation has sealed.
    key = place / "data" / "secret_key"
    for content, said in (
        (None, f"{key} is missing or empty, and the database in "),
        (secrets.token_urlsafe(48), "does not open what is"),
    ):
        key.unlink() if content is None else key.write_text(content)
        status, text = await refused(place, **given)
        assert (status, said in text, "HELIOGRAPH_SECRET_KEY" in text, key.exists()) == (1, True, True, bool(content))


@pytest.mark.parametrize(
    ("host", "given", "http", "loopback"),
    [
        ("127.0.0.1", {}, True, True),
        ("localhost", {}, True, True),
        ("::1", {}, True, True),
        ("0.0.0.0", {}, False, False),
        ("127.0.0.1", {"HELIOGRAPH_WEBHOOK_ALLOW_HTTP": "false"}, False, True),
        ("127.0.0.1", {"HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": ""}, True, False),
        ("0.0.0.0", {"HELIOGRAPH_WEBHOOK_ALLOW_NETWORKS": "127.0.0.0/8"}, False, True),
    ],
)
def test_webhooks_reach_loopback_only_while_the_api_listens_there(
    host: str, given: dict[str, str], http: bool, loopback: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in os.environ if name.startswith("HELIOGRAPH_")]:
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    found = part_environment(
        Settings(database_url="postgresql://db/x", secret_key=secrets.token_hex(32)), host=host, is_embedded=True
    )
    rules = endpoints.rules(from_environment(found))
    assert rules.allow_http == http
    assert any(ipaddress.ip_address("127.0.0.1") in network for network in rules.networks) == loopback


@pytest.mark.lasts(15)
async def test_a_script_that_waits_for_the_credentials_can_send_at_once(place: Path) -> None:
    """The first start is killed before that: the second one has the same keys."""
    data = place / "data"
    options = ("up", "--data-dir", str(data), "--port", "0")
    keys: list[tuple[str, str]] = []
    for n, name in enumerate(("credentials.starting.json", "credentials.json")):
        log = place / f"up-{n}"
        program = await Program.start(*options, log=log, environment=environment(HOME=str(place)))
        try:
            await until(lambda file=data / name: file.exists(), within=300)
            told = msgspec.json.decode((data / name).read_bytes())
            keys.append((told["live_key"], told["test_key"]))
            if name == "credentials.json":
                async with Client(told["base_url"], told["live_key"]) as client:
                    headers, body = {"Idempotency-Key": "1"}, {"to": "+258841234567", "message": "Hi"}
                    assert (await client.ask("POST", "/sms/send", json=body, headers=headers))[0] == 202
                await until(lambda key=keys[0][0], started=program: key in started.out)
                assert not (data / "credentials.starting.json").exists()
        finally:
            for process in descendants(program.pid):
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
            await program.kill()
    assert keys[0] == keys[1]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start what belongs to another account")
@pytest.mark.lasts(15)
async def test_what_root_starts_in_the_directory_of_a_service_remains_the_services(public_place: Path) -> None:
    """As somebody on call does. The service could not read its keys after that, or not even start."""
    data = public_place / "data"
    data.mkdir(mode=0o700)
    os.chown(data, NOBODY, NOBODY)

    def owners() -> set[tuple[int, int]]:
        found = [one.lstat() for one in (*data.iterdir(), *(data / "postgres").iterdir())]
        return {(one.st_uid, one.st_gid) for one in found}

    # Interrupted before it is ready, too.
    program = await Program.start(
        *("up", "--port", "0", "--data-dir", str(data)), log=public_place / "interrupted", environment=environment()
    )
    await until((data / secret_keys.FILE).exists)
    program.send(signal.SIGTERM)
    assert (await program.ended(), owners()) == (0, {(NOBODY, NOBODY)})
    async with up(public_place) as first:
        await first.stopped(signal.SIGTERM)
    assert owners() == {(NOBODY, NOBODY)}
    os.chown(public_place, NOBODY, NOBODY)
    async with up(public_place) as second:
        assert second.credentials["live_key"] == first.credentials["live_key"]
        await second.stopped(signal.SIGTERM)


async def test_it_can_be_stopped_while_the_database_recovers(cluster_home: Path, public_place: Path) -> None:
    """A recovery may take minutes, in which Ctrl-C did nothing."""
    with (cluster_home / "data" / "postgresql.conf").open("a") as file:
        file.write(f"restore_command = '{slow(cluster_home, public_place)['restore_command']}'\n")
    program = await Program.start(
        *("up", "--port", "0", "--data-dir", str(public_place)),
        log=public_place / "stopped",
        environment=environment(HELIOGRAPH_SECRET_KEY=secrets.token_urlsafe(32)),
    )
    await until(lambda: "recovering" in program.err)
    program.send(signal.SIGTERM)
    assert await program.ended() == 0, program.err
    assert not processes("postgres", cluster_home)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start what belongs to another account")
async def test_a_first_start_by_root_that_fails_leaves_everything_to_the_service(public_place: Path) -> None:
    data = public_place / "data"
    data.mkdir(mode=0o700)
    os.chown(data, NOBODY, NOBODY)
    (public_place / "archive").touch()
    program = await Program.start(
        *("up", "--port", "0", "--data-dir", str(data)),
        log=public_place / "failed",
        environment=environment(HELIOGRAPH_WAL_ARCHIVE=str(public_place / "archive")),
    )
    assert await program.ended() == 3
    assert "cannot archive WAL" in program.err
    found = [one.lstat() for one in (*data.iterdir(), *(data / "postgres").iterdir())]
    assert {(one.st_uid, one.st_gid) for one in found} == {(NOBODY, NOBODY)}


async def test_a_port_that_is_taken_is_said_and_nothing_is_left(place: Path) -> None:
    with listening() as port:
        program = await Program.start(
            *("up", "--port", str(port), "--data-dir", str(place / "data")), log=place / "up", environment=environment()
        )
        assert await program.ended() == 1
    assert program.err.strip().endswith(
        f"port {port} on 127.0.0.1 is in use; choose another with --port, or stop the process that uses it"
    )
    assert program.out == ""
    assert not (place / "data").exists()
    # Not an error caused by whichever port it is.
    for port in (0, 8080):
        status, text = await refused(place, "--host", "192.0.2.1", "--port", str(port))
        assert (status, "192.0.2.1 is not an address of this machine; choose another with --host" in text) == (1, True)
    assert not (place / "data").exists()


async def test_the_consoles_own_address_belongs_to_one_installation(place: Path) -> None:
    """Two that were started with the same one shared it: half of the requests to a console reached the other one."""
    with held_port() as port, bound("127.0.0.1", port) as console:  # of the first installation's API
        console.listen()
        status, text = await refused(place, HELIOGRAPH_CONSOLE_LISTEN=f"127.0.0.1:{port}")
    told = f"port {port} on 127.0.0.1 is in use; choose another with HELIOGRAPH_CONSOLE_LISTEN, or stop the process"
    assert (status, told in text) == (1, True)
    status, text = await refused(place, HELIOGRAPH_CONSOLE_LISTEN="192.0.2.1:8090")
    assert (status, "not an address of this machine; choose another with HELIOGRAPH_CONSOLE_LISTEN" in text) == (
        1,
        True,
    )
    assert not (place / "data").exists()


async def test_credentials_that_could_not_be_written_are_told_before_anything_starts(place: Path) -> None:
    (place / "file").write_text("")
    for path in (place, place / "file" / "credentials.json"):
        status, text = await refused(place, "--credentials-file", str(path))
        assert (status, f"the credentials cannot be written to {path}: choose another file" in text) == (1, True)
        assert not (place / "data").exists()


async def test_what_would_lose_data_is_refused_before_anything_starts(place: Path) -> None:
    data = place / "data"
    (data / "postgres" / "data").mkdir(parents=True)
    (data / "postgres" / "data" / "PG_VERSION").write_text("18")
    key = data / "secret_key"
    status, text = await refused(place)
    assert (status, f"{key} is missing or empty, and the database in {data / 'postgres'} is" in text) == (1, True)
    assert not key.exists()
    key.write_bytes(b"\xff\xfe")
    status, text = await refused(place)
    assert (status, f"{key} is damaged, it is not text" in text) == (1, True)
    key.write_text(secrets.token_urlsafe(48))
    for archive in (data, data / "wal", place / "elsewhere" / ".." / "data" / "wal"):
        status, text = await refused(place, HELIOGRAPH_WAL_ARCHIVE=str(archive))
        assert (status, f"HELIOGRAPH_WAL_ARCHIVE is {archive}, in the data directory {data}" in text) == (2, True)
    assert [path.name for path in (data / "postgres").iterdir()] == ["data"]


@pytest.mark.parametrize("kind", ["file", "link to nothing"])
async def test_a_data_directory_that_is_none_is_told(place: Path, kind: str) -> None:
    """It was refused because 'File exists'."""
    data = place / "data"
    data.write_text("a file") if kind == "file" else data.symlink_to(place / "nothing")
    told = f"cannot use the data directory {data}: it is not a directory; choose another with --data-dir"
    assert await refused(place) == (1, f"heliograph: {told}")


async def refused(place: Path, *options: str, **settings: str) -> tuple[int, str]:
    """The exit status and the only line of a start that fails."""
    program = await Program.start(
        *("up", "--port", "0", "--data-dir", str(place / "data"), *options),
        log=place / f"refused-{len(list(place.glob('refused-*')))}",
        environment=environment(**settings),
    )
    status = await program.ended()
    (line,) = [line for line in program.err.splitlines() if "heliograph: " in line]
    assert "Traceback" not in program.err
    return status, line


@contextlib.contextmanager
def listening() -> Iterator[int]:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        yield sock.getsockname()[1]
