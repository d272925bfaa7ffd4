"""Who gets a campaign: listed numbers, contacts by tag, or the contacts of an imported file, each person once.

Contacts are gathered step by step when the campaign starts, so that a million of them need no more memory and no longer
transactions than a thousand. The rule nobody may break: the audience is fixed at the start, and unique keys ensure that
each number, and each of its spellings, is in it once.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.base import phones
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.base.errors import Invalid
from heliograph.consent import skipped
from heliograph.contacts import recency, records

MAX_TAGS = 20
MAX_RECIPIENTS = 10_000
#: Maximum of `not_written_days`.
MOST_DAYS = 365
#: Contacts examined per step of gathering: some 50 ms.
GATHER = 5_000
#: Until an import that is still running is looked at again for its next batch.
GROWING = timedelta(seconds=2)
#: Recipients deleted per statement.
FORGET = 5_000
#: Recipients deleted per round.
MOST_FORGOTTEN = 1_000_000


#: A recipient: phone, name, first name, last name, why they are skipped.
Recipient = tuple[str, str | None, str | None, str | None, str | None]


class ListedNumbers(msgspec.Struct, frozen=True):
    """Listed recipients: the distinct numbers, and the distinct texts that are not numbers."""

    valid: list[str]
    invalid: list[str]


_ONE = "give one of `audience_tags`, `audience_import` and `recipients`"


def named(
    recipients: Sequence[str] | None, tags: Sequence[str] | None, imported: UUID | None = None
) -> tuple[Sequence[str] | None, list[str] | None]:
    """(recipients, None), (None, tags), or neither for an import. Raises Invalid unless exactly one of the three is
    given, within its limits."""
    fields = {"audience_tags": tags, "audience_import": imported, "recipients": recipients}
    given = [field for field, value in fields.items() if value is not None]
    if len(given) != 1:
        raise Invalid(*((field, "exclusive", _ONE) for field in given or fields))
    if imported is not None:
        return None, None
    if recipients is not None:
        if not 1 <= len(recipients) <= MAX_RECIPIENTS:
            raise Invalid(("recipients", "length", f"`recipients` must list 1 to {MAX_RECIPIENTS} numbers"))
        return recipients, None
    assert tags is not None
    if not 1 <= len(tags) <= MAX_TAGS:
        raise Invalid(("audience_tags", "length", f"`audience_tags` must list 1 to {MAX_TAGS} tags"))
    return None, list(records.tags(tags, "audience_tags"))


def checked_days(days: int | None) -> int | None:
    """Check `not_written_days`. Raises Invalid."""
    if days is not None and not 1 <= days <= MOST_DAYS:
        raise Invalid(("not_written_days", "range", f"`not_written_days` must be from 1 to {MOST_DAYS}"))
    return days


def excluded(tags: Sequence[str] | None, *, is_listed: bool) -> list[str]:
    """Tags whose contacts are excluded. Raises Invalid for more than MAX_TAGS, and with listed recipients."""
    if not tags:
        return []
    if is_listed:
        raise Invalid(
            ("excluded_tags", "exclusive", "`excluded_tags` does not go with `recipients`: numbers have no tags")
        )
    if len(tags) > MAX_TAGS:
        raise Invalid(("excluded_tags", "length", f"`excluded_tags` must list at most {MAX_TAGS} tags"))
    return list(records.tags(tags, "excluded_tags"))


async def spelled(listed: Sequence[str]) -> list[str]:
    """The distinct listed recipients, numbers in E.164: as they are dialed today, like those of contacts, whose names
    they have."""
    return list(
        dict.fromkeys(await phones.in_turns(lambda text: phones.normalize(text) or phones.parse(text) or text, listed))
    )


async def numbers(listed: Sequence[str]) -> ListedNumbers:
    """The listed recipients in E.164, each person once, as the first is dialed; and the texts that are not numbers."""
    found = await spelled(listed)
    keys = await phones.in_turns(lambda one: phones.person(one) if phones.parse(one) == one else None, found)
    people: dict[str, str] = {}
    for number, key in zip(found, keys, strict=True):
        if key is not None:
            people.setdefault(key, number)
    return ListedNumbers(list(people.values()), [one for one, key in zip(found, keys, strict=True) if key is None])


async def at_home(listed: Sequence[str], *, home: str | None) -> dict[str, str | None]:
    """Parse pasted texts: distinct text → number (E.164), as written in the country `home` (ISO); None: not a number,
    or it lacks a country code and `home` is not known."""
    texts = list(dict.fromkeys(one.strip() for one in listed))
    return dict(zip(texts, await phones.in_turns(lambda text: phones.read(text, region=home), texts), strict=True))


# One recipient is enough. Here and below, LIMIT keeps each look-up on its index: a plan that was cached while the table
# was empty would otherwise scan the whole table.
ANY_LISTED = """
SELECT EXISTS (SELECT FROM unnest($2::text[]) AS listed (phone) LEFT JOIN LATERAL (
       SELECT since FROM opted_out_since($1, listed.phone) LIMIT 1) silence ON true
        WHERE silence.since IS NULL)
