"""Organizations: the customers, each with a state and the rules it chose for its traffic.

The rule nobody may break: an organization is never deleted, only closed, because bills refer to its rows.

It has over 400 lines because every rule that an organization chooses is declared, checked and written here.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any
from uuid import UUID
from zoneinfo import available_timezones

import asyncpg
import msgspec

from heliograph.audit import recording as audit
from heliograph.base import naming, phones
from heliograph.base.actor import SYSTEM, Actor, Principal
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid, NotFound, Problems, Refusal
from heliograph.base.ids import uuid7
from heliograph.queue import holds
from heliograph.sealing import text_keys

STATES = ("active", "trial", "past_due", "suspended", "closed")
#: States in which an organization can read, but not change or send anything.
STOPPED = frozenset({"suspended", "closed"})


class OrganizationSuspended(Refusal):
    """This organization is suspended or closed: it can read, export, cancel and revoke, but not send or change."""

    code, status = "organization_suspended", 403


class StateKept(Exception):
    """The organization is in a state that the caller leaves as it is."""


class DestinationNotAllowed(Refusal):
    """This organization may not send to `to`: `reason` says why.

    `country`: it is not among the organization's countries; `not_carried`: the operator has no route there; `premium`:
    it is a premium-rate or shared-cost number.
    """

    code, status = "destination_not_allowed", 403


class Organization(msgspec.Struct, frozen=True):
    """One row of `organizations`."""

    id: UUID
    name: str
    state: str
    #: ISO region by which its national numbers are interpreted; None: they are refused.
    country: str | None
    smart_encoding: bool
    replace_accents: bool
    #: ISO regions that may be sent to; None: all.
    allowed_countries: list[str] | None
    #: Opt-out words in addition to the standard ones.
    opt_out_words: list[str]
    #: Replies to STOP, START and HELP; None: the default, empty: none.
    stop_reply: str | None
    start_reply: str | None
    help_reply: str | None
    #: Language of the default replies, one of REPLY_LANGUAGES; None: that of its country.
    reply_language: str | None
    #: IANA name; None: UTC.
    time_zone: str | None
    #: Whether members without a second factor are denied access.
    factor_required: bool
    #: Sessions idle for this many hours end; None: only the sessions' own rules apply.
    session_hours: int | None
    #: Whether those who may not see texts can reveal one message at a time.
    reveals: bool
    #: Whether developers can create, rotate and revoke live keys too.
    developer_keys: bool
    plan: str | None
    period_start: datetime | None
    period_end: datetime | None
    created_at: datetime


_COLUMNS = (
    "id, name, state, country, smart_encoding, replace_accents, allowed_countries, opt_out_words, stop_reply,"
    " start_reply, help_reply, reply_language, time_zone, factor_required, session_hours, reveals, developer_keys,"
    " plan, period_start, period_end, created_at"
)
#: Maximum number of an organization's own opt-out words, length of a word, and length of a reply (at most four
#: segments).
MOST_WORDS, LONGEST_WORD, LONGEST_REPLY = 50, 64, 268
#: Languages of the default replies.
REPLY_LANGUAGES = ("en", "pt", "fr", "es", "sw")
#: Hours: a month.
LONGEST_SESSION = 720


def forbidden(actor: Actor, to: str) -> Refusal | None:
    """The refusal of a send that this organization is never allowed, OrganizationSuspended or DestinationNotAllowed;
    None if it is allowed. `to`: E.164, or the id of a WhatsApp user."""
    if actor.state in STOPPED:
        return OrganizationSuspended()
    return not_allowed(actor.allowed_countries, to)


def not_allowed(countries: Collection[str] | None, to: str) -> DestinationNotAllowed | None:
    """Why an organization that may send to these countries (None: all) may not send to a number (E.164). Premium-rate
    and shared-cost numbers are never allowed: no handset has one, and whoever rents them earns from each message."""
    country = phones.country(to)
    if countries is not None and country not in countries:
        return DestinationNotAllowed(country=country, reason="country")
    if phones.is_premium(to):
        return DestinationNotAllowed(country=country, reason="premium")
    return None


# Names are unique regardless of case. Of two requests for the same name, the second waits for the first, and then gets
# no row.
INSERT = f"""
INSERT INTO organizations (id, name, state, created_at, country, allowed_countries) VALUES ($1, $2, $3, $4, $5, $6)
ON CONFLICT (lower(name)) DO NOTHING RETURNING {_COLUMNS}
"""

# The balance exists from the start: accepting locks its row, and a missing row cannot be locked.
INSERT_QUOTA = "INSERT INTO quotas (organization_id) VALUES ($1)"


async def create(
    conn: Connection,
    *,
    name: str,
    state: str = "active",
    country: str | None = None,
    allowed_countries: list[str] | msgspec.UnsetType | None = msgspec.UNSET,
    by: Principal = SYSTEM,
) -> Organization:
    """Create an organization with an empty quota. `name`: 1 to 200 characters, unique; `state`: one of STATES;
    `country`: an ISO region, by which national numbers are interpreted; `allowed_countries`: ISO regions that may be
    sent to, None for all. The default is the organization's own country; only an organization without one can send
    everywhere.

    Raises Invalid with all errors; that the name is taken is found only if there is no other.
    """
    wrong = Problems()
    with wrong.gathering():
        name = _checked_name(name)
    with wrong.gathering():
        _check_state(state)
    with wrong.gathering():
        country = None if country is None else _checked_country(country)
    if allowed_countries is msgspec.UNSET:
        allowed_countries = None if country is None else [country]
    else:
        with wrong.gathering():
            allowed_countries = _checked_countries(allowed_countries)
    wrong.report()
    told: dict[str, object] = {"name": name, "state": state, "country": country, "allowed_countries": allowed_countries}
    async with conn.transaction():
        row = await conn.fetchrow(INSERT, uuid7(), name, state, clock.now(), country, allowed_countries)
        if row is None:
            raise await _taken(conn, name)
        await conn.execute(INSERT_QUOTA, row["id"])
        made = Organization(**row)
        await _record(conn, by, "organization.created", made, after=told)
    return made


SELECT = f"SELECT {_COLUMNS} FROM organizations WHERE id = $1"


async def get(conn: Connection, *, id: UUID) -> Organization:
    """The organization, or NotFound."""
    return _known(await conn.fetchrow(SELECT, id), id)


LOCK = f"SELECT {_COLUMNS} FROM organizations WHERE id = $1 FOR NO KEY UPDATE"
RENAME = f"""
UPDATE organizations SET name = $2
 WHERE id = $1 AND {naming.IS_FREE.format(table="organizations")} RETURNING {_COLUMNS}
