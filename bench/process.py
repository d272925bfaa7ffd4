"""The simulators as processes, with a control port: `python -m bench.process NAME JSON`; the names are at the end.

They are those of `heliograph simulate`, without output. The measured processes (API and worker) are never started from
here: they run as in production, through `python -m heliograph`.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from typing import Any, cast

import msgspec
import uvloop

from bench import control
from bench.sink import Sink
from heliograph.http.heads import RequestHead
from heliograph.simulators.aggregators.simulator import Aggregator, Options
from heliograph.simulators.graph import demo as graph_demo
from heliograph.simulators.graph.simulator import GraphSimulator, quick
from heliograph.simulators.http import HttpSimulator, Reply
from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.simulator import Smsc

ANSWER = (
    b"HTTP/1.1 202 Accepted\r\ncontent-type: application/json\r\nx-request-id: 00000000-0000-7000-8000-000000000000"
    b"\r\ncontent-length: 216\r\n\r\n" + b" " * 216
)


async def smsc(values: dict[str, Any]) -> None:
    """`port`, `control`, `systems`. No number has a special meaning here."""
    simulator = Smsc(SmscOptions(port=values["port"], systems=values["systems"], magic=""))
    await simulator.start()
    await _until_told(values["control"], {"counters": lambda: simulator.counters}, simulator.stop)


async def graph(values: dict[str, Any]) -> None:
    """`options`, `control`, `numbers`: how many numbers, each of which may send a thousand messages per second."""
    options = quick(**values["options"], magic="", batch_window_ms=5.0, keep=1000, keep_requests=10, keep_callbacks=10)
    known = graph_demo.setup(options)
    template = known.numbers[0]
    numbers = [
        msgspec.structs.replace(template, id=f"{template.id}{n}", digits=f"{template.digits}{n}", throughput="HIGH")
        for n in range(values["numbers"])
    ]
    simulator = GraphSimulator(options, msgspec.structs.replace(known, numbers=numbers))
    await simulator.start()
    await _until_told(values["control"], {"counters": lambda: msgspec.to_builtins(simulator.counters)}, simulator.stop)


async def aggregator(values: dict[str, Any]) -> None:
    """`port`, `control`, `profile`, `secret`: a supplier over HTTP."""
    options = Options(
        profile=values["profile"],
        secret=values["secret"],
        port=values["port"],
        receipt_delay=0.0,
        always="delivered",  # ignore what numbers end with: one in a thousand would never get a receipt
    )
    simulator = Aggregator(options)
    await simulator.start()
    await _until_told(values["control"], {"counters": lambda: dict(simulator.answered)}, simulator.stop)


async def receiver(values: dict[str, Any]) -> None:
    """`port`, `control`, `secret`: verifies every signature. `latencies`: from accept to webhook, ms."""
    sink = Sink(values["secret"])
    server = await sink.listen(values["port"])

    async def stop() -> None:
        server.close()

    await _until_told(values["control"], {"counters": lambda: sink.counters, "latencies": sink.latencies}, stop)


async def visits(values: dict[str, Any]) -> None:
    """`port`, `control`: counts requests, with the same server that receives webhooks."""
    received = 0

    def take(head: RequestHead, body: bytes) -> Reply:
        nonlocal received
        received += 1
        return Reply(200)

    server = HttpSimulator(take, body_bytes=65_536)
    await server.listen("127.0.0.1", values["port"])

    async def stop() -> None:
        server.abort()

    await _until_told(values["control"], {"counters": lambda: {"received": received}}, stop)


async def fixed(values: dict[str, Any]) -> None:
    """`port`, `control`: a server that answers all requests alike, to measure the generator's maximum speed."""
    server = await asyncio.get_running_loop().create_server(Fixed, "127.0.0.1", values["port"], backlog=1024)

    async def stop() -> None:
        server.close()

    await _until_told(values["control"], {}, stop)


class Fixed(asyncio.Protocol):
    """Treats each read as one request: the generator never has two under way on a connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(ANSWER)


async def _until_told(port: int, answers: dict[str, Any], stop: Any) -> None:
    ended = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, ended.set)
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)
    server = await control.listen(port, answers)
    await ended.wait()
    server.close()
    await stop()


if __name__ == "__main__":
    uvloop.run(
        {
            "smsc": smsc,
            "graph": graph,
            "aggregator": aggregator,
            "receiver": receiver,
            "visits": visits,
            "fixed": fixed,
        }[sys.argv[1]](msgspec.json.decode(sys.argv[2]))
    )
