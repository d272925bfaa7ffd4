"""Tables of the documentation that are generated from the code: settings, errors, an SMPP account's options, retry
schedules, the figures.

`python -m tests.house.tables` writes them into the documents; the tests compare. With the path of a file written by
`make bench ARGS="--json FILE"`, that run's figures go into the README; without one, its figures stay.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_args, get_type_hints

import msgspec

from bench.figures import BUDGETS
from heliograph.accounts.api_keys.scopes import PROFILES, SCOPES
from heliograph.api.document import error_pages
from heliograph.base import retry
from heliograph.base.process.settings import Settings
from heliograph.suppliers import kinds
from heliograph.suppliers.smpp.settings import SmppSettings
from heliograph.why import words
from tests.house.project import DOCS, ROOT

#: The unit is in a setting's name.
UNITS = {"seconds": "s", "hours": "h", "days": "days", "months": "months", "bytes": "bytes"}
#: The description of each budget's figure, in display order, and its unit.
FIGURES = {
    "accept_ratio_64": ("Accepted over HTTP, durable, 64 connections ÷ pgbench single-row insert, 64 clients", ""),
    "accept_p99_64": ("p99 of accept, 64 connections", "ms"),
    "accept_ratio_1": ("Accepted, 1 connection ÷ pgbench, 1 client", ""),
    "accept_to_naive": ("Accepted ÷ the same transaction one by one in pgbench, 64 clients", ""),
    "way_ratio": ("End to end, accept to signed webhook received ÷ pgbench, 64 clients", ""),
    "way_http_ratio": ("End to end through a supplier over HTTP ÷ over SMPP", ""),
    "way_kannel": ("End to end ÷ Kannel with its file store", ""),
    "way_processor": ("Processor time per message, end to end, without load generator, SMSC and receiver", "µs"),
    "overhead": ("Processor time that scraped metrics and logs at info add to API and worker", "%"),
    "way_wal": ("WAL per message, end to end", "B"),
    "way_accept_p99": ("p99 of accept under full end-to-end load, 64 connections", "ms"),
    "idle_commits": ("Commits of an idle installation", "/s"),
    "backlog_plain": ("Backlog of 100 000 drained, receipts recorded", "/s"),
    "backlog_webhooks": ("Backlog of 100 000 drained, one webhook each", "/s"),
    "routing": ("Choosing the supplier of a message, 1 000 routes and 50 suppliers", "µs"),
    "claim_organizations": ("A claim with 20 000 organizations waiting ÷ with one", ""),
    "claim_lines": ("A claim from 20 000 lines ÷ from one", ""),
    "claim_snapshot": ("A claim after 300 000 rows were finished under an open snapshot ÷ after none", ""),
    "look_snapshot": ("A poll for work after 300 000 rows were finished under an open snapshot ÷ after none", ""),
    "growth_ratio": ("Accepted with 10 million messages stored ÷ with none", ""),
    "pages_p95": ("p95 of the dashboard's slowest page, 10 million messages stored", "ms"),
    "pages_failed": ("Pages that failed in that run", ""),
    "pages_accept": ("Accepted with 20 dashboards open ÷ with none", ""),
    "pages_memory": ("Resident memory, API process after its pages", "MB"),
    "contacts_import": ("Contacts imported from a CSV file, two tags each", "/s"),
    "campaign_staging": ("Campaign recipients staged from contacts by tag, an individual text each", "/s"),
    "whatsapp_way": ("WhatsApp: accept to signed webhook, three statuses each, 64 connections", "/s"),
    "whatsapp_statuses": ("WhatsApp statuses received and applied, one per callback", "/s"),
    "whatsapp_answer_p99": ("p99 of the response to Meta, 1 000 statuses a second", "ms"),
    "memory_api": ("Resident memory, API process", "MB"),
    "memory_worker": ("Resident memory, worker", "MB"),
    "start_delivered": ("`up` on a new data directory to the first delivered message", "s"),
}
#: Measured beside the ratios, without a budget of their own.
ABSOLUTE = {
    "pgbench_64": ("pgbench single-row insert, 64 clients", "/s"),
    "accept_64": ("Accepted over HTTP, 64 connections", "/s"),
    "accept_p50_64": ("p50 of accept, 64 connections", "ms"),
    "way": ("End to end, 64 connections", "/s"),
}


def settings() -> str:
    """Every setting of a process."""
    rows = []
    for field, (kind, meaning) in _fields(Settings).items():
        unit = UNITS.get(field.rpartition("_")[2], "")
        default = _shown(_default(Settings, field))
        rows.append([f"`HELIOGRAPH_{field.upper()}`", kind, default, unit, meaning])
    return _table(["Variable", "Type", "Default", "Unit", "Meaning"], rows)


def smpp() -> str:
    """Every option of an SMPP account."""
    return _options(SmppSettings)


def http() -> str:
    """Every option of an account that consists of configuration alone, including those that all accounts over HTTP
    have."""
    return _options(kinds.SETTINGS[kinds.GENERIC])


def _options(struct: type[msgspec.Struct]) -> str:
    rows = []
    for field, (_, meaning) in _fields(struct).items():
        default = _default(struct, field)
        shown = "required" if default is msgspec.NODEFAULT else _shown(default)
        rows.append([f"`{field}`", shown, meaning])
    return _table(["Option", "Default", "Meaning"], rows)


def figures(measured: Mapping[str, float], facts: Mapping[str, str]) -> str:
    """Every budget with its figure, and the measured value. `measured`: medians by key; a missing one is shown as not
    measured. `facts`: about the machine and the run, by name."""
    rows = []
    for key, (label, unit) in FIGURES.items():
        sign = "≤" if BUDGETS[key].at_most else "≥"
        limits = [f"{sign} {_number(limit)} {unit}".strip() for limit in (BUDGETS[key].budget, BUDGETS[key].aim)]
        rows.append([label, _figure(measured, key, unit), *limits])
    rows += [[label, _figure(measured, key, unit), "", ""] for key, (label, unit) in ABSOLUTE.items()]
    said = [f"{name}: {value}." for name, value in facts.items() if value]
    return _table(["What", "Measured", "Budget", "Target"], rows) + "\n" + (" ".join(said) or "Nothing yet.") + "\n"


def errors() -> str:
    """Every error's code, as on its page."""
    rows = []
    for one in error_pages.errors():
        details = "; ".join(f"`{name}`: {text}" for name, text in one.details.items())
        rows.append([f"`{one.code}`", str(one.status), one.cause, one.remedy, details])
    return _table(["Code", "HTTP", "When", "What to do", "`details`"], rows)


