"""One trace from the request to the webhook, as a collector receives it: over real sockets, from real processes."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from heliograph.base.ids import uuid7
from heliograph.base.process import spans
from heliograph.base.process.settings import Settings, SettingsError
from tests.load import Client
from tests.processes import Installation, Program, environment, installation, until
from tests.tracing import without_ids

TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


class Collector:
    """An OTLP receiver: every span received, with the service that sent it."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.url = ""

    async def take(self, request: web.Request) -> web.Response:
        sent = ExportTraceServiceRequest.FromString(await request.read())
        for resource in sent.resource_spans:
            about = {one.key: one.value.string_value for one in resource.resource.attributes}
            for span in (one for scope in resource.scope_spans for one in scope.spans):
                said = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
                self.spans.append(
                    {
                        "service": about["service.name"],
                        "name": span.name,
                        "trace": span.trace_id.hex(),
                        "id": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "took": span.end_time_unix_nano - span.start_time_unix_nano,
                        "said": said,
                    }
                )
        return web.Response(content_type="application/x-protobuf")

    def of(self, trace: str) -> dict[str, dict[str, Any]]:
        """The spans of a trace, by name."""
        return {one["name"]: one for one in self.spans if one["trace"] == trace}


@contextlib.asynccontextmanager
async def collecting() -> AsyncIterator[Collector]:
    collector, app = Collector(), web.Application()
    app.router.add_post("/v1/traces", collector.take)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    assert site._server is not None
    port = site._server.sockets[0].getsockname()[1]  # type: ignore[attr-defined]
    collector.url = f"http://127.0.0.1:{port}"
    try:
        yield collector
    finally:
        await runner.cleanup()


async def sent(made: Installation, key: str, header: str | None) -> str:
    """Send a message; returns its id."""
    async with Client(made.base_url, made.key) as client:
        headers = {"idempotency-key": key} | ({"traceparent": header} if header else {})
        body = {"to": "+258841234567", "message": "um segredo"}
        status, answer = await client.ask("POST", "/sms/send", json=body, headers=headers)
    assert status == 202, answer
    return str(answer["message"]["id"])


async def delivered(made: Installation, message_id: str) -> Any:
    """The event of the message, once it has arrived."""
    await made.receiver.wait_for(lambda one: any(event.message_id == message_id for event in one.events), within=120)
    return next(event for event in made.receiver.events if event.message_id == message_id)


async def contexts(url: str) -> list[asyncpg.Record]:
    conn = await asyncpg.connect(url)
    try:
        found: list[asyncpg.Record] = await conn.fetch("SELECT * FROM message_traces")
        return found
    finally:
        await conn.close()


@pytest.mark.lasts(12)
async def test_one_trace_leads_from_the_request_to_the_webhook(database_url: str, tmp_path: Path) -> None:
    async with collecting() as collector:
        settings = {"HELIOGRAPH_TRACES_URL": collector.url, "HELIOGRAPH_TRACES_RATIO": "0"}
        async with installation(database_url, tmp_path, **settings) as made:
            programs = [await api(made), await made.worker()]
            await asyncio.gather(*(program.ready() for program in programs))
            plain = await delivered(made, await sent(made, "plain", None))
            unsampled = await delivered(made, await sent(made, "unsampled", f"00-{TRACE}-{PARENT}-00"))
            assert await contexts(database_url) == []
            id = await sent(made, "traced", f"00-{TRACE}-{PARENT}-01")
            event = await delivered(made, id)
            wanted = {"POST /v1/sms/send", "sms queue", "sms attempt", "sms receipt", "webhook"}
            await until(lambda: set(collector.of(TRACE)) >= wanted)
            (kept,) = await contexts(database_url)
            assert str(kept["message_id"]) == id
    found = collector.of(TRACE)
    # Nothing else was traced, and each step once.
    assert len(collector.spans) == len(found) == len(wanted)
    root = found["POST /v1/sms/send"]
    assert root["parent"] == PARENT
    assert {one["parent"] for name, one in found.items() if one is not root} == {root["id"]}
    assert {one["service"] for one in found.values()} == {"heliograph-api", "heliograph-worker"}
    assert root["said"]["http.response.status_code"] == 202
    assert root["said"]["heliograph.request_id"]
    assert all(one["said"]["heliograph.message_id"] == id for name, one in found.items() if name.startswith("sms "))
    assert found["sms attempt"]["said"]["heliograph.verdict"] == "accepted"
    assert found["sms receipt"]["said"]["heliograph.status"] == "delivered"
    assert (
        found["webhook"]["said"] | {"http.response.status_code": 200, "heliograph.event_id": event.id}
        == (found["webhook"]["said"])
    )
    assert all(one["took"] >= 0 for one in found.values())
    # The receiver continues the trace below the attempt that reached it; other events carry none.
    assert event.headers["traceparent"] == f"00-{TRACE}-{found['webhook']['id']}-01"
    assert "traceparent" not in plain.headers
    assert "traceparent" not in unsampled.headers
    # No number, and no text. How long a step took is eight digits of chance.
    said = without_ids(str([(one["name"], one["said"]) for one in collector.spans]))
    assert ("25884" in said, "segredo" in said) == (False, False)