"""


async def rename(conn: Connection, *, id: UUID, name: str, by: Principal = SYSTEM) -> Organization:
    """Rename an organization, under the same rules as for its first name. Raises Invalid, NotFound."""
    name = _checked_name(name)
    try:
        async with conn.transaction():
            before = _known(await conn.fetchrow(LOCK, id), id)
            row = await conn.fetchrow(RENAME, id, name)
            if row is None:
                raise await _taken(conn, name)
            renamed = Organization(**row)
            if renamed != before:
                await _record(conn, by, "organization.renamed", renamed, {"name": before.name}, {"name": name})
            return renamed
    except asyncpg.UniqueViolationError:
        raise await _taken(conn, name) from None


FIND = f"""
SELECT {_COLUMNS} FROM organizations WHERE $1::text IS NULL OR {naming.IS_CALLED}
 ORDER BY {naming.ID_FIRST}, lower(name) LIMIT $2
"""
NAMES = "SELECT name FROM organizations ORDER BY lower(name) LIMIT $1"
#: How many organizations an error lists.
CHOICES = 10


async def find(conn: Connection, *, reference: str | None) -> Organization:
    """The organization that an operator refers to: by id, by name (in any case and any encoding of its accents), or the
    only one (None).

    Raises NotFound and Invalid; both list the existing ones.
    """
    rows = await conn.fetch(FIND, reference, CHOICES + 1)
    if len(rows) > 1 and reference is None:
        choices = _choices([row["name"] for row in rows])
        raise Invalid(
            ("organization", "ambiguous", f"there are several organizations: choose one with --org ({choices})")
        )
    if not rows:
        names = [row["name"] for row in await conn.fetch(NAMES, CHOICES + 1)]
        if not names:
            raise NotFound("There is no organization yet: create one with `heliograph org create NAME`.")
        raise NotFound(f"There is no organization {reference!r}. There are: {_choices(names)}.")
    return Organization(**rows[0])


def _choices(names: list[str]) -> str:
    return ", ".join(repr(name) for name in names[:CHOICES]) + (", …" if len(names) > CHOICES else "")


LIST = f"SELECT {_COLUMNS} FROM organizations ORDER BY id DESC LIMIT $1"


async def list_all(conn: Connection, *, limit: int = 1000) -> list[Organization]:
    """The organizations, newest first."""
    return [Organization(**row) for row in await conn.fetch(LIST, limit)]


# $3: the states in which it is stopped. Its state before the first of them is kept until it is resumed.
SET_STATE = f"""
UPDATE organizations
   SET state = $2, resumes_as = CASE WHEN $2 <> ALL ($3::text[]) THEN NULL WHEN state = ANY ($3) THEN resumes_as
                                     ELSE state END
 WHERE id = $1 RETURNING {_COLUMNS}