def failures() -> str:
    """Why an SMS failed, as shown to customers."""
    return _explained("sms_failure", "Failure", of="Status")


def whatsapp_failures() -> str:
    """Why a WhatsApp message failed, likewise."""
    return _explained("whatsapp_failure", "WhatsApp failure")


def reasons() -> str:
    """Why a campaign waits or has failed, likewise."""
    return _explained("campaign", "Reason", of="Status")


def webhook_results() -> str:
    """The results of attempts to deliver an event, likewise. `busy` is sent a moment later, and is not an attempt."""
    return _explained("webhook", "Result", but="busy")


def _explained(kind: words.Kind, head: str, *, of: str | None = None, but: str = "") -> str:
    rows = []
    for code, one in words.entries()[kind].items():
        if code == but:
            continue
        statuses = [] if of is None else [", ".join(f"`{status}`" for status in one.of)]
        rows.append([f"`{code}`", *statuses, one.en.customer, one.en.cause, one.en.remedy])
    return _table([head, *([] if of is None else [of]), "Meaning", "Cause", "What to do"], rows)


def profiles() -> str:
    """The scopes of each profile, in the order of the list of scopes."""
    rows = [[f"`{name}`", ", ".join(f"`{one}`" for one in SCOPES if one in held)] for name, held in PROFILES.items()]
    return _table(["Profile", "Scopes"], rows)


def webhook_retries() -> str:
    """The attempts to deliver an event, with the default schedule."""
    rows = []
    elapsed = 0.0
    for attempt, pause in enumerate(retry.webhook(_default(Settings, "webhook_schedule")).pauses, 1):
        elapsed += pause
        rows.append([str(attempt), _time(pause), _time(elapsed)])
    return _table(["Attempt", "After the previous one", "Since the event"], rows)


def retries() -> str:
    """Every schedule by which something is tried again."""
    schedules = {
        'SMS: the supplier answered "later"': _schedule(retry.SUBMIT),
        "SMS: the supplier throttles, is not connected or is at capacity": (
            f"{_time(retry.HOLD)}, growing by {_time(retry.HOLD)} per attempt up to {_time(retry.HOLD_MOST)}; "
            "does not count as a try"
        ),
        "SMS receipt that matches no message": f"{_schedule(retry.RECEIPT)}; then it is an orphan",
        "SMPP session lost": _backoff(
            retry.Backoff(
                _default(SmppSettings, "reconnect_seconds"), longest=_default(SmppSettings, "reconnect_max_seconds")
            )
        )
        + ", ±30 %",
        "WhatsApp: a fault at Meta": _backoff(retry.META_TROUBLE),
        "WhatsApp: too many messages to one user": _backoff(retry.META_USER),
        "WhatsApp: the template is paused": _backoff(retry.META_TEMPLATE_PAUSED),
        "WhatsApp: a number's sends get no response": _backoff(retry.META_SILENT),
        "WhatsApp: sync of an account failed": _backoff(retry.META_SYNC),
        "WhatsApp: first sync of an account failed": _backoff(retry.META_FIRST_SYNC),
        "Webhook": _schedule(retry.webhook(_default(Settings, "webhook_schedule"))),
    }
    return _table(["What is retried", "Delays"], [[name, delays] for name, delays in schedules.items()])


