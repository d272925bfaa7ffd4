"""A mail to an operator about problems and pending work: plain text, grouped by kind."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from heliograph.base.network.smtp import Mail
from heliograph.overview.installation.telling import Cause, Reader
from heliograph.pages.languages import DEFAULT, ReaderLocale, locale
from heliograph.people.operators.noticing import KINDS


def compose(to: Reader, name: str, causes: Sequence[Cause], *, console: str) -> Mail:
    """The mail. `console`: the address of the console, "" if it is not known."""
    known = locale(to.language or DEFAULT, to.zone)
    order = list(KINDS)
    groups = [
        (kind, list(group))
        for kind, group in groupby(sorted(causes, key=lambda one: order.index(one.kind)), key=lambda one: one.kind)
    ]
    kind, first = groups[0]
    rest = len(groups) - 1
    title = _title(known, kind, first) + (f" (+{rest})" if rest else "")
    parts = ["\n".join(_lines(known, kind, group, console)) for kind, group in groups]
    if console:
        parts.append(known.text("What is mailed to you is your choice:") + f"\n{console}/notices/choices")
    subject = " ".join(f"{name}: {title}".split())
    return Mail(to.email, subject, "\n\n".join(parts) + "\n")


def _title(known: ReaderLocale, kind: str, group: Sequence[Cause]) -> str:
    """What happened, in a sentence: the single cause, or the number of them."""
    one, count = group[0], known.count
    if kind == "approval.waiting":
        return count("%(num)s sender ID waits for a decision.", "%(num)s sender IDs wait for a decision.", one.count)
    if len(group) == 1 and one.check is not None:
        return f"{known.sentence(one.check.check)}: {known.sentence(one.check.detail)}"
    match kind:
        case "supplier.lost":
            return count("%(num)s supplier has no session.", "%(num)s suppliers have no session.", len(group))
        case "receipts.missing":
            return count(
                "Receipts of %(num)s supplier need attention.",
                "Receipts of %(num)s suppliers need attention.",
                len(group),
            )
        case "check.failed":
            return count("%(num)s check is failing.", "%(num)s checks are failing.", len(group))
    return count("%(num)s check gives a warning.", "%(num)s checks give warnings.", len(group))


def _lines(known: ReaderLocale, kind: str, group: Sequence[Cause], console: str) -> list[str]:
    found = [_title(known, kind, group)]
    for one in group:
        if one.check is None:
            continue
        if len(group) > 1:
            found.append(f"- {known.sentence(one.check.check)}: {known.sentence(one.check.detail)}")
        if one.check.remedy:
            found.append(f"  {known.text('What to do')}: {known.sentence(one.check.remedy)}")
    if console:
        found.append(f"{console}{KINDS[kind].path}")
    return found