"""
ANY_TAGGED = """
SELECT EXISTS (SELECT FROM unnest($2::text[]) AS wanted (tag) CROSS JOIN LATERAL (
       SELECT c.phone FROM contact_tags t CROSS JOIN LATERAL (
              SELECT phone, tags FROM contacts
               WHERE organization_id = $1 AND mode = $4 AND id = t.contact_id LIMIT 1) c
         LEFT JOIN LATERAL (
              SELECT since FROM opted_out_since($1, c.phone) LIMIT 1) silence ON true
        WHERE t.organization_id = $1 AND t.mode = $4 AND t.tag = wanted.tag AND c.tags @> $3 AND NOT c.tags && $5
          AND silence.since IS NULL
        LIMIT 1) found)
"""


ANY_IMPORTED = """
SELECT EXISTS (SELECT FROM contact_import_batches b CROSS JOIN LATERAL (
       SELECT c.phone FROM unnest(b.people) AS one (id) CROSS JOIN LATERAL (
              SELECT phone, tags FROM contacts WHERE organization_id = $1 AND mode = $3 AND id = one.id LIMIT 1) c
         LEFT JOIN LATERAL (
              SELECT since FROM opted_out_since($1, c.phone) LIMIT 1) silence ON true
        WHERE NOT c.tags && $4 AND silence.since IS NULL
        LIMIT 1) found
 WHERE b.organization_id = $1 AND b.import_id = $2)
