"""What waits for an operator's decision, with the information needed to decide: the organization, earlier decisions
about it, how much it sends and where, and which names the sender ID could be mistaken for."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from functools import cache
from pathlib import Path
from uuid import UUID

import msgspec

from heliograph.base.database.pool import Connection
from heliograph.overview.installation.organizations import names
from heliograph.sms.accepting import four_eyes
from heliograph.sms.accepting.sender_ids import SenderId

#: Number shown at once, oldest first; the next ones appear when these are decided.
MOST = 50
#: Similar names of other organizations shown for one; and how many with the same beginning or ending are examined.
ALIKE, LOOKED = 5, 2_000
#: How long a self-refreshing page reuses the names found, in seconds.
REMEMBERED = 60.0
#: Earlier decisions shown per organization, latest first.
DECIDED = 5
#: Minimum length for near matches: shorter names are near too many others.
SHORTEST = 5
#: Days (UTC, including today) of an organization's traffic and of its destinations, and maximum countries shown.
DAYS, DAYS_OF_COUNTRIES, COUNTRIES = 30, 7, 5
#: Characters read as others, and characters ignored: `M0ZBANK` reads as `MOZBANK`. The indexes `sender_ids_alike` and
#: `sender_ids_alike_end` use the same mapping; sender IDs are ASCII.
_READ_AS = str.maketrans("013457i8", "oleastlb", " ._&-")
_IN_SQL = "translate(lower({}), '013457i8 ._&-', 'oleastlb')"


class SimilarSender(msgspec.Struct, frozen=True):
    """A sender ID of another organization that is approved, suspended, or also pending."""

    organization: str
    value: str
    status: str
    #: It differs by one character; otherwise it reads the same.
    is_near: bool


class SimilarSenders(msgspec.Struct, frozen=True):
    """What a sender ID could be mistaken for. `is_cut`: more begin or end like it than were examined."""

    names: list[SimilarSender]
    is_cut: bool


class Decided(msgspec.Struct, frozen=True):
    """An earlier decision on a sender ID of the organization. `reason`: why it was rejected."""

    value: str
    status: str
    reason: str | None
    at: datetime | None


class Sends(msgspec.Struct, frozen=True):
    """An organization's traffic: live messages in DAYS; destinations in DAYS_OF_COUNTRIES, (ISO 3166, "001" for none;
    messages), most first; and the countries it may send to, None: all."""

    volume: int
    countries: list[tuple[str, int]]
    allowed: list[str] | None


class Waiting(msgspec.Struct, frozen=True):
    """A sender ID to decide on."""

    organization_id: UUID
    organization: str
    #: organizations.state
    state: str
    organization_since: datetime
    sender: SenderId
    #: Who approved it first, if two have to (`sms.accepting.four_eyes.identity`), and their name; None, "": nobody.
    first_by: str | None
    first_name: str
    #: The question to its organization, and the answer; None: nothing.
    question: str | None
    answer: str | None
    #: The organization's sender IDs, by decision.
    approved: int
    rejected: int
    decided: list[Decided]
    sends: Sends
    #: A frequently imitated name that reads the same; "": none.
    brand: str
    alike: list[SimilarSender]
    #: True if not all names that begin or end like it were compared.
    is_cut: bool


WAITING = f"""
SELECT s.organization_id, o.name AS organization, o.state, o.created_at AS organization_since,
       s.id, s.value, s.status, s.is_default, s.rejection_reason, s.created_at, s.reviewed_at,
       first.by AS first_by, s.question, s.answer,
       (SELECT name FROM users WHERE id::text = first.by) AS first_name, known.approved, known.rejected
  FROM (SELECT * FROM sender_ids WHERE status = 'pending' ORDER BY id LIMIT $1) s
       CROSS JOIN LATERAL (SELECT {four_eyes.FIRST_BY} AS by) first
       CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = s.organization_id LIMIT 1) o
       CROSS JOIN LATERAL (SELECT count(*) FILTER (WHERE status IN ('approved', 'suspended')) AS approved,
                                  count(*) FILTER (WHERE status = 'rejected') AS rejected
                             FROM (SELECT status FROM sender_ids WHERE organization_id = s.organization_id
                                    LIMIT 1000) decided) known
 ORDER BY s.id