def _schedule(schedule: retry.Schedule) -> str:
    listed = ", ".join(_time(pause) for pause in schedule.pauses)
    then = "" if schedule.then is None else f", then every {_time(schedule.then)}".replace("every 1 h", "every hour")
    jitter = f", each ±{schedule.jitter:.0%}".replace("%", " %") if schedule.jitter else ""
    return f"{listed}{then}{jitter}"


def _backoff(backoff: retry.Backoff) -> str:
    grows = "doubling" if backoff.growth == 2 else f"growing {backoff.growth:g}-fold"
    return f"{_time(backoff.first)}, {grows} up to {_time(backoff.longest)}"


def _time(seconds: float) -> str:
    """`90 s`, `5 min`, `2 h 5 min`."""
    if seconds < 120 and seconds % 60:
        return f"{seconds:g} s"
    hours, rest = divmod(int(seconds), 3600)
    minutes, rest = divmod(rest, 60)
    parts = [f"{count} {unit}" for count, unit in ((hours, "h"), (minutes, "min"), (rest, "s")) if count]
    return " ".join(parts) or "0 s"


#: The place of each generated table.
PLACES: tuple[tuple[Path, str, Callable[[], str]], ...] = (
    (DOCS / "api.md", "profiles", profiles),
    (DOCS / "errors.md", "errors", errors),
    (DOCS / "errors.md", "failures", failures),
    (DOCS / "errors.md", "WhatsApp failures", whatsapp_failures),
    (DOCS / "errors.md", "reasons", reasons),
    (DOCS / "errors.md", "webhook results", webhook_results),
    (DOCS / "settings.md", "settings", settings),
    (DOCS / "adding-a-supplier.md", "smpp", smpp),
    (DOCS / "adding-a-supplier.md", "http", http),
    (DOCS / "operations.md", "retries", retries),
    (DOCS / "webhooks.md", "webhook retries", webhook_retries),
)


def between(path: Path, name: str) -> str:
    """The text between a document's marks."""
    return _place(path.read_text(), name)[1]


def replace(path: Path, name: str, text: str) -> None:
    """Put `text` between a document's marks."""
    before, _, after = _place(path.read_text(), name)
    path.write_text(before + text + after)


def _place(text: str, name: str) -> tuple[str, str, str]:
    """A document's text before, between and after the marks of a table, which must occur there once."""
    begin = re.findall(rf"<!-- {name}: made by .*? -->\n\n", text)
    assert len(begin) == 1, f"{name}: {len(begin)} places for one table"
    before, _, rest = text.partition(begin[0])
    between, mark, after = rest.partition("\n<!-- end -->")
    assert mark, f"{name}: the place has no end"
    return before + begin[0], between, mark + after


def _fields(struct: type[msgspec.Struct]) -> dict[str, tuple[str, str]]:
    """Type name and meaning of each field."""
    hints = get_type_hints(struct, include_extras=True)
    found = {}
    for field in struct.__struct_fields__:
        kind, meaning = get_args(hints[field])[:2]
        found[field] = (getattr(kind, "__name__", ""), meaning)
    return found


def _default(struct: type[msgspec.Struct], name: str) -> Any:
    field = next(one for one in msgspec.structs.fields(struct) if one.name == name)
    return field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default


def _shown(value: Any) -> str:
    if value in ("", None) or value == {}:
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    if isinstance(value, tuple):
        return f"`{','.join(str(one) for one in value)}`"
    return f"`{value:g}`" if isinstance(value, float) else f"`{value}`"


def _figure(measured: Mapping[str, float], key: str, unit: str) -> str:
    return f"{_number(measured[key])} {unit}".strip() if key in measured else "not measured yet"


def _number(value: float) -> str:
    if value >= 1000:
        return f"{value:,.0f}".replace(",", " ")
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *[[cell.replace("|", "\\|") for cell in row] for row in rows]]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def main(arguments: list[str]) -> None:
    """Write the tables."""
    for path, name, make in PLACES:
        replace(path, name, make())
    if arguments:
        written = msgspec.json.decode(Path(arguments[0]).read_bytes())
        medians = {key: one["median"] for key, one in written["figures"].items()}
        replace(ROOT / "README.md", "figures", figures(medians, written["facts"]))


if __name__ == "__main__":
    main(sys.argv[1:])
