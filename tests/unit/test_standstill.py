"""A process that was suspended: responses that arrived meanwhile do not count as timeouts."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.lasts(8)
ROOT = Path(__file__).resolve().parents[2]
#: How long it is stopped, and how long it waits for a response: much longer than a request takes, in seconds.
STOPPED, PATIENCE = 7.0, 5.0

POSTING = """
import asyncio, uvloop
from ipaddress import ip_network
from heliograph.http.answers import Answer
from heliograph.http.client import ClientRules, HttpClient

async def main():
    rules = ClientRules(
        seconds={seconds}, connect_seconds={seconds}, per_destination=8, allow_http=True,
        networks=(ip_network("127.0.0.0/8"),)
    )
    client = HttpClient(rules)
    answers = await asyncio.gather(*(client.post("http://127.0.0.1:{port}/", b"", {{}}) for _ in range(3)))
    print(*(type(answer).__name__ for answer in answers))
    await client.close()

{run}
"""


@pytest.mark.parametrize("run", ["asyncio.run(main())", "uvloop.run(main())"])
async def test_http_answers_that_came_while_the_process_was_stopped_count(run: str) -> None:
    loop = asyncio.get_running_loop()
    asked: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        asked.append(writer)
        if len(asked) == 3:
            # A moment later it only waits for the responses.
            loop.call_later(0.1, process.send_signal, signal.SIGSTOP)
            for one in asked:
                loop.call_later(0.2, one.write, b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n")
            loop.call_later(STOPPED, process.send_signal, signal.SIGCONT)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        POSTING.format(port=server.sockets[0].getsockname()[1], seconds=PATIENCE, run=run),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    said, _ = await process.communicate()
    server.close()
    for one in asked:
        one.close()
        await one.wait_closed()
    assert said.split()[-3:] == [b"Answer"] * 3