"""


_SEEN = f'({_IN_SQL.format("other.value")}) COLLATE "C"'
_BACKWARDS = f'reverse({_IN_SQL.format("other.value")}) COLLATE "C"'
_OTHERS = """
SELECT organization_id, id, value, status FROM sender_ids other
 WHERE other.status <> 'rejected' AND other.organization_id <> asked.organization_id"""
_HALF = f"""
        SELECT organization_id, id, value, status, is_last
          FROM (SELECT *, row_number() OVER () = $4 AS is_last FROM ({{looked}} LIMIT $4) other) other
         WHERE is_last OR length({_SEEN}) BETWEEN length(asked.seen) - 1 AND length(asked.seen) + 1"""
# Names that read the same, and names that begin or end with half of it, since a difference of one character leaves one
# half intact. Each uses an index; `~` sorts after every character of a name. The last row of a half signals that it was
# cut off, whatever its length.
ALIKE_ONES = f"""
SELECT asked.n, other.organization_id, other.value, other.status, other.is_last
  FROM unnest($1::uuid[], $2::text[]) WITH ORDINALITY AS asked (organization_id, seen, n) CROSS JOIN LATERAL (
    (SELECT *, false AS is_last FROM ({_OTHERS} AND {_SEEN} = asked.seen ORDER BY id LIMIT $3) other)
    UNION
    ({
    _HALF.format(
        looked=f'''{_OTHERS} AND length(asked.seen) >= {SHORTEST}
        AND {_SEEN} >= left(asked.seen, length(asked.seen) / 2)
        AND {_SEEN} < left(asked.seen, length(asked.seen) / 2) || '~' ORDER BY {_SEEN}'''
    )
})
    UNION
    ({
    _HALF.format(
        looked=f'''{_OTHERS} AND length(asked.seen) >= {SHORTEST}
        AND {_BACKWARDS} >= left(reverse(asked.seen), (length(asked.seen) + 1) / 2)
        AND {_BACKWARDS} < left(reverse(asked.seen), (length(asked.seen) + 1) / 2) || '~'
      ORDER BY {_BACKWARDS}'''
    )
})) other
 ORDER BY asked.n, other.id
"""


async def alike(conn: Connection, asked: Sequence[tuple[UUID, str]]) -> list[SimilarSenders]:
    """For each (organization, value), up to ALIKE of other organizations' sender IDs that it could be mistaken for,
    those that read the same first. A number reads only as itself."""
    seen_as = [(of, read_as(value)) for of, value in asked]
    places = [n for n, (_, value) in enumerate(asked) if not value.isdecimal()]
    # A name that both begins and ends like it is found twice.
    found: list[dict[tuple[UUID, str], tuple[str, bool]]] = [{} for _ in asked]
    cut: set[int] = set()
    rows = await conn.fetch(ALIKE_ONES, [seen_as[n][0] for n in places], [seen_as[n][1] for n in places], ALIKE, LOOKED)
    for row in rows:
        place, seen = places[row["n"] - 1], read_as(row["value"])
        mine = seen_as[place][1]
        if row["is_last"]:
            cut.add(place)
        if not row["value"].isdecimal() and (seen == mine or is_near(mine, seen)):
            found[place][row["organization_id"], row["value"]] = (row["status"], seen != mine)
    kept = [sorted(some.items(), key=lambda one: one[1][1])[:ALIKE] for some in found]
    others = {of for some in kept for (of, _), _ in some}
    called = await names(conn, others) if others else {}
    return [
        SimilarSenders(
            [SimilarSender(called[of], value, status, near) for (of, value), (status, near) in some], place in cut
        )
        for place, some in enumerate(kept)
    ]


class SimilarityCache:
    """One per process: caches for REMEMBERED seconds what sender IDs could be mistaken for."""

    def __init__(self, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._now = monotonic
        self._found: dict[tuple[UUID, str], tuple[float, SimilarSenders]] = {}

    async def look(
        self, conn: Connection, asked: Sequence[tuple[UUID, str]], *, bypass_cache: bool
    ) -> list[SimilarSenders]:
        """Like `alike`, but queries only what is not cached; with `bypass_cache`, everything."""
        at = self._now()
        found = {one: known for one, known in self._found.items() if at - known[0] < REMEMBERED}
        due = [one for one in asked if bypass_cache or one not in found]
        if due:
            found |= zip(due, [(at, one) for one in await alike(conn, due)], strict=True)
        self._found = found
        return [found[one][1] for one in asked]


DECISIONS = """
SELECT asked.id, known.value, known.status, known.rejection_reason, known.reviewed_at
  FROM unnest($1::uuid[]) AS asked (id) CROSS JOIN LATERAL (
    SELECT * FROM sender_ids WHERE organization_id = asked.id AND status <> 'pending'
     ORDER BY reviewed_at DESC NULLS LAST, id DESC LIMIT $2) known
