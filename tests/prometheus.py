"""A Prometheus for a single test, which scrapes real processes and evaluates our alert rules. Skips if it is not
installed.

The rules are the shipped ones with shorter times: `for` is a second, ranges are `RANGE`, and thresholds in seconds or
counts are those of `SCALED`.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Collection
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest

from tests.fork_server import end_with_parent
from tests.house.project import ROOT
from tests.ports import held_port
from tests.processes import until_true

PROGRAM = shutil.which("prometheus")
RANGE = "20s"
#: Alert: its threshold as written, and the one used here.
SCALED = {
    "HeliographQueueLate": ("> 60", "> 5"),
    "HeliographNoRoute": ("> 4", "> 0"),
    "HeliographRefusals": ("> 4", "> 0"),
    "HeliographWebhooksFailing": ("> 10", "> 0"),
    "HeliographOldSnapshot": ("> 3600", "> 5"),
    "HeliographUnknownAttempts": ("> 100", "> 5"),
    "HeliographCallbacksWaiting": ("> 10000", "> 5"),
}


def rules() -> str:
    """The shipped rules, with shorter times."""
    text = (ROOT / "deploy" / "prometheus" / "heliograph.rules.yml").read_text()
    text = re.sub(r"^( +for:) \d+[smh]$", r"\1 1s", text, flags=re.MULTILINE)
    text = re.sub(r"\[\d+m\]", f"[{RANGE}]", text)
    for alert, (old, new) in SCALED.items():
        begin = text.index(f"- alert: {alert}\n")
        end = text.find("- alert:", begin + 1)
        part = text[begin:end]
        assert old in part, alert
        text = text[:begin] + part.replace(old, new) + text[end:]
    return text


class Prometheus:
    """A running Prometheus."""

    def __init__(self, url: str) -> None:
        self.url = url

    async def firing(self) -> set[str]:
        """The names of the firing alerts."""
        return {name for name, state in await self._alerts() if state == "firing"}

    async def until_scraped(self, processes: int) -> None:
        """Wait until it has scraped this many processes."""

        async def answer() -> bool:
            async with (
                aiohttp.ClientSession() as session,
                session.get(f"{self.url}/api/v1/query", params={"query": "sum(up)"}) as answer,
            ):
                said = msgspec.json.decode(await answer.read())
            return [float(one["value"][1]) for one in said["data"]["result"]] == [processes]

        await until_true(answer, within=180)

    async def fires(self, wanted: Collection[str]) -> None:
        """Wait until all of these fire."""
        await self._until(lambda firing: set(wanted) <= firing, f"{sorted(wanted)} to fire")

    async def clears(self, wanted: Collection[str]) -> None:
        """Wait until none of these fires."""
        await self._until(lambda firing: not set(wanted) & firing, f"{sorted(wanted)} to end")

    async def _until(self, holds: Any, what: str) -> None:
        last: set[str] = set()

        async def held() -> bool:
            nonlocal last
            last = await self.firing()
            return bool(holds(last))

        try:
            await until_true(held, within=180)
        except TimeoutError:
            raise AssertionError(f"waited in vain for {what}; firing: {sorted(last)}") from None

    async def _alerts(self) -> list[tuple[str, str]]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/api/v1/alerts") as answer:
            said = msgspec.json.decode(await answer.read())
        return [(one["labels"]["alertname"], one["state"]) for one in said["data"]["alerts"]]


@contextlib.asynccontextmanager
async def watching(place: Path, ports: Collection[int]) -> AsyncIterator[Prometheus]:
    """Prometheus, using these ports of this machine."""
    if PROGRAM is None:
        pytest.skip("prometheus is not installed: on Debian, apt-get install prometheus")
    place.mkdir()
    (place / "rules.yml").write_text(rules())
    targets = ", ".join(f'"127.0.0.1:{port}"' for port in ports)
    (place / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s, scrape_timeout: 1s, evaluation_interval: 1s}\n"
        "scrape_configs:\n"
        f"  - {{job_name: heliograph, static_configs: [{{targets: [{targets}]}}]}}\n"
        "rule_files: [rules.yml]\n"
    )
    with held_port() as port, (place / "log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            PROGRAM,
            f"--config.file={place / 'prometheus.yml'}",
            f"--storage.tsdb.path={place / 'data'}",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=subprocess.STDOUT,
            preexec_fn=end_with_parent,
        )
        try:

            async def answers() -> bool:
                assert process.returncode is None, (place / "log").read_text()
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                    return True
                return False

            await until_true(answers, within=120)
            yield Prometheus(f"http://127.0.0.1:{port}")
        finally:
            if process.returncode is None:
                process.terminate()
            await process.wait()
