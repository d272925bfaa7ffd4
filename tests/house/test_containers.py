"""Containers: the files below `deploy/` start, set, mount and probe only what the product has."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest
import typer
import yaml

from heliograph import __version__
from heliograph.api.door.probes import PATHS
from heliograph.base.embedded.server import STOP_TIMEOUTS, default_data_dir
from heliograph.base.process.settings import SECRETS, Settings
from heliograph.cli import app
from heliograph.up.parts import PATIENCE, api_patience, worker_patience
from tests import kubernetes
from tests.database import Cluster
from tests.house.project import ROOT
from tests.pgbouncer import bouncing_by

DEPLOY = ROOT / "deploy"
CONTAINERFILE = (DEPLOY / "Containerfile").read_text()
COMPOSED = sorted((DEPLOY / "compose").glob("*.yaml"))
#: Seconds that an API process needs before and after it stops accepting requests; a worker ends after twice its drain
#: time.
DEFAULTS = Settings()


def services(path: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = yaml.safe_load(path.read_text())["services"]
    return found


def demand_command(words: list[str]) -> None:
    """The command and its options exist."""
    parsed: Any = typer.main.get_command(app)
    left = list(words)
    while hasattr(parsed, "list_commands"):
        parsed = parsed.get_command(None, left.pop(0))
    known = {option for parameter in parsed.params for option in parameter.opts}
    assert {word for word in left if word.startswith("--")} <= known, words


def demand_setting(name: str) -> None:
    assert name in {f"HELIOGRAPH_{one.upper()}" for one in Settings.__struct_fields__} | {
        f"HELIOGRAPH_{one.upper()}_FILE" for one in SECRETS
    }


def seconds(text: str) -> float:
    return float(text[:-1]) * {"s": 1, "m": 60}[text[-1]]


def ours() -> Iterator[tuple[str, dict[str, Any]]]:
    """The services that run the product, in all compose files."""
    for path in COMPOSED:
        for name, service in services(path).items():
            if service.get("image", "").startswith("heliograph:"):
                yield name, service


def test_everything_is_of_this_version() -> None:
    for path in [*COMPOSED, *kubernetes.FILES, DEPLOY / "Containerfile"]:
        if path.name == "ingress.yaml":  # it starts nothing
            continue
        assert set(re.findall(r"\bheliograph:(\d[\w.]*)", path.read_text())) == {__version__}, path


def test_the_image_runs_as_nobody_in_particular_and_builds_nothing() -> None:
    build, image = re.split(r"^FROM .*$", CONTAINERFILE, flags=re.MULTILINE)[1:]
    assert "\nUSER 10001:10001\n" in image
    assert "apt-get" not in CONTAINERFILE
    assert "--only-binary :all: --require-hashes" in build
    assert "pip uninstall --yes --quiet pip" in image
    # It would leave behind a volume for each API process and worker, which store nothing.
    assert "\nVOLUME " not in image
    entry = re.search(r'^ENTRYPOINT \["(.*)"\]$', image, re.MULTILINE)
    command = re.search(r"^CMD (.*)$", image, re.MULTILINE)
    assert entry is not None
    assert command is not None
    assert entry[1] == "/opt/heliograph/bin/heliograph"
    words = yaml.safe_load(command[1])
    demand_command(words)
    assert f"EXPOSE {words[words.index('--port') + 1]}\n" in image


def test_what_compose_starts_is_there() -> None:
    assert {path.name for path in COMPOSED} == {"one-machine.yaml", "separate.yaml"}
    commands = []
    for name, service in ours():
        demand_command(service["command"])
        commands.append(service["command"][0])
        for setting in service["environment"]:
            if setting != "XDG_DATA_HOME":
                demand_setting(setting)
        assert service["read_only"], name
        assert service["cap_drop"] == ["ALL"]
        # The host keeps core files of containers as well.
        assert service["ulimits"] == {"core": {"soft": 0, "hard": 0}}
        # Not every composer waits for a condition: a process that finds no database, or no schema, is started again.
        assert service["restart"] == ("on-failure" if service["command"][0] == "migrate" else "unless-stopped")
        for probed in re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)", str(service.get("healthcheck", ""))):
            assert probed[0] == service["command"][service["command"].index("--port") + 1]
            assert probed[1] in PATHS
    assert sorted(commands) == ["api", "migrate", "up", "worker"]


def test_probes_of_compose_are_understood_by_every_composer() -> None:
    """podman-compose 1.0.3 joins the words of a list without quoting characters that are special to a shell."""
    probed = 0
    for path in COMPOSED:
        for name, service in services(path).items():
            if "healthcheck" in service:
                kind, *words = service["healthcheck"]["test"]
                if kind == "CMD":
                    assert all(re.fullmatch(r"[\w./-]+", word) for word in words), name
                else:
                    assert kind == "CMD-SHELL"
                    python, option, program = shlex.split(*words)
                    assert (python, option) == ("python", "-c")
                    compile(program, name, "exec")
                probed += 1
    assert probed == 3


def test_commands_in_the_one_container_find_its_data() -> None:
    service = services(DEPLOY / "compose" / "one-machine.yaml")["heliograph"]
    (volume,) = service["volumes"]
    assert "--data-dir" not in service["command"]
    assert default_data_dir(service["environment"], uid=10001) == Path(volume.split(":")[1])


@pytest.mark.skipif(shutil.which("podman-compose") is None, reason="podman-compose is not here")
@pytest.mark.parametrize("path", COMPOSED, ids=lambda path: path.stem)
def test_a_composer_understands_them(path: Path) -> None:
    done = subprocess.run(["podman-compose", "-f", path, "config"], capture_output=True, text=True)
    if "invalid choice: 'config'" in done.stderr:
        pytest.skip("podman-compose knows `config` from 1.0.4 on")
    assert done.returncode == 0, done.stderr
    assert set(yaml.safe_load(done.stdout)["services"]) == set(services(path))


def times_to_end() -> dict[str, float]:
    """How long each command may take to end after SIGTERM, in seconds."""
    api = DEFAULTS.not_ready_seconds + DEFAULTS.drain_seconds
    parts = (api_patience(DEFAULTS), worker_patience(DEFAULTS), PATIENCE, *STOP_TIMEOUTS)
    return {"api": api, "worker": 2 * DEFAULTS.drain_seconds, "up": sum(parts)}


def test_containers_have_time_to_end() -> None:
    needed = times_to_end()
    for name, service in ours():
        if service["command"][0] in needed:
            assert seconds(service["stop_grace_period"]) > needed[service["command"][0]], name


def test_secrets_of_compose_are_those_that_the_script_makes(tmp_path: Path) -> None:
    place = tmp_path / "secrets"
    made = [DEPLOY / "compose" / "secrets.sh", place]
    subprocess.run(made, check=True)
    again = subprocess.run(made, capture_output=True, text=True)
    assert again.returncode == 1
    assert "is there already" in again.stderr
    composed = yaml.safe_load((DEPLOY / "compose" / "separate.yaml").read_text())
    listed = {Path(one["file"]).name: name for name, one in composed["secrets"].items()}
    assert set(listed) == {path.name for path in place.iterdir()}
    assert all(file == name for file, name in listed.items())
    used = {secret for service in composed["services"].values() for secret in service.get("secrets", ())}
    assert used == set(listed.values())
    for service in composed["services"].values():
        for value in service.get("environment", {}).values():
            if str(value).startswith("/run/secrets/"):
                assert Path(value).name in service["secrets"]
    # The application's password is the one that PgBouncer checks, and hosts are services.
    url = (place / "database_url").read_text()
    password = re.fullmatch(r"postgresql://heliograph:(.+)@pgbouncer:6432/heliograph", url)
    assert password is not None
    assert (place / "pgbouncer_users").read_text() == f'"heliograph" "{password[1]}"\n'
    assert password[1] in (place / "database_direct_url").read_text()
    hosts = {re.search(r"@(\w+):", (place / name).read_text())[1] for name in listed if name.endswith("_url")}  # type: ignore[index]
    assert hosts <= set(composed["services"])
    assert (place.stat().st_mode & 0o777) == 0o700


def test_pgbouncer_looks_up_no_name() -> None:
    """A container's address changes when it is started again, and PgBouncer caches names for an hour."""
    text = (DEPLOY / "compose" / "pgbouncer.ini").read_text()
    (place,) = re.findall(r"^heliograph = host=(/\S+) port=5432$", text, re.MULTILINE)
    started = services(DEPLOY / "compose" / "separate.yaml")
    shared = {volume for volume in started["postgres"]["volumes"] if volume.endswith(f":{place}")}
    assert set(started["pgbouncer"]["volumes"]) == shared
    assert len(shared) == 1


def test_pgbouncer_is_stopped_by_a_signal_that_does_not_wait_for_clients() -> None:
    """From 1.23 on, SIGTERM waits: its clients stay, and new ones are turned away until it is killed."""
    text = (DEPLOY / "compose" / "pgbouncer.Containerfile").read_text()
    assert re.findall(r"^STOPSIGNAL (\w+)$", text, re.MULTILINE) == ["SIGINT"]


async def test_pgbouncer_accepts_its_settings(database_server: Cluster) -> None:
    async with bouncing_by(DEPLOY / "compose" / "pgbouncer.ini", database_server.url) as url:
        conn = await asyncpg.connect(url, statement_cache_size=0)
        try:
            assert await conn.fetchval("SELECT 1") == 1
        finally:
            await conn.close()


@pytest.mark.skipif(shutil.which("sh") is None, reason="there is no sh")
def test_the_script_is_plain_sh() -> None:
    subprocess.run(["sh", "-n", DEPLOY / "compose" / "secrets.sh"], check=True)
