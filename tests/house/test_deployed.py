"""Alerts, the dashboard of metrics and the runbook name existing metrics, and agree with each other."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from heliograph.base.database.pool import Pool
from heliograph.base.process import measures, settings
from heliograph.base.process.measures import Gauge
from heliograph.cli import app
from heliograph.health.snapshots import Standbys
from heliograph.metrics import database
from heliograph.metrics.exporting import Exporter
from tests.house.project import ROOT
from tests.house.test_containers import times_to_end

RULES = ROOT / "deploy" / "prometheus" / "heliograph.rules.yml"
BOARD = ROOT / "deploy" / "grafana" / "heliograph.json"
RUNBOOK = ROOT / "docs" / "runbook.md"
_METRIC = re.compile(r"\bheliograph_[a-z_]+\b")
#: Metrics yielded by parts of a process and by the HTTP server: see `Work.gauges` and `serve._gauges`.
OF_PARTS = re.compile(r'Gauge\(\s*"(heliograph_[a-z_]+)"')


async def exported(pool: Pool) -> set[str]:
    """The names of all samples that API and worker can expose."""
    for counter in measures.COUNTERS:
        counter.add(*("x" for _ in counter.labels), by=0)
    for histogram in measures.HISTOGRAMS:
        histogram.observe(1, *("x" for _ in histogram.labels))
    said = await database.read(pool, Standbys())

    async def again() -> list[Gauge]:
        return list(said)

    exporter = Exporter(database=again)
    exporter._said = said
    registry = CollectorRegistry()
    registry.register(exporter)
    text = generate_latest(registry).decode()
    names = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    for path in (ROOT / "heliograph").rglob("*.py"):
        names |= set(OF_PARTS.findall(path.read_text()))
    return names


async def test_alerts_and_board_ask_for_metrics_that_exist(pool: Pool) -> None:
    names = await exported(pool)
    expressions = re.findall(r"expr: >?\n?(.*?)(?=\n +(?:for|labels):)", RULES.read_text(), re.DOTALL)
    assert len(expressions) > 15
    for text in (*expressions, BOARD.read_text()):
        assert set(_METRIC.findall(text)) - {"heliograph"} <= names, text


async def test_the_board_shows_every_metric(pool: Pool) -> None:
    shown = set(_METRIC.findall(BOARD.read_text())) | set(_METRIC.findall(RULES.read_text()))
    shown = {re.sub(r"_(bucket|sum|count|total)$", "", name) for name in shown}
    names = {re.sub(r"_(bucket|sum|count|total|created)$", "", name) for name in await exported(pool)}
    # These say nothing that others do not.
    implied = {
        "heliograph_database_up",
        "heliograph_claimed",
        "heliograph_batch_failures",
        "heliograph_results_waiting",
    }
    assert names - shown - implied == set()


def test_each_alert_has_its_section_in_the_runbook() -> None:
    alerts = re.findall(r"- alert: (\w+)", RULES.read_text())
    sections = re.findall(r"^## (\w+)$", RUNBOOK.read_text(), re.MULTILINE)
    assert alerts == sections
    links = re.findall(r"runbook: docs/runbook\.md#(\w+)", RULES.read_text())
    assert links == [alert.lower() for alert in alerts]


def test_the_board_is_one() -> None:
    board = json.loads(BOARD.read_text())
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"]) > 20
    assert all(panel["targets"] for panel in board["panels"])


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here (Debian: prometheus)")
def test_promtool_accepts_the_rules() -> None:
    configuration = RULES.parent / "prometheus.yml"
    for arguments in (["rules", str(RULES)], ["config", str(configuration)]):
        done = subprocess.run(["promtool", "check", *arguments], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
    assert Path(configuration).exists()


ATTEMPTS, FAILED = "heliograph_webhook_attempts_total", "heliograph_messages_failed_total"
REQUESTS = "heliograph_requests_total"


@pytest.mark.skipif(shutil.which("promtool") is None, reason="promtool is not here (Debian: prometheus)")
@pytest.mark.parametrize(
    ("alert", "series", "is_raised"),
    [
        # One message to a destination that nobody serves; as many as make an alert, of few and of many.
        ("HeliographNoRoute", {f'{FAILED}{{code="destination_unreachable"}}': "0 1x60"}, False),
        ("HeliographNoRoute", {f'{FAILED}{{code="destination_unreachable"}}': "0+1x6 6x60"}, True),
        (
            "HeliographNoRoute",
            {
                f'{FAILED}{{code="destination_unreachable"}}': "0+1x6 6x60",
                'heliograph_attempts_total{channel="sms"}': "0+100x60",
            },
            False,
        ),
        # A request that fails, with its retries; failures that go on, of few requests and of many.
        ("HeliographRefusals", {f'{REQUESTS}{{status="500"}}': "0 1x3 2x3 3x60"}, False),
        ("HeliographRefusals", {f'{REQUESTS}{{status="500"}}': "0+1x60"}, True),
        (
            "HeliographRefusals",
            {f'{REQUESTS}{{status="503"}}': "0+1x60", f'{REQUESTS}{{status="202"}}': "0+1000x60"},
            False,
        ),
        # The four attempts of one event, to an endpoint that is gone; several events; others that arrive.
        ("HeliographWebhooksFailing", {f'{ATTEMPTS}{{result="http"}}': "0 3x5 4x60"}, False),
        ("HeliographWebhooksFailing", {f'{ATTEMPTS}{{result="http"}}': "0+2x60"}, True),
        (
            "HeliographWebhooksFailing",
            {f'{ATTEMPTS}{{result="http"}}': "0+2x60", f'{ATTEMPTS}{{result="delivered"}}': "0+3x60"},
            False,
        ),
    ],
)
def test_few_failures_at_night_wake_nobody(alert: str, series: dict[str, str], is_raised: bool, tmp_path: Path) -> None:
    known = [{"series": name, "values": values} for name, values in series.items()]
    # Whether it was raised at any time within the hour.
    asked = [
        {
            "expr": f'count(count_over_time(ALERTS{{alertname="{alert}", alertstate="firing"}}[1h]))',
            "eval_time": "59m",
            "exp_samples": [{"labels": "{}", "value": 1}] if is_raised else [],
        }
    ]
    tests = [{"interval": "1m", "input_series": known, "promql_expr_test": asked}]
    case = {"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": tests}
    (tmp_path / "case.yml").write_text(json.dumps(case))
    done = subprocess.run(["promtool", "test", "rules", "case.yml"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_start_commands_that_exist(unit: Path) -> None:
    (command,) = re.findall(r"^ExecStart=\S+ -m heliograph (.*)$", unit.read_text(), re.MULTILINE)
    words = command.split()
    parsed: Any = typer.main.get_command(app)
    while hasattr(parsed, "list_commands"):
        parsed = parsed.get_command(None, words.pop(0))
    known = {option for parameter in parsed.params for option in parameter.opts}
    assert {word for word in words if word.startswith("--")} <= known


def test_units_have_time_to_end() -> None:
    needed, found = times_to_end(), set()
    for unit in UNITS:
        text = unit.read_text()
        for command in re.findall(r"^ExecStart=\S+ -m heliograph (\w+)", text, re.MULTILINE):
            if command in needed:
                (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", text, re.MULTILINE)
                assert float(seconds) > needed[command], unit.name
                found.add(command)
    assert found == set(needed)


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_are_started_again_however_often_they_failed(unit: Path) -> None:
    """By default, systemd gives up on a unit whose fifth start within 10 s has failed, even once the cause is gone."""
    begin, _, service = unit.read_text().partition("[Service]")
    is_restarted = re.search(r"^Restart=(always|on-failure)$", service, re.MULTILINE) is not None
    at_boot = "\n[Install]\n" in service
    assert is_restarted == ("\nStartLimitIntervalSec=0\n" in begin) == at_boot
    # A database on the same machine need not be up yet, nor accept anybody when it is.
    assert bool(re.search(r"^After=.*\bpostgresql\.service\b", begin, re.MULTILINE)) == at_boot


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_units_leave_no_core_files(unit: Path) -> None:
    """Where systemd-coredump is installed, it keeps those of all services otherwise."""
    assert "\nLimitCORE=0\n" in unit.read_text().partition("[Service]")[2]


def test_credentials_of_units_are_secrets_that_are_read() -> None:
    named = {name for unit in UNITS for name in re.findall(r"LoadCredential=heliograph_(\w+):", unit.read_text())}
    assert named <= set(settings.SECRETS)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not here")
@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_systemd_accepts_the_units(unit: Path, tmp_path: Path) -> None:
    # The program and the account of the real location do not exist on this machine.
    text = re.sub(r"^ExecStart=\S+", "ExecStart=/bin/true", unit.read_text(), flags=re.MULTILINE)
    (tmp_path / unit.name).write_text(text.replace("User=heliograph", "User=root"))
    done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / unit.name)], capture_output=True, text=True)
    said = [line for line in done.stderr.splitlines() if unit.name in line]
    assert said == [], done.stderr