"""


async def set_state(
    conn: Connection, *, id: UUID, state: str, unless: Collection[str] = (), by: Principal = SYSTEM
) -> Organization:
    """Change the state of an organization, unless it is in one of these. Takes effect in every process within a second,
    like the revocation of a key. Closing permanently destroys the key of its sealed texts. Raises Invalid, NotFound,
    StateKept."""
    _check_state(state)
    async with conn.transaction():
        before = _known(await conn.fetchrow(LOCK, id), id)
        if before.state in unless:
            raise StateKept
        after = _known(await conn.fetchrow(SET_STATE, id, state, list(STOPPED)), id)
        if state == "closed":
            await text_keys.destroy(conn, id)
        elif before.state == "closed":
            await text_keys.renew(conn, id)
        if before.state in STOPPED and after.state not in STOPPED:
            await holds.resume(conn, id, kinds=("sms", "whatsapp"))
        await _record(conn, by, "organization.state_changed", after, {"state": before.state}, {"state": after.state})
    return after


HOLD_STOPPED = "SELECT id FROM organizations WHERE id = ANY ($1) AND state = ANY ($2) FOR SHARE SKIP LOCKED"


async def hold_stopped(conn: Connection, ids: Collection[UUID]) -> set[UUID]:
    """Which of these organizations are stopped and remain so until the end of the caller's transaction: whoever resumes
    one waits for it. One that somebody is changing is not among them."""
    return {row["id"] for row in await conn.fetch(HOLD_STOPPED, list(ids), list(STOPPED))}


RESUMES_AS = "SELECT coalesce(resumes_as, 'active') FROM organizations WHERE id = $1"


async def resume(conn: Connection, *, id: UUID, unless: Collection[str] = (), by: Principal = SYSTEM) -> Organization:
    """Return a suspended or closed organization to the state it was in before, unless it is in one of these; does
    nothing to others. Raises NotFound, StateKept."""
    async with conn.transaction():
        one = _known(await conn.fetchrow(LOCK, id), id)
        if one.state in unless:
            raise StateKept
        if one.state not in STOPPED:
            return one
        return await set_state(conn, id=id, state=await conn.fetchval(RESUMES_AS, id), by=by)


CONFIGURE = f"""
UPDATE organizations
   SET smart_encoding = coalesce($2, smart_encoding),
       allowed_countries = CASE WHEN $3 THEN $4::text[] ELSE allowed_countries END,
       opt_out_words = coalesce($5::text[], opt_out_words),
       stop_reply = CASE WHEN $6 THEN $7 ELSE stop_reply END,
       start_reply = CASE WHEN $8 THEN $9 ELSE start_reply END,
       help_reply = CASE WHEN $10 THEN $11 ELSE help_reply END,
       country = CASE WHEN $12 THEN $13 ELSE country END,
       replace_accents = coalesce($14, replace_accents),
       time_zone = CASE WHEN $15 THEN $16 ELSE time_zone END,
       factor_required = coalesce($17, factor_required),
       session_hours = CASE WHEN $18 THEN $19::int ELSE session_hours END,
       reveals = coalesce($20, reveals),
       reply_language = CASE WHEN $21 THEN $22 ELSE reply_language END,
       developer_keys = coalesce($23, developer_keys)
 WHERE id = $1