async def api(made: Installation) -> Program:
    """A web process, once it is ready."""
    return await made.start("api", "api", "--json", "--port", str(made.port))


@pytest.mark.lasts(8)
async def test_a_collector_that_is_away_costs_nothing_but_its_spans(database_url: str, tmp_path: Path) -> None:
    settings = {"HELIOGRAPH_TRACES_URL": "http://127.0.0.1:9", "HELIOGRAPH_TRACES_RATIO": "1"}
    async with installation(database_url, tmp_path, **settings) as made:
        programs = [await api(made), await made.worker()]
        await asyncio.gather(*(program.ready() for program in programs))
        event = await delivered(made, await sent(made, "one", None))
        assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", event.headers["traceparent"])
        assert [await program.stop() for program in programs] == [0, 0]
        assert made.complaints == []


async def test_without_the_extra_the_setting_is_refused_by_name(tmp_path: Path) -> None:
    hidden = tmp_path / "opentelemetry"
    hidden.mkdir()
    (hidden / "__init__.py").write_text("raise ModuleNotFoundError('No module named opentelemetry', name=__name__)\n")
    set_up = {"HELIOGRAPH_SECRET_KEY": "a secret key for this test only, long enough, 7", "PYTHONPATH": str(tmp_path)}
    url = {"HELIOGRAPH_TRACES_URL": "http://127.0.0.1:4318", "HELIOGRAPH_DATABASE_URL": "postgresql://nobody@[::1]:1/x"}
    program = await Program.start("worker", log=tmp_path / "worker", environment=environment(**set_up, **url))
    assert await program.ended() != 0
    assert "pip install 'heliograph[traces]'" in program.err
    assert "Traceback" not in program.err


def test_nothing_is_imported_where_nothing_is_traced() -> None:
    begun = (
        "import sys; from heliograph.cli.running import api, worker;"
        "from heliograph.base.process import settings, spans;"
        "spans.configure(settings.Settings(), part='api'); assert not spans.on();"
        "assert not [name for name in sys.modules if name.partition('.')[0] in ('opentelemetry', 'google')]"
    )
    subprocess.run([sys.executable, "-c", begun], check=True)


@pytest.mark.parametrize(
    ("name", "value"),
    [("traces_ratio", 1.5), ("traces_per_second", -1), ("traces_url", "localhost:4318")],
)
def test_settings_that_make_no_sense_are_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name.upper()):
        spans.configure(Settings(**{"traces_url": "http://127.0.0.1:4318", name: value}), part="api")


class Begun:
    """An exporter that only counts."""

    def __init__(self) -> None:
        self.parents: list[spans.Context | None] = []

    def begin(self, name: str, *, parent: spans.Context | None, kind: Any, at: int, said: Any) -> Any:
        self.parents.append(parent)
        return None

    def close(self) -> None:
        pass


@pytest.fixture
def begun() -> Any:
    exporter = Begun()
    spans.use(exporter, ratio=0)
    yield exporter
    spans.use(None)


@pytest.mark.parametrize(
    ("header", "is_traced"),
    [
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"00-{TRACE}-{PARENT}-03", True),
        (f"01-{TRACE}-{PARENT}-01-what-may-come", True),
        (f"00-{TRACE}-{PARENT}-00", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE.upper()}-{PARENT}-01", False),
        (f"00-{TRACE}-01", False),
        ("", False),
        ("0" * 100_000, False),
    ],
)
def test_headers_are_read_as_w3c_says(begun: Begun, header: str, is_traced: bool) -> None:
    spans.incoming(header.encode())
    assert begun.parents == ([spans.Context(int(TRACE, 16), int(PARENT, 16))] if is_traced else [])


def test_requests_that_ask_for_it_are_traced_so_often_and_no_more(begun: Begun) -> None:
    spans.use(begun, ratio=1, most=3)
    header = f"00-{TRACE}-{PARENT}-01".encode()
    for _ in range(50):
        spans.incoming(header)
    # A second may have ended meanwhile.
    assert 3 <= len(begun.parents) <= 3 * 10


def test_marked_ids_are_ids_as_any_other_and_their_references_differ() -> None:
    ids = [spans.marked(uuid7()) for _ in range(1000)]
    assert all(spans.is_marked(id) and id.version == 7 for id in ids)
    assert ids == sorted(ids) or len(set(ids)) == 1000
    # References of segments are derived from the lowest 16 bits.
    assert len({id.int & 0xFFFF for id in ids}) > 900
    assert sum(spans.is_marked(uuid7()) for _ in range(1000)) < 10
    assert spans.is_marked(spans.like(ids[0], uuid7())) == spans.on()


def test_lines_about_a_traced_message_carry_its_trace(begun: Begun) -> None:
    id = UUID("01a205ee-f0d7-700b-8179-8f82fe0c8640")
    spans.remember(id, spans.Context(7, 8))
    assert spans.in_log(None, "info", {"message_id": str(id)})["trace_id"] == f"{7:032x}"
    assert "trace_id" not in spans.in_log(None, "info", {"message_id": str(uuid7())})
    assert "trace_id" not in spans.in_log(None, "info", {"event": "x"})
