"""Filters shared by the lists of this room."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, datetime, time
from typing import Literal
from uuid import UUID
from zoneinfo import ZoneInfo

from heliograph.accounts import organizations
from heliograph.base import csv_files, phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound
from heliograph.contacts import records
from heliograph.contacts.imports import drafts
from heliograph.contacts.search import Filters
from heliograph.dashboard import listing
from heliograph.pages.languages import alphabetical
from heliograph.pages.lists import ranges
from heliograph.pages.lists.ranges import Range
from heliograph.pages.requests import Request
from heliograph.people.roles import CONTENT

#: Choices for the days without a message.
UNWRITTEN = (1, 7, 30, 90, 180, 365)
#: Value of `times`: the time range applies to when they were written to, not to when they became a contact.
WRITTEN = "written"
#: What is chosen from a list.
CHOICES = {
    "country": frozenset(phones.REGIONS.values()),
    "opted": frozenset({"yes", "no"}),
    "written": frozenset({"never", *map(str, UNWRITTEN)}),
    "range": frozenset({ranges.CUSTOM, *ranges.LENGTHS}),
    "match": frozenset({"any", "all"}),
    "times": frozenset({WRITTEN}),
}


def kept(given: Mapping[str, str], names: tuple[str, ...], longest: int = 200) -> dict[str, str]:
    """The filters in an address or a form."""
    return {name: given.get(name, "").strip()[:longest] for name in names}


def countries(request: Request) -> list[tuple[str, str]]:
    """(code, name) of all countries, in the alphabetical order of the reader's language."""
    named = [(region, request.locale.country(region)) for region in set(phones.REGIONS.values()) - {"001"}]
    return sorted(named, key=lambda one: alphabetical(one[1]))


async def import_page(request: Request, conn: Connection, id: UUID | None) -> str:
    """The address of an import's page; "" if its reader may not see it, it is no longer kept, or the command line made
    it, so that it has none."""
    if id is None or not request.may("contacts:write"):
        return ""
    try:
        await drafts.get(conn, request.actor, id=id)
    except NotFound:
        return ""
    return request.to(f"/contacts/imports/{id}")


def as_json(request: Request) -> bool:
    """Whether the form requests JSON lines."""
    return request.form.get("format") == "json"


def sees_numbers(request: Request) -> bool:
    """Whoever may change contacts has to see their numbers, too."""
    return request.may(permission=CONTENT) or request.may("contacts:write")


async def filters_of(conn: Connection, request: Request, kept: dict[str, str]) -> tuple[Filters, dict[str, str]]:
    """(filters, what could not be understood, by field: it is ignored, so nothing may be done to whoever matches)"""
    problems: dict[str, str] = {}
    try:
        tags = records.tags(csv_files.split(kept["tag"]), "tag")
    except Invalid:
        tags, problems["tag"] = (), request.text("A tag must have 1 to 64 characters. Separate several with commas.")
    home = None
    if kept["q"] and any(character.isdigit() for character in kept["q"]):
        home = (await organizations.get(conn, id=request.actor.organization_id)).country
    asked = ranges.read(request, given=kept)
    created, written = (Range(name=""), asked) if kept["times"] == WRITTEN else (asked, Range(name=""))
    problems |= asked.problems
    problems |= listing.not_offered(request, {field: [kept[field]] for field in CHOICES}, CHOICES)
    delivered = _day(request, kept["delivered"])
    if kept["delivered"] and delivered is None:
        problems["delivered"] = request.text("Enter a time as 2027-01-31 or 2027-01-31 14:30.")
    match: Literal["any", "all"] = "all" if kept["match"] == "all" else "any"
    wanted = Filters(
        tags=tags,
        match=match,
        text=kept["q"],
        or_part=kept["q"] != "" and sees_numbers(request),
        home=home,
        country=kept["country"] if kept["country"] in CHOICES["country"] else None,
        opted_out={"yes": True, "no": False}.get(kept["opted"]),
        never_written=kept["written"] == "never",
        unwritten_days=next((days for days in UNWRITTEN if kept["written"] == str(days)), None),
        delivered_before=delivered,
        created_from=created.since,
        created_until=created.until,
        written_from=written.since,
        written_until=written.until,
    )
    return wanted, problems


def _day(request: Request, text: str) -> datetime | None:
    """The beginning of a day in the reader's time zone; None: not a date."""
    try:
        return datetime.combine(date.fromisoformat(text), time(), ZoneInfo(request.locale.zone))
    except ValueError:
        return None
