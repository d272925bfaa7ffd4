"""The mail about a day's receipts: plain text, one paragraph per supplier."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from heliograph.base.network.smtp import Mail
from heliograph.pages.languages import DEFAULT, ReaderLocale, locale
from heliograph.sms.reports.daily import Reader
from heliograph.sms.reports.reconciliation import Reconciled


def compose(to: Reader, name: str, day: date, lines: Sequence[Reconciled], *, console: str) -> Mail:
    """The mail. `console`: the address of the console, "" if it is not known."""
    known = locale(to.language or DEFAULT, to.zone)
    title = known.text("Receipts of %(day)s", day=known.whole_day(day))
    parts = [title + " (UTC)", *(_supplier(known, one) for one in lines)]
    if console:
        parts.append(f"{console}/receipts?from={day}&to={day}")
    return Mail(to.email, f"{name}: {title}", "\n\n".join(parts) + "\n")


def _supplier(known: ReaderLocale, one: Reconciled) -> str:
    line = one.line
    shares = [None if each is None else each.delivered_share for each in (line, one.before)]
    now, before = ("–" if share is None else f"{known.number(100 * share, 1)} %" for share in shares)
    figures = (
        (known.text("Submitted"), known.number(line.submitted)),
        (known.count_label("Accepted"), known.number(line["accepted"])),
        (known.count_label("Delivered"), f"{now} ({known.text('Week before')}: {before})"),
        (known.text("Not delivered"), known.number(line.matched - line["delivered"])),
        (known.text("Never reported"), known.number(line["never"])),
        (known.text("Waiting"), known.number(line.waiting)),
        (known.text("Orphaned"), known.number(line["orphaned"])),
    )
    return "\n".join((one.supplier, *(f"  {label}: {figure}" for label, figure in figures)))