"""


async def decisions(conn: Connection, ids: Iterable[UUID]) -> dict[UUID, list[Decided]]:
    """Earlier decisions by organization, latest first: up to DECIDED each."""
    found: dict[UUID, list[Decided]] = {}
    for id, *values in await conn.fetch(DECISIONS, list(set(ids)), DECIDED):
        found.setdefault(id, []).append(Decided(*values))
    return found


_TODAY = "(now() AT TIME ZONE 'UTC')::date"
# Each organization once, however many sender IDs it requested; its traffic is in the sums by day.
SENDS = f"""
SELECT asked.id, o.allowed_countries AS allowed, sent.volume, gone.countries, gone.counts
  FROM unnest($1::uuid[]) AS asked (id)
       CROSS JOIN LATERAL (SELECT * FROM organizations WHERE id = asked.id LIMIT 1) o
       CROSS JOIN LATERAL (SELECT coalesce(sum(count), 0)::bigint AS volume FROM traffic_organizations
                            WHERE organization_id = asked.id AND day > {_TODAY} - {DAYS}) sent
       CROSS JOIN LATERAL (
           SELECT array_agg(country ORDER BY count DESC, country) AS countries,
                  array_agg(count ORDER BY count DESC, country) AS counts
             FROM (SELECT country, sum(count)::bigint AS count FROM traffic_days
                    WHERE organization_id = asked.id AND day > {_TODAY} - {DAYS_OF_COUNTRIES} AND mode = 'live'
                    GROUP BY 1 HAVING sum(count) > 0 ORDER BY 2 DESC, 1 LIMIT {COUNTRIES}) most) gone
"""


async def sends(conn: Connection, ids: Iterable[UUID]) -> dict[UUID, Sends]:
    """How much organizations send, and where."""
    return {
        row["id"]: Sends(
            row["volume"],
            list(zip(row["countries"] or (), row["counts"] or (), strict=True)),
            row["allowed"],
        )
        for row in await conn.fetch(SENDS, list(set(ids)))
    }


async def waiting(
    conn: Connection, resemblance: SimilarityCache | None = None, *, is_renewal: bool = False
) -> list[Waiting]:
    """Up to MOST sender IDs to decide on, of all organizations, oldest first. `is_renewal`: a refreshing page uses
    cached similarities."""
    rows = await conn.fetch(WAITING, MOST)
    if not rows:
        return []
    asking = [row["organization_id"] for row in rows]
    sent, decided = await sends(conn, asking), await decisions(conn, asking)
    asked = [(row["organization_id"], row["value"]) for row in rows]
    resembled = await (resemblance or SimilarityCache()).look(conn, asked, bypass_cache=not is_renewal)
    columns = SenderId.__struct_fields__
    return [
        Waiting(
            organization_id=row["organization_id"],
            organization=row["organization"],
            state=row["state"],
            organization_since=row["organization_since"],
            sender=SenderId(**{name: row[name] for name in columns}),
            first_by=row["first_by"],
            first_name=row["first_name"] or row["first_by"] or "",
            question=row["question"],
            answer=row["answer"],
            approved=row["approved"],
            rejected=row["rejected"],
            decided=decided.get(row["organization_id"], []),
            sends=sent[row["organization_id"]],
            brand=brand(row["value"]),
            alike=others.names,
            is_cut=others.is_cut,
        )
        for row, others in zip(rows, resembled, strict=True)
    ]


COUNT = """
SELECT count(*) AS count, min(created_at) AS oldest, max(created_at) AS newest
  FROM (SELECT created_at FROM sender_ids WHERE status = 'pending' ORDER BY id LIMIT $1) waiting
"""


class PendingApprovals(msgspec.Struct, frozen=True):
    """How many are waiting, at most MOST, and since when the oldest and the newest are."""

    count: int
    oldest: datetime | None
    newest: datetime | None


async def waits(conn: Connection) -> PendingApprovals:
    """How many are waiting for a decision."""
    row = await conn.fetchrow(COUNT, MOST)
    assert row is not None
    return PendingApprovals(**row)


def read_as(value: str) -> str:
    """How a sender ID reads at a glance."""
    return value.lower().translate(_READ_AS)


def is_near(one: str, other: str) -> bool:
    """True if one character added, removed or replaced turns one into the other, for names long enough for that to be
    significant."""
    if one == other or abs(len(one) - len(other)) > 1 or max(len(one), len(other)) < SHORTEST:
        return False
    start = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    one, other = one[start:], other[start:]
    return one[1:] == other[1:] or one[1:] == other or one == other[1:]


def brand(value: str) -> str:
    """The frequently imitated name that this one could be mistaken for; "": none. Never applies to numbers."""
    if value.isdecimal():
        return ""
    seen = read_as(value)
    return next((name for skeleton, name in _brands().items() if skeleton in (seen, seen[:-1])), "") or next(
        (name for skeleton, name in _brands().items() if len(skeleton) >= LONG and skeleton in seen), ""
    )


#: Minimum length of a brand to be recognized inside a longer name: `WHATSAPP ID`.
LONG = 5


@cache
def _brands() -> dict[str, str]:
    lines = Path(__file__).with_name("brands.txt").read_text("utf-8").splitlines()
    return {read_as(line): line for line in lines if line and not line.startswith("#")}
