"""Proxies in front of the API, configured as `docs/proxies.md` recommends: nginx and HAProxy themselves if they are
installed, and otherwise a relay that sends what they send.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import os
import re
import shutil
import socket
from collections.abc import AsyncIterator
from pathlib import Path

from heliograph.http.proxy_protocol import SIGNATURE
from tests.house.project import DOCS
from tests.ports import held_port

Address = tuple[str, int]

#: The page's heading → the value of `HELIOGRAPH_PROXY_SAYS`.
KINDS = {
    "nginx": "x-forwarded-for",
    "HAProxy": "x-forwarded-for",
    "HAProxy with the PROXY protocol": "proxy-protocol",
}


def prefix(address: str, port: int, *, further: bytes = b"") -> bytes:
    """A header of the PROXY protocol, version 2. `further`: the bytes after the addresses."""
    source = ipaddress.ip_address(address)
    family = b"\x11" if source.version == 4 else b"\x21"
    addresses = source.packed * 2 + port.to_bytes(2) + (80).to_bytes(2) + further
    return SIGNATURE + b"\x21" + family + len(addresses).to_bytes(2) + addresses


@contextlib.asynccontextmanager
async def proxy(kind: str, behind: Address, folder: Path) -> AsyncIterator[Address]:
    """A proxy of this kind in front of `behind`, at 127.0.0.1; yields where it listens."""
    name = "nginx" if kind == "nginx" else "haproxy"
    program = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/usr/local/sbin")
    if program is None:
        async with _relay(KINDS[kind], behind) as address:
            yield address
        return
    with held_port() as port:
        address = ("127.0.0.1", port)
        file = folder / f"{name}.conf"
        file.write_text(_nginx(kind, address, behind, folder) if name == "nginx" else _haproxy(kind, address, behind))
        arguments = ["-c", str(file), "-p", str(folder)] if name == "nginx" else ["-db", "-f", str(file)]
        with (folder / f"{name}.log").open("wb") as log:
            process = await asyncio.create_subprocess_exec(program, *arguments, stdout=log, stderr=log)
        try:
            async with asyncio.timeout(120):
                while not await _listens(address):
                    assert process.returncode is None, (folder / f"{name}.log").read_text()
                    await asyncio.sleep(0.02)
            yield address
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()


def configuration(kind: str) -> str:
    """The configuration below this heading of `docs/proxies.md`."""
    page = (DOCS / "proxies.md").read_text()
    found = re.search(rf"^## {re.escape(kind)}\n.*?^```\w+\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    assert found is not None, kind
    return found[1]


def _of_this_machine(text: str, behind: Address) -> str:
    """With our port for the servers; the second server is left out."""
    text = text.replace("10.0.0.11:8080", f"{behind[0]}:{behind[1]}")
    lines = [line for line in text.splitlines() if "10.0.0.12:8080" not in line]
    assert len(lines) < len(text.splitlines())
    return "\n".join(lines) + "\n"


def _nginx(kind: str, address: Address, behind: Address, folder: Path) -> str:
    text = _of_this_machine(configuration(kind), behind)
    text = re.sub(r"^ *ssl_.*\n", "", text, flags=re.MULTILINE)
    changed = text.replace("listen 443 ssl http2;", f"listen {address[0]}:{address[1]};")
    assert changed != text
    user = "user root;" if os.geteuid() == 0 else ""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = "".join(f"{what}_temp_path {folder}/{what};" for what in kinds)
    return (
        f"{user} daemon off; pid {folder}/nginx.pid; error_log stderr; worker_processes 1; events {{}}\n"
        f"http {{ access_log off; {temporary}\n{changed} }}\n"
    )


def _haproxy(kind: str, address: Address, behind: Address) -> str:
    text = _of_this_machine(configuration(kind), behind)
    changed = re.sub(r"bind :443 .*", f"bind {address[0]}:{address[1]}", text)
    assert changed != text
    return changed


async def _listens(address: Address) -> bool:
    try:
        _, writer = await asyncio.open_connection(*address)
    except OSError:
        return False
    writer.close()
    return True


@contextlib.asynccontextmanager
async def _relay(says: str, behind: Address) -> AsyncIterator[Address]:
    """Forwards bytes as the proxies do: it adds a line to the first head of each connection, or puts a prefix before
    it. Clients must send `Connection: close`."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        client: Address = writer.get_extra_info("peername")[:2]
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            back, forth = await asyncio.open_connection(*behind)
            if says == "proxy-protocol":
                forth.write(prefix(*client))
            else:
                head = await reader.readuntil(b"\r\n\r\n")
                forth.write(head[:-2] + b"X-Forwarded-For: " + client[0].encode() + b"\r\n\r\n")
            await asyncio.gather(_copy(reader, forth), _copy(back, writer))
            forth.close()
        writer.close()
        tasks.discard(task)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, family=socket.AF_INET)
    try:
        yield server.sockets[0].getsockname()[:2]
    finally:
        server.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
    while piece := await source.read(65_536):
        target.write(piece)
        await target.drain()
    with contextlib.suppress(OSError):
        target.write_eof()
