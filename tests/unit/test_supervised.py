"""Notifications to systemd, over a real socket of its protocol."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.base.process import supervised
from heliograph.base.process.settings import SECRETS, SettingsError, from_environment, unknown_names

KEY = "0123456789abcdef0123456789abcdef"


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "notify"))
        listening.setblocking(False)
        yield listening


def test_a_state_is_told(supervisor: socket.socket) -> None:
    assert supervised.tell(supervised.READY, {"NOTIFY_SOCKET": supervisor.getsockname()})
    assert supervisor.recv(100) == b"READY=1"


def test_an_abstract_address_begins_with_nul() -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(f"\0heliograph-test-{os.getpid()}")
        assert supervised.tell(supervised.STOPPING, {"NOTIFY_SOCKET": f"@heliograph-test-{os.getpid()}"})
        assert listening.recv(100) == b"STOPPING=1"


def test_a_supervisor_that_stands_still_is_not_waited_for(supervisor: socket.socket) -> None:
    environment = {"NOTIFY_SOCKET": supervisor.getsockname()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as filling:
        filling.setblocking(False)
        queued = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                filling.sendto(b"earlier", supervisor.getsockname())
                queued += 1
    for state in (supervised.ALIVE, supervised.STOPPING, supervised.READY):
        said: list[bool] = []
        told = threading.Thread(target=lambda: said.append(supervised.tell(state, environment)), daemon=True)  # noqa: B023
        told.start()
        told.join(30)
        assert said == [False], state
    # Without READY, it would end the process after a while.
    supervisor.setblocking(True)
    assert [supervisor.recv(100) for _ in range(queued + 1)] == [b"earlier"] * queued + [b"READY=1"]


def test_nobody_has_to_listen(tmp_path: Path) -> None:
    assert not supervised.tell(supervised.READY, {})
    assert not supervised.tell(supervised.READY, {"NOTIFY_SOCKET": str(tmp_path / "gone")})


@pytest.mark.parametrize(
    ("environment", "seconds"),
    [
        ({}, None),
        ({"WATCHDOG_USEC": "30000000"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "ours"}, 30.0),
        ({"WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, None),
        ({"WATCHDOG_USEC": "0"}, None),
        ({"WATCHDOG_USEC": "soon"}, None),
    ],
)
def test_how_often_a_sign_of_life_is_wanted(environment: dict[str, str], seconds: float | None) -> None:
    # Tests are collected before their process is forked.
    given = {name: str(os.getpid()) if value == "ours" else value for name, value in environment.items()}
    assert supervised.watchdog_seconds(given) == seconds


async def test_the_loop_feeds_the_watchdog(supervisor: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", supervisor.getsockname())
    monkeypatch.setenv("WATCHDOG_USEC", "30000")
    monkeypatch.setattr(supervised.tell, "__defaults__", (os.environ,))
    loop = asyncio.get_running_loop()
    async with supervised.watched():
        for _ in range(3):
            assert await loop.sock_recv(supervisor, 100) == b"WATCHDOG=1"


def test_a_secret_may_stand_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "key").write_text(f"{KEY}\n")
    named = {"HELIOGRAPH_SECRET_KEY_FILE": str(tmp_path / "key")}
    assert from_environment(named).secret_key == KEY
    assert unknown_names(named) == {}
    # As saved by an editor on Windows.
    (tmp_path / "key").write_bytes(f"\ufeff{KEY}\r\n".encode())
    assert from_environment(named).secret_key == KEY
    (tmp_path / "heliograph_secret_key").write_text(KEY)
    assert from_environment({"CREDENTIALS_DIRECTORY": str(tmp_path)}).secret_key == KEY
    assert (
        from_environment({"CREDENTIALS_DIRECTORY": str(tmp_path), "HELIOGRAPH_SECRET_KEY": KEY[::-1]}).secret_key
        == (KEY[::-1])
    )
    with pytest.raises(SettingsError, match=r"HELIOGRAPH_SECRET_KEY_FILE.*No such file"):
        from_environment({"HELIOGRAPH_SECRET_KEY_FILE": str(tmp_path / "gone")})


@pytest.mark.parametrize("name", SECRETS)
def test_an_empty_file_is_no_secret_that_is_left_out(name: str, tmp_path: Path) -> None:
    """Without a URL, `heliograph up` starts a database of its own."""
    (tmp_path / f"heliograph_{name}").write_bytes(b"\xef\xbb\xbf \n")
    variable = f"HELIOGRAPH_{name.upper()}"
    named = {f"{variable}_FILE": str(tmp_path / f"heliograph_{name}")}
    for environment in (named, {"CREDENTIALS_DIRECTORY": str(tmp_path)}):
        with pytest.raises(SettingsError, match=rf"heliograph_{name}, which {variable}_FILE or .* is empty"):
            from_environment(environment)
        assert getattr(from_environment(environment | {variable: ""}), name) == ""