RETURNING {_COLUMNS}
"""


async def configure(
    conn: Connection,
    *,
    id: UUID,
    smart_encoding: bool | None = None,
    replace_accents: bool | None = None,
    allowed_countries: list[str] | msgspec.UnsetType | None = msgspec.UNSET,
    opt_out_words: list[str] | None = None,
    stop_reply: str | msgspec.UnsetType | None = msgspec.UNSET,
    start_reply: str | msgspec.UnsetType | None = msgspec.UNSET,
    help_reply: str | msgspec.UnsetType | None = msgspec.UNSET,
    country: str | msgspec.UnsetType | None = msgspec.UNSET,
    time_zone: str | msgspec.UnsetType | None = msgspec.UNSET,
    factor_required: bool | None = None,
    session_hours: int | msgspec.UnsetType | None = msgspec.UNSET,
    reveals: bool | None = None,
    reply_language: str | msgspec.UnsetType | None = msgspec.UNSET,
    developer_keys: bool | None = None,
    by: Principal = SYSTEM,
) -> Organization:
    """Change an organization's own rules; omitted ones are unchanged.

    `allowed_countries=None` lifts the restriction; `country=None` means that national numbers are refused. A reply of
    None restores the default text, an empty one disables the reply; `reply_language=None` means the country's.
    `time_zone=None` means UTC; with `session_hours=None` only the sessions' own rules apply. Raises Invalid, NotFound.
    """
    wrong = Problems()
    if opt_out_words is not None:
        with wrong.gathering():
            opt_out_words = _checked_words(opt_out_words)
    if allowed_countries is not msgspec.UNSET:
        with wrong.gathering():
            allowed_countries = _checked_countries(allowed_countries)
    replies = {"stop_reply": stop_reply, "start_reply": start_reply, "help_reply": help_reply}
    values: list[object] = []
    for name, value in {"allowed_countries": allowed_countries, **replies}.items():
        values += _given(value)
        if isinstance(value, str) and not _is_text(value, LONGEST_REPLY):
            wrong.add(name, "length", f"`{name}` must have at most {LONGEST_REPLY} characters")
    if isinstance(country, str):
        with wrong.gathering():
            country = _checked_country(country)
    values += _given(country)
    if isinstance(time_zone, str) and time_zone not in available_timezones():
        wrong.add("time_zone", "enum", f"`time_zone` must be an IANA name, such as Africa/Maputo, not {time_zone!r}")
    if isinstance(session_hours, int) and not 1 <= session_hours <= LONGEST_SESSION:
        wrong.add("session_hours", "range", f"`session_hours` must be from 1 to {LONGEST_SESSION}")
    if isinstance(reply_language, str) and reply_language not in REPLY_LANGUAGES:
        wrong.add("reply_language", "enum", f"`reply_language` must be one of {', '.join(REPLY_LANGUAGES)}")
    wrong.report()
    policy = [
        *_given(time_zone),
        factor_required,
        *_given(session_hours),
        reveals,
        *_given(reply_language),
        developer_keys,
    ]
    async with conn.transaction():
        before = _known(await conn.fetchrow(LOCK, id), id)
        row = await conn.fetchrow(
            CONFIGURE, id, smart_encoding, *values[:2], opt_out_words, *values[2:], replace_accents, *policy
        )
        after = _known(row, id)
        if after != before:
            await _record(conn, by, "organization.configured", after, before, after)
    return after


def _given(value: object) -> list[object]:
    """Two parameters of a statement: whether a value was given, and the value."""
    return [False, None] if value is msgspec.UNSET else [True, value]


async def _record(
    conn: Connection,
    by: Principal,
    action: str,
    one: Organization,
    before: msgspec.Struct | dict[str, object] | None = None,
    after: msgspec.Struct | dict[str, object] | None = None,
) -> None:
    await audit.record(
        conn, by, action, object_id=one.id, name=one.name, organization_id=one.id, before=before, after=after
    )


def _checked_country(country: str) -> str:
    if country.upper() not in phones.REGIONS.values() or country == "001":
        raise Invalid(("country", "enum", f"`country` must be the ISO code of a country, such as MZ, not {country!r}"))
    return country.upper()


def _checked_countries(countries: list[str] | None) -> list[str] | None:
    """Deduplicated. An empty list is a mistake: it would forbid all sends or, where read as no restriction, allow all
    of them."""
    if countries is None:
        return None
    if not countries:
        raise Invalid(("allowed_countries", "count", "`allowed_countries` must list at least one country, or be null"))
    for country in countries:
        if country not in phones.REGIONS.values():
            raise Invalid(
                ("allowed_countries", "enum", f"`allowed_countries` must be ISO codes of countries, not {country!r}")
            )
    return list(dict.fromkeys(countries))


def _checked_words(words: list[str]) -> list[str]:
    """Deduplicated and trimmed."""
    trimmed = list(dict.fromkeys(word.strip() for word in words))
    if len(trimmed) > MOST_WORDS:
        raise Invalid(("opt_out_words", "count", f"`opt_out_words` may list at most {MOST_WORDS} words"))
    for word in trimmed:
        # A word of punctuation alone would match every message that consists of punctuation.
        if not _is_text(word, LONGEST_WORD) or not any(map(str.isalnum, word)):
            rule = f"an opt-out word must have at most {LONGEST_WORD} characters, including a letter or digit"
            raise Invalid(("opt_out_words", "pattern", rule))
    return trimmed


def _is_text(text: str, longest: int) -> bool:
    return len(text) <= longest and "\0" not in text and not any("\ud800" <= one <= "\udfff" for one in text)


def _known(row: Any, id: UUID) -> Organization:
    if row is None:
        raise NotFound(resource="organization", id=str(id))
    return Organization(**row)


def _checked_name(text: str) -> str:
    return naming.checked(text, "name", longest=200)


SAME_NAME = "SELECT id FROM organizations WHERE lower(name) = lower($1)"


async def _taken(conn: Connection, name: str) -> Invalid:
    return Invalid(
        ("name", "taken", f"there is already an organization named {name!r}: {await conn.fetchval(SAME_NAME, name)}")
    )


def _check_state(state: str) -> None:
    if state not in STATES:
        raise Invalid(("state", "enum", f"`state` must be one of {', '.join(STATES)}"))