"""


async def anybody(
    conn: Connection,
    actor: Actor,
    *,
    tags: Sequence[str] | None,
    match_mode: str,
    without: Sequence[str],
    numbers: Sequence[str] | None,
    imported: UUID | None = None,
) -> bool:
    """True if a campaign that started now would have recipients."""
    found: bool
    if imported is not None:
        found = await conn.fetchval(ANY_IMPORTED, actor.organization_id, imported, actor.mode, without)
    elif tags is None:
        found = await conn.fetchval(ANY_LISTED, actor.organization_id, numbers)
    else:
        wanted = _search(tags, match_mode)
        found = await conn.fetchval(ANY_TAGGED, actor.organization_id, *wanted, actor.mode, without)
    return found


KEEP = """
INSERT INTO campaign_recipients (organization_id, campaign_id, phone)
SELECT $1, $2, phone FROM unnest($3::text[]) AS listed (phone)
"""


async def keep(conn: Connection, organization_id: UUID, campaign_id: UUID, numbers: Sequence[str]) -> None:
    """Store listed recipients."""
    await conn.execute(KEEP, organization_id, campaign_id, numbers)


# A step for one tag, in the order of contacts' ids. `seen` says where it ended; numbers added by an earlier tag are
# unchanged.
GATHER_TAGGED = """
WITH seen AS MATERIALIZED (
    SELECT contact_id FROM contact_tags
     WHERE organization_id = $1 AND mode = $8 AND tag = $3 AND contact_id > $4 ORDER BY contact_id LIMIT $6
), kept AS (
    INSERT INTO campaign_recipients (organization_id, campaign_id, phone, name, first_name, last_name)
    SELECT $1, $2, c.phone, CASE WHEN $7 THEN c.name END, CASE WHEN $7 THEN c.first_name END,
           CASE WHEN $7 THEN c.last_name END
      FROM seen CROSS JOIN LATERAL (
           SELECT phone, name, first_name, last_name, tags FROM contacts
            WHERE organization_id = $1 AND mode = $8 AND id = seen.contact_id LIMIT 1) c
     WHERE c.tags @> $5 AND NOT c.tags && $9
        ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT (SELECT count(*) FROM seen)::int AS seen, (SELECT contact_id FROM seen ORDER BY contact_id DESC LIMIT 1) AS last,
       (SELECT count(*) FROM kept)::int AS kept
"""


class GatheringStep(msgspec.Struct, frozen=True):
    """One step of gathering."""

    #: Recipients added.
    added: int
    #: Where the next step begins; None: no contacts are left.
    tag: int | None
    after: UUID
    #: Until it can begin.
    pause: timedelta = timedelta(0)


async def gather(
    conn: Connection,
    organization_id: UUID,
    campaign_id: UUID,
    *,
    mode: str,
    tags: Sequence[str],
    match_mode: str,
    without: Sequence[str],
    tag: int,
    after: UUID,
    with_names: bool,
    most: int,
) -> GatheringStep:
    """Add the recipients among the `most` contacts after `after` with the `tag`th tag; `without`: skip contacts with
    any of these tags.

    Runs in the caller's transaction.
    """
    searched, all_of = _search(tags, match_mode)
    row = await conn.fetchrow(
        GATHER_TAGGED, organization_id, campaign_id, searched[tag], after, all_of, most, with_names, mode, without
    )
    assert row is not None
    if row["seen"] == most:
        return GatheringStep(row["kept"], tag, row["last"])
    return GatheringStep(row["kept"], tag + 1 if tag + 1 < len(searched) else None, UUID(int=0))


# A step for the people in one batch of the import. In one statement, which sees the last batch if it finds the import
# finished. A command that was killed leaves a running import that nobody continues, so only a worker's is waited for.
GATHER_IMPORTED = """
WITH seen AS MATERIALIZED (
    SELECT batch, people FROM contact_import_batches
     WHERE organization_id = $1 AND import_id = $3 AND batch >= $4 ORDER BY batch LIMIT 1
), kept AS (
    INSERT INTO campaign_recipients (organization_id, campaign_id, phone, name, first_name, last_name)
    SELECT $1, $2, c.phone, CASE WHEN $5 THEN c.name END, CASE WHEN $5 THEN c.first_name END,
           CASE WHEN $5 THEN c.last_name END
      FROM seen CROSS JOIN LATERAL unnest(seen.people) AS one (id) CROSS JOIN LATERAL (
           SELECT phone, name, first_name, last_name, tags FROM contacts
            WHERE organization_id = $1 AND mode = $6 AND id = one.id LIMIT 1) c
     WHERE NOT c.tags && $7
        ON CONFLICT DO NOTHING
    RETURNING 1
)
SELECT (SELECT batch FROM seen) AS batch, (SELECT count(*) FROM kept)::int AS kept,
       EXISTS (SELECT FROM contact_imports
                WHERE organization_id = $1 AND id = $3 AND state = 'running' AND is_uploaded) AS grows
"""


async def gather_imported(
    conn: Connection,
    organization_id: UUID,
    campaign_id: UUID,
    *,
    mode: str,
    imported: UUID,
    without: Sequence[str],
    after: UUID,
    with_names: bool,
) -> GatheringStep:
    """Add the recipients of the next batch of an import; `after`: its number, as an id. Batches that an import that is
    still running has yet to write are waited for. Runs in the caller's transaction."""
    row = await conn.fetchrow(
        GATHER_IMPORTED, organization_id, campaign_id, imported, after.int, with_names, mode, without
    )
    assert row is not None
    if row["batch"] is None and row["grows"]:
        return GatheringStep(0, 0, after, GROWING)
    if row["batch"] is None:
        return GatheringStep(0, None, UUID(int=0))
    return GatheringStep(row["kept"], 0, UUID(int=row["batch"] + 1))


PEOPLE = """
SELECT c.phone, c.name, c.first_name, c.last_name, c.tags
  FROM contact_import_batches b CROSS JOIN LATERAL unnest(b.people) AS one (id) CROSS JOIN LATERAL (
       SELECT phone, name, first_name, last_name, tags FROM contacts
        WHERE organization_id = $1 AND mode = $3 AND id = one.id LIMIT 1) c
 WHERE b.organization_id = $1 AND b.import_id = $2 ORDER BY b.batch LIMIT $4
"""


class ImportedContact(msgspec.Struct, frozen=True):
    """A contact listed in an imported file."""

    phone: str
    name: str
    first_name: str | None
    last_name: str | None
    tags: list[str]


async def imported_people(conn: Connection, actor: Actor, *, imported: UUID, limit: int) -> list[ImportedContact]:
    """The first contacts of an imported file that still exist."""
    rows = await conn.fetch(PEOPLE, actor.organization_id, imported, actor.mode, limit)
    # Two batches may list the same contact.
    return list({row["phone"]: ImportedContact(*row.values()) for row in rows}.values())


# `r.phone` has the collation "C", which its order needs; the tables in which it is looked up have the default one.
# Without COLLATE their indexes do not apply, and each look-up would scan a whole index.
# The name of a contact without one is its number, by which nobody should be addressed.
_NEXT = """
SELECT r.phone, nullif({names}.name, r.phone COLLATE "default") AS name, {names}.first_name, {names}.last_name,
       CASE WHEN (SELECT since FROM opted_out_since($1, r.phone COLLATE "default")) IS NOT NULL THEN 'opted_out'
            {recency}END AS skip
  FROM campaign_recipients r {contact}
 WHERE r.organization_id = $1 AND r.campaign_id = $2 AND r.phone > $3 ORDER BY r.phone LIMIT $4
"""
_CONTACT = """LEFT JOIN LATERAL (
       SELECT nullif(known.name, known.phone) AS name, known.first_name, known.last_name
         FROM unnest(spellings_of(person_of(r.phone COLLATE "default"))) AS item (spelled) CROSS JOIN LATERAL (
              SELECT * FROM contacts WHERE organization_id = $1 AND mode = $5 AND phone = item.spelled LIMIT 1) known
        ORDER BY known.phone <> r.phone COLLATE "default" LIMIT 1) c ON true
"""
_RECENCY = f"WHEN {recency.WRITTEN.format(mode='$5', after='$6')} THEN 'recently_written' "
NEXT = _NEXT.format(names="r", recency="", contact="")
# A listed recipient has the names of the contact with that number, in any spelling, if there is one.
NEXT_WITH_CONTACT = _NEXT.format(names="c", recency="", contact=_CONTACT)
NEXT_BY_RECENCY = _NEXT.format(names="r", recency=_RECENCY, contact="")
NEXT_WITH_CONTACT_BY_RECENCY = _NEXT.format(names="c", recency=_RECENCY, contact=_CONTACT)


async def following(
    conn: Connection,
    organization_id: UUID,
    campaign_id: UUID,
    *,
    after: str,
    limit: int,
    mode: str,
    is_named: bool,
    written_after: datetime | None = None,
) -> list[Recipient]:
    """The next recipients in the order of their numbers. `mode`: that of the contacts with these numbers; `is_named`:
    take names from the contacts, because recipients have none. `written_after`: skip contacts messaged since then, or
    about to be by another campaign."""
    values = (organization_id, campaign_id, after, limit)
    if written_after is not None:
        sql = NEXT_WITH_CONTACT_BY_RECENCY if is_named else NEXT_BY_RECENCY
        rows = await conn.fetch(sql, *values, mode, written_after)
        waits = await recency.awaiting(conn, organization_id, mode, [row["phone"] for row in rows], besides=campaign_id)
        return [(*row[:4], row[4] or (skipped.RECENTLY_WRITTEN if row["phone"] in waits else None)) for row in rows]
    named = (NEXT_WITH_CONTACT, *values, mode)
    return [tuple(row) for row in await (conn.fetch(*named) if is_named else conn.fetch(NEXT, *values))]


# An ended campaign no longer needs its recipients: its messages have them, and a while later their contacts, too.
ENDED = """
SELECT organization_id, id FROM campaigns
 WHERE NOT forgotten AND status IN ('completed', 'canceled', 'failed') AND step_at IS NULL
   AND (status = 'completed' AND drained_at > now() - $1::interval) IS NOT TRUE LIMIT 100
"""
DELETE = """
DELETE FROM campaign_recipients WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM campaign_recipients WHERE organization_id = $1 AND campaign_id = $2 LIMIT $3))
"""
FORGOTTEN = "UPDATE campaigns SET forgotten = true WHERE organization_id = $1 AND id = $2"


async def forget(conn: Connection) -> int:
    """Delete the recipients of campaigns that have ended, in short steps, each a commit, up to MOST_FORGOTTEN; returns
    how many."""
    gone = 0
    while ended := await conn.fetch(ENDED, recency.NOTED):
        for organization_id, id in ended:
            while True:
                done = int((await conn.execute(DELETE, organization_id, id, FORGET)).rpartition(" ")[2])
                gone += done
                if done < FORGET:
                    break
                if gone >= MOST_FORGOTTEN:
                    return gone
            await conn.execute(FORGOTTEN, organization_id, id)
    return gone


def _search(tags: Sequence[str], match_mode: str) -> tuple[Sequence[str], Sequence[str]]:
    """(tags whose contacts are examined, tags that each of these must have)"""
    return (tags[:1], tags) if match_mode == "all" else (tags, [])
