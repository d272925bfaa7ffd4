"""The form for a person: how it is displayed, parsed and refused."""

from __future__ import annotations

from typing import Any

from heliograph.accounts import organizations
from heliograph.base import csv_files, phones
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.contacts import records
from heliograph.contacts.records import Changes, Contact, ContactAlreadyExists
from heliograph.dashboard.audience import words
from heliograph.pages.answers import Answer, refused
from heliograph.pages.forms import leaving
from heliograph.pages.requests import Request

TEMPLATE = "audience/person_edit.html"
FIELDS = ("name", "first_name", "last_name", "phone", "tags")


def shown(contact: Contact) -> dict[str, str]:
    """The current values of the fields."""
    return {
        "name": contact.name,
        "first_name": contact.first_name or "",
        "last_name": contact.last_name or "",
        "phone": contact.phone,
        "tags": csv_files.joined(contact.tags),
    }


def values(typed: dict[str, str], contact: Contact | None) -> dict[str, Any]:
    """The template's values; `contact`: None for a new one."""
    return {"typed": typed, "contact": contact, "was": leaving.written(shown(contact) if contact else {})}


async def read(conn: Connection, request: Request, typed: dict[str, str]) -> Changes:
    """The typed fields as the rules expect them. Raises Invalid with everything that is wrong."""
    wrong: list[tuple[str, str, str]] = []
    first, last = typed["first_name"] or None, typed["last_name"] or None
    whole = typed["name"] or records.full_name(first, last) or ""
    for field, text in (("name", whole), ("first_name", first), ("last_name", last)):
        if text is None:
            continue
        try:
            records.name(text, field)
        except Invalid as refusal:
            issue = refusal.details["fields"][0]["issue"]
            wrong.append((field, issue, words.CAMPAIGN_FORM[f"name.{issue}"]))
    home = (await organizations.get(conn, id=request.actor.organization_id)).country
    number = phones.read(typed["phone"], region=home)
    if number is None:
        wrong.append(("phone", "pattern", words.CONTACT_FORM["phone"]))
    tags: tuple[str, ...] = ()
    try:
        tags = records.tags(csv_files.split(typed["tags"]))
    except Invalid:
        wrong.append(("tags", "length", words.CONTACT_FORM["tags"]))
    if wrong:
        raise Invalid(*wrong)
    return Changes(phone=number, names=(whole, first, last), tags=tags)


def refused_with(refusal: Invalid | ContactAlreadyExists, typed: dict[str, str], contact: Contact | None) -> Answer:
    """The form as typed, with a refusal; one because of another contact links to that contact."""
    shown_now = values(typed, contact)
    if isinstance(refusal, ContactAlreadyExists):
        shown_now["other"] = refusal.details["id"]
        refusal = Invalid(("phone", refusal.code, refusal.message))
    return refused(TEMPLATE, refusal, shown_now)
