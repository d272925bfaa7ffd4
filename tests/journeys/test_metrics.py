"""Metrics of real processes: they show what the processes did, and several processes of a machine can share one
setting."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.load import Client
from tests.ports import held_row
from tests.processes import Program, installation, until, until_true

PORT = re.compile(r"http://127\.0\.0\.1:(\d+)/metrics")


async def scraped(program: Program) -> dict[str, dict[tuple[str, ...], float]]:
    """Name → label values → value, as exposed by a process."""
    await until(lambda: PORT.search(program.err))
    url = PORT.search(program.err)
    assert url is not None
    answer = await asyncio.to_thread(urllib.request.urlopen, url.group(0))
    assert answer.headers["content-type"].startswith("text/plain")
    found: dict[str, dict[tuple[str, ...], float]] = {}
    for family in text_string_to_metric_families(answer.read().decode()):
        for sample in family.samples:
            found.setdefault(sample.name, {})[tuple(sample.labels.values())] = sample.value
    return found


@pytest.mark.usefixtures("partitions_ahead")
async def test_what_processes_did_is_shown(database_url: str, tmp_path: Path) -> None:
    with held_row(4) as ports:
        listen = {"HELIOGRAPH_METRICS_LISTEN": f"127.0.0.1:{ports[0]}", "HELIOGRAPH_LOG_LEVEL": "info"}
        async with installation(database_url, tmp_path, **listen) as made:
            api, worker = await made.api(), await made.worker()
            await worker.ready()
            async with Client(made.base_url, made.key) as client:
                await client.send("+258841000001")
                refused, _ = await client.ask("POST", "/sms/send", json={"to": "nobody", "message": "Hello"})
                assert refused == 400

            async def done() -> bool:
                return bool((await scraped(worker)).get("heliograph_webhook_attempts_total", {}).get(("delivered",)))

            await until_true(done)
            said = await scraped(worker)
            assert said["heliograph_attempts_total"][("sms", "accepted")] == 1
            assert said["heliograph_reports_total"][("sms",)] == 1
            assert said["heliograph_receipts_total"][("matched",)] == 1
            assert said["heliograph_supplier_sessions"] == {("main",): 1}
            assert said["heliograph_supplier_window"][("main",)] >= 1
            assert said["heliograph_supplier_circuit_open"] == {("main",): 0}
            await until_true(lambda: shows(worker, "heliograph_workers"))
            said = await scraped(worker)
            # As of its last query of the database, at most 15 s ago.
            assert ("sms",) in said["heliograph_queue_rows"]
            assert said["heliograph_supplier_queue_oldest_seconds"] == {("main",): 0}
            assert said["heliograph_database_connections_opened_total"][()] >= 1
            assert said["heliograph_database_connection_failures_total"] == {(): 0}
            assert said["heliograph_partitions_ahead_seconds"][()] >= 86_400
            await until_true(lambda: shows(api, "heliograph_requests_total"))
            told = await scraped(api)
            # Labels are shown in the order of their names.
            assert told["heliograph_requests_total"][("", "sendSms", "202")] == 1
            assert told["heliograph_requests_total"][("validation_error", "sendSms", "400")] == 1
            assert told["heliograph_batch_items_sum"][("sms accept",)] == 1
            assert "+258841000001" not in str(said) + str(told), "numbers are in no metric"
            ports = [PORT.search(program.err) for program in (api, worker)]
            assert len({found.group(1) for found in ports if found is not None}) == 2


async def shows(program: Program, name: str) -> bool:
    return name in await scraped(program)
