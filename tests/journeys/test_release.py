"""A release as used without the repository: built, verified by its checksums, installed and run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import msgspec
import psutil
import pytest

from heliograph import __version__
from heliograph.api.document import guide
from release import materials
from release.__main__ import pins, release
from tests import images, kubernetes, pods
from tests.database import Cluster, public_directory
from tests.house.project import ROOT, VENDORS
from tests.load import Client
from tests.ports import held_port
from tests.processes import LONG, SECRET_KEY, alive, descendants, environment, installation, until, until_true

pytestmark = [pytest.mark.lasts(60), pytest.mark.xdist_group("release")]

CONTAINERFILE = ROOT / "deploy" / "Containerfile"
#: Where everybody may read, so that PostgreSQL's account can run the programs installed there.
INSTALLED = "/opt/heliograph"
#: Bytecode is compiled when a module is first used. For pip, the variable means whether it compiles at installation.
PIP_ENVIRONMENT = os.environ | {"PIP_NO_COMPILE": "0"}


@pytest.fixture(scope="module")
def public() -> Iterator[Path]:
    with public_directory() as directory:
        yield directory


@pytest.fixture(scope="module")
def dist(public: Path) -> Path:
    """The files of a release of this tree."""
    release(ROOT, public / "dist", uncommitted=True)
    return public / "dist"


@pytest.fixture(scope="module")
def installed(public: Path, dist: Path) -> Path:
    """A virtual environment with nothing but the release, created by the lines of the Containerfile."""
    place = public / "installed"
    build = CONTAINERFILE.read_text().split("\nFROM ")[1]
    for command in re.findall(r"^RUN (.*)$", build, re.MULTILINE):
        here = command.replace(INSTALLED, str(place)).replace("/release/", f"{dist}/")
        here = re.sub(r"^python ", f"{shlex.quote(sys.executable)} ", here)
        done = subprocess.run(here, shell=True, capture_output=True, text=True, cwd="/", env=PIP_ENVIRONMENT)  # noqa: S602 (our own file)
        assert done.returncode == 0, f"{here}\n{done.stdout}{done.stderr}"
    return place


def sums(dist: Path) -> dict[str, str]:
    lines = (line.split("  ") for line in (dist / "SHA256SUMS").read_text().splitlines())
    return {name: digest for digest, name in lines}


def test_its_sums_are_true_and_the_same_each_time(dist: Path, tmp_path: Path) -> None:
    listed = sums(dist)
    assert set(listed) == {path.name for path in dist.iterdir()} - {"SHA256SUMS"}
    for name, digest in listed.items():
        assert hashlib.sha256((dist / name).read_bytes()).hexdigest() == digest, name
    release(ROOT, tmp_path / "again", uncommitted=True)
    assert sums(tmp_path / "again") == listed


def test_the_bill_names_everything_that_is_installed_or_kept_inside(dist: Path) -> None:
    bill = msgspec.json.decode((dist / f"heliograph-{__version__}.cdx.json").read_bytes())
    named = {f"{one['name']}=={one['version']}": one for one in bill["components"]}
    assert bill["metadata"]["component"]["version"] == __version__
    for lock in ("requirements.lock", "requirements-traces.lock"):
        for pin in pins((ROOT / lock).read_text()):
            entry = named[pin.split(" ; ")[0]]
            assert entry["hashes"], pin
            # Of packages for other systems nothing is installed that has a licence.
            assert entry.get("licenses") or " ; " in pin, pin
    notes = "".join((folder / "README.md").read_text() for folder in VENDORS[:2])
    notes += (ROOT / "heliograph" / "people" / "vendor" / "README.md").read_text()
    for name, (version, _) in (materials.VENDORED | materials.TAKEN).items():
        assert f"`{name}`" in notes, name
        assert version in notes, name
        assert f"{name}=={version}" in named
    assert {"postgresql-16", "postgresql-18"} <= {one["name"] for one in bill["components"]}


def test_the_source_distribution_holds_what_deploys(dist: Path) -> None:
    with tarfile.open(dist / f"heliograph-{__version__}.tar.gz") as archive:
        modes = {one.name.partition("/")[2]: one.mode for one in archive.getmembers()}
    assert {"deploy/Containerfile", "docs/installing.md", "CHANGELOG.md", "requirements-traces.in"} <= set(modes)
    # It is run as written (`docs/installing.md`).
    assert modes.pop("deploy/compose/secrets.sh") == 0o755
    assert set(modes.values()) == {0o644}


def test_no_version_in_it_is_open(dist: Path, installed: Path) -> None:
    metadata = next(installed.rglob(f"heliograph-{__version__}.dist-info/METADATA")).read_text()
    asked = re.findall(r"^Requires-Dist: (.*)$", metadata, re.MULTILINE)
    assert len(asked) > 40
    assert all(re.match(r"[\w.-]+==[\w.]+(;|$)", one) for one in asked), asked
    assert sum("extra == " in one for one in asked) == len(pins((ROOT / "requirements-traces.lock").read_text()))
    checked = [sys.executable, "-m", "pip", "--python", installed / "bin" / "python", "check"]
    done = subprocess.run(checked, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@contextlib.asynccontextmanager
async def running(installed: Path, home: Path) -> AsyncIterator[dict[str, Any]]:
    """`heliograph up` of the installed release, outside the repository; yields its credentials."""
    home.mkdir()
    out, err = (home / "out").open("wb"), (home / "err").open("wb")
    process = await asyncio.create_subprocess_exec(
        *(installed / "bin" / "heliograph", "up", "--port", "0", "--data-dir", home / "data"),
        cwd="/",
        # The path of modules and files must not lead into the repository.
        env=environment(HOME=str(home)) | {"PYTHONPATH": "", "PYTHONSAFEPATH": "1"},
        stdin=asyncio.subprocess.DEVNULL,
        stdout=out,
        stderr=err,
        start_new_session=True,
    )
    everything: list[psutil.Process] = []
    try:
        await until(
            lambda: b"Ctrl-C stops everything" in (home / "out").read_bytes() or process.returncode is not None,
            within=300,
        )
        assert process.returncode is None, (home / "err").read_text()
        everything = descendants(process.pid)
        yield msgspec.json.decode((home / "data" / "credentials.json").read_bytes())
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 120) == 0, (home / "err").read_text()
        assert not [one for one in everything if alive(one)]
    finally:
        for one in [*everything, *(descendants(process.pid) if process.returncode is None else [])]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        if process.returncode is None:
            process.kill()
        await process.wait()
        out.close()
        err.close()


async def delivers(credentials: dict[str, Any]) -> None:
    """Send a message there with the test key, and wait until it is delivered."""
    url, key = credentials["base_url"], {"authorization": f"Bearer {credentials['test_key']}"}
    body = {"to": "+258841230000", "message": "Olá"}
    async with aiohttp.ClientSession(headers=key) as session:
        async with session.post(f"{url}/v1/sms/send", json=body, headers={"idempotency-key": "one"}) as answer:
            assert answer.status == 202, await answer.text()
            id = (await answer.json())["message"]["id"]

        async def is_delivered() -> bool:
            async with session.get(f"{url}/v1/sms/messages/{id}") as answer:
                return bool((await answer.json())["message"]["status"] == "delivered")

        await until_true(is_delivered, within=60)


async def test_it_runs_without_the_repository(installed: Path, public: Path) -> None:
    async with running(installed, public / "home") as credentials, aiohttp.ClientSession() as session:
        url = credentials["base_url"]
        # Pages with their styles, in both languages; the guide, an error's page, the viewer; the document's examples.
        for path in (
            "/login",
            "/console",
            guide.PATH,
            f"{guide.PATH}/api",
            "/docs",
            "/docs/errors/not_found",
            "/v1/openapi.json",
        ):
            async with session.get(url + path, headers={"accept-language": "pt"}) as answer:
                text = await answer.text()
                assert answer.status == 200, f"{path}: {answer.status} {text[:300]}"
            if path == "/login":
                assert 'lang="pt"' in text
                style = re.search(r'href="(/assets/[^"]+\.css)"', text)
                assert style is not None
                async with session.get(url + style[1]) as answer:
                    assert answer.status == 200
        await delivers(credentials)


@pytest.mark.skipif(os.geteuid() != 0, reason="accounts are made by root")
@pytest.mark.skipif(shutil.which("useradd") is None, reason="useradd is not here")
def test_the_account_of_the_image_can_be_made(tmp_path: Path) -> None:
    image = CONTAINERFILE.read_text().split("\nFROM ")[2]
    (command,) = re.findall(r"^RUN (groupadd .*)$", image, re.MULTILINE)
    (tmp_path / "etc").mkdir()
    for name in ("passwd", "group", "shadow", "gshadow"):
        (tmp_path / "etc" / name).touch()
    here = re.sub(r"\b(groupadd|useradd) ", rf"\1 --prefix {shlex.quote(str(tmp_path))} ", command)
    subprocess.run(here, shell=True, check=True, capture_output=True)  # noqa: S602 (our own file)
    assert (tmp_path / "etc" / "passwd").read_text().startswith("heliograph:x:10001:10001:")


@pytest.fixture(scope="module")
def image(public: Path, dist: Path) -> Iterator[images.Image]:
    with images.built(CONTAINERFILE, dist, public, allow_slow=LONG) as made:
        yield made


async def test_the_image_is_built_and_starts(image: images.Image, tmp_path: Path) -> None:
    if image.engine != ["buildah"]:
        await _starts(image.engine, image.tag, tmp_path)


async def _starts(engine: list[str], tag: str, tmp_path: Path) -> None:
    """The image runs `up`, and a message is delivered end to end."""
    name = f"heliograph-test-{secrets.token_hex(4)}"
    with held_port() as port, (tmp_path / "said").open("wb") as said:
        run = [*engine, "run", "--rm", "--name", name, *images.CLOSED, "--volume", "/var/lib/heliograph", tag]
        process = await asyncio.create_subprocess_exec(
            *run, "up", "--port", str(port), stdin=asyncio.subprocess.DEVNULL, stdout=said, stderr=said
        )
        try:
            await until(
                lambda: (
                    b"Ctrl-C stops everything" in (tmp_path / "said").read_bytes() or process.returncode is not None
                ),
                within=300,
            )
            assert process.returncode is None, (tmp_path / "said").read_text()
            shown = [*engine, "exec", name, "sh", "-c", "id -u; cat ~/.local/share/heliograph/credentials.json"]
            user, kept = subprocess.run(shown, capture_output=True, text=True, check=True).stdout.split("\n", 1)
            assert user == "10001"
            await delivers(msgspec.json.decode(kept))
        finally:
            stopped = subprocess.run([*engine, "stop", "--time", "120", name], capture_output=True, text=True)
            code = await asyncio.wait_for(process.wait(), 120)
    assert stopped.returncode == 0, stopped.stderr
    assert code == 0, (tmp_path / "said").read_text()


@pytest.fixture
async def node(image: images.Image, public: Path) -> AsyncIterator[pods.Node]:
    if image.engine[0] != "podman" or os.geteuid() != 0:
        pytest.skip("pods are run by root's podman")
    async with pods.Node(image.engine, image.tag, public / "node") as made:
        yield made


@pytest.mark.skipif(not LONG, reason="starting the pods takes minutes: HELIOGRAPH_FAULTS=long")
async def test_the_example_for_kubernetes(node: pods.Node, database_server: Cluster, tmp_path: Path) -> None:
    """Migrated, started, changed to a new version under requests, and its worker replaced between messages."""
    templates = kubernetes.templates()
    async with database_server.database(template=False) as owner:
        url = database_server.url_of(urlsplit(owner).path[1:])
        port = await node.relay(urlsplit(url).port or 5432)
        database, administrator = (
            urlsplit(one)._replace(netloc=f"{urlsplit(one).netloc.rpartition('@')[0]}@{node.gateway}:{port}").geturl()
            for one in (url, owner)
        )
        if database == administrator:
            pytest.skip("the database that is given has one role")
        node.secret = {
            "secret_key": f"{SECRET_KEY}\n",
            "database_url": f"{database}\n",
            "backup_passphrase": "long enough for a backup\n",
        }

        # A refused migration says why, and keeps the API from becoming ready, which says what it lacks.
        node.secret["owner_database_url"] = node.secret["database_url"]
        refused = await node.start(templates["migrate"])
        first = await node.start(templates["api"], HELIOGRAPH_BODY_DEADLINE_SECONDS="300")
        assert await refused.ended() == 1
        assert await refused.log_contains("give the URL of the role that owns the tables")
        lacks = "the database has no schema yet: run `heliograph migrate` first"
        await until_true(lambda: first.log_contains(lacks))
        assert not await first.passes("readinessProbe")
        node.secret["owner_database_url"] = f"{administrator}\n"
        assert await (await node.start(templates["migrate"])).ended() == 0

        await until_true(lambda: first.passes("readinessProbe"))
        second = await node.start(templates["api"])
        await until_true(lambda: second.passes("readinessProbe"))
        assert await second.passes("livenessProbe")
        await _is_confined(first)

        smsc = {"latency": 1.0, "count_destinations": True}
        with held_port() as supplier:
            smpp = {"host": node.gateway, "port": await node.relay(supplier)}
            async with installation(url, tmp_path, smsc=smsc | {"port": supplier}, smpp=smpp) as made:
                sent = await _changed_under_requests(node, [first, second], made.key)
                worker = await node.start(templates["worker"])
                await until_true(lambda: worker.passes("startupProbe"))
                await until(lambda: made.smsc.counters.submits > 0)
                assert await worker.stop() == 0
                worker = await node.start(templates["worker"])
                await until(lambda: len(made.smsc.destinations) == len(sent))
                assert await worker.stop() == 0
                assert made.smsc.destinations == dict.fromkeys(sent, 1)
        backup = await node.start(templates["backup"])
        assert await backup.ended() == 0


async def _is_confined(pod: pods.Pod) -> None:
    """It runs as an arbitrary user without capabilities, and reads its secrets from files that only it can read."""
    assert await pod.execute("id", "-u") == "10001\n"
    status = await pod.execute("cat", "/proc/1/status")
    for line in ("CapEff:\t0000000000000000", "CapBnd:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"):
        assert f"\n{line}\n" in status
    assert "Read-only file system" in await pod.execute("sh", "-c", "touch /file 2>&1 || true")
    assert await pod.execute("ls", "/run/secrets/heliograph") == "database_url\nsecret_key\n"
    assert await pod.execute("stat", "-c", "%a %g", "/run/secrets/heliograph/secret_key") == "440 10001\n"
    assert SECRET_KEY not in await pod.execute("env")


async def _changed_under_requests(node: pods.Node, running: list[pods.Pod], key: str) -> list[str]:
    """Replace the first of these pods, as a rolling update does, while requests come in, one of which stays incomplete
    until the pod accepts no more connections. Returns the numbers of the accepted messages."""
    old, *others = running
    others.append(await node.start(kubernetes.templates()["api"]))
    await until_true(lambda: others[-1].passes("readinessProbe"))
    numbers = (f"25884{n:07d}" for n in itertools.count())
    half, sent = next(numbers), []

    body = msgspec.json.encode({"to": f"+{half}", "message": "half"})
    reader, writer = await asyncio.open_connection(urlsplit(old.url()).hostname, urlsplit(old.url()).port)
    head = f"POST /v1/sms/send HTTP/1.1\r\nHost: api\r\nAuthorization: Bearer {key}\r\nIdempotency-Key: half\r\n"
    writer.write(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body[:9])
    await writer.drain()

    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(Client(pod.url(), key)) for pod in (old, *others)]

        async def send(*through: Client) -> None:
            for client in through:
                sent.append(next(numbers))
                await client.send(f"+{sent[-1]}")

        await send(*clients)
        stopping = asyncio.create_task(old.stop())
        # It gets requests until its probe has failed.
        while await old.passes("readinessProbe"):
            await send(*clients)
        while await old.passes("livenessProbe"):
            await send(*clients[1:])
        writer.write(body[9:])
        await writer.drain()
        assert (await reader.readline()).startswith(b"HTTP/1.1 202 ")
        writer.close()
        await send(*clients[1:])
        assert await stopping == 0
        await send(*clients[1:])
        assert [client.unanswered for client in clients] == [0, 0, 0]
    return [half, *sent]
