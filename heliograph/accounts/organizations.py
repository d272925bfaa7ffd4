"""Organizations: the customers, each with a state and the rules it chose for its traffic.

The rule nobody may break: an organization is never deleted, it is closed; its rows stay what its bills refer to.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base import clock
from heliograph.base.db import Connection
from heliograph.base.errors import Invalid, NotFound, Refusal
from heliograph.base.ids import uuid7

STATES = ("active", "trial", "past_due", "suspended", "closed")
#: States in which an organization may look but not change or send anything.
STOPPED = frozenset({"suspended", "closed"})


class OrganizationSuspended(Refusal):
    """This organization is suspended. It can read, but not send or change anything."""

    code, status = "organization_suspended", 403


class Organization(msgspec.Struct, frozen=True):
    """One row of `organizations`."""

    id: UUID
    name: str
    state: str
    smart_encoding: bool
    #: ISO regions that may be sent to; None: all.
    allowed_countries: list[str] | None
    #: Opt-out words besides the standard ones.
    opt_out_words: list[str]
    plan: str | None
    period_start: datetime | None
    period_end: datetime | None
    created_at: datetime


_COLUMNS = (
    "id, name, state, smart_encoding, allowed_countries, opt_out_words, plan, period_start, period_end, created_at"
)

INSERT = f"INSERT INTO organizations (id, name, state, created_at) VALUES ($1, $2, $3, $4) RETURNING {_COLUMNS}"

# The balance exists from the start: accepting locks that row, and a row that is missing cannot be locked.
INSERT_QUOTA = "INSERT INTO quotas (organization_id) VALUES ($1)"


async def create(conn: Connection, *, name: str, state: str = "active") -> Organization:
    """A new organization with an empty quota. `name`: 1 to 200 characters; `state`: one of STATES."""
    name = name.strip()
    if not 1 <= len(name) <= 200 or "\0" in name:
        raise Invalid(("name", "length", "`name` must have 1 to 200 characters"))
    _check_state(state)
    async with conn.transaction():
        row = await conn.fetchrow(INSERT, uuid7(), name, state, clock.now())
        assert row is not None
        await conn.execute(INSERT_QUOTA, row["id"])
    return Organization(**row)


SELECT = f"SELECT {_COLUMNS} FROM organizations WHERE id = $1"


async def get(conn: Connection, *, id: UUID) -> Organization:
    """The organization, or NotFound."""
    return _known(await conn.fetchrow(SELECT, id), id)


FIND = f"SELECT {_COLUMNS} FROM organizations WHERE $1::text IS NULL OR id::text = lower($1) OR name = $1 LIMIT 2"


async def find(conn: Connection, *, reference: str | None) -> Organization:
    """The organization that an operator means: by id, by a name that no other has, or with None the only one.

    Raises NotFound, and Invalid if there are several.
    """
    rows = await conn.fetch(FIND, reference)
    if len(rows) > 1:
        which = "are several organizations" if reference is None else f"is more than one organization {reference!r}"
        raise Invalid(("organization", "ambiguous", f"there {which}; name one by its id"))
    if not rows:
        raise NotFound("There is no such organization.", id=reference)
    return Organization(**rows[0])


LIST = f"SELECT {_COLUMNS} FROM organizations ORDER BY id DESC LIMIT $1"


async def list_all(conn: Connection, *, limit: int = 1000) -> list[Organization]:
    """The organizations, newest first."""
    return [Organization(**row) for row in await conn.fetch(LIST, limit)]


SET_STATE = f"UPDATE organizations SET state = $2 WHERE id = $1 RETURNING {_COLUMNS}"


async def set_state(conn: Connection, *, id: UUID, state: str) -> Organization:
    """Suspend, resume or close an organization. Holds on every process within a second, as a revoked key does."""
    _check_state(state)
    return _known(await conn.fetchrow(SET_STATE, id, state), id)


CONFIGURE = f"""
UPDATE organizations
   SET smart_encoding = coalesce($2, smart_encoding),
       allowed_countries = CASE WHEN $3 THEN $4::text[] ELSE allowed_countries END,
       opt_out_words = coalesce($5::text[], opt_out_words)
 WHERE id = $1
RETURNING {_COLUMNS}
"""


async def configure(
    conn: Connection,
    *,
    id: UUID,
    smart_encoding: bool | None = None,
    allowed_countries: list[str] | msgspec.UnsetType | None = msgspec.UNSET,
    opt_out_words: list[str] | None = None,
) -> Organization:
    """Change an organization's own rules; what is left out stays. `allowed_countries=None` lifts the restriction."""
    given = allowed_countries is not msgspec.UNSET
    countries = allowed_countries if given else None
    row = await conn.fetchrow(CONFIGURE, id, smart_encoding, given, countries, opt_out_words)
    return _known(row, id)


def _known(row: Any, id: UUID) -> Organization:
    if row is None:
        raise NotFound(resource="organization", id=str(id))
    return Organization(**row)


def _check_state(state: str) -> None:
    if state not in STATES:
        raise Invalid(("state", "enum", f"`state` must be one of {', '.join(STATES)}"))
