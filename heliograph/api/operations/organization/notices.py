"""Notices: shapes and handlers. `notices.kinds` defines the kinds and who gets them."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

import msgspec
from msgspec import Meta

from heliograph.api.door.operation import Call
from heliograph.api.shapes import paging
from heliograph.api.shapes.fields import CreatedAt, HasMore, Items, NextCursor, Success
from heliograph.base.database.clock import iso
from heliograph.notices import reading
from heliograph.notices.kinds import KINDS

COLLECTION = "notices"
#: The query of a key: notices meant for a single person are not shown.
NOBODY = UUID(int=0)


class Notice(msgspec.Struct, rename="camel"):
    """Something that needs somebody's attention."""

    id: Annotated[UUID, Meta(description="Id of the notice.")]
    kind: Annotated[str, Meta(description="What happened.", examples=list(KINDS))]
    object: Annotated[
        str, Meta(description="Id of what it is about; for `quota.used` the share in percent, for `usage.day` the day.")
    ]
    name: Annotated[str, Meta(description="Its name; may be empty.")]
    facts: Annotated[dict[str, str | int], Meta(description="Further facts, depending on the kind.")]
    created_at: CreatedAt


class ListedNotice(Notice, rename="camel"):
    """A notice, and the mode of what it is about."""

    mode: Annotated[str, Meta(description="`live` or `test`.")]


class NoticeList(msgspec.Struct, rename="camel"):
    """A page of notices, newest first."""

    success: Success
    items: Items[ListedNotice]
    next_cursor: NextCursor
    has_more: HasMore


class NoticeQuery(paging.PageQuery, frozen=True, rename="camel", kw_only=True):
    """Which page."""


async def list_notices(call: Call, query: NoticeQuery) -> NoticeList:
    """List notices.

    What needed somebody's attention in the last 90 days, newest first: the kinds whose subject the key's scopes can
    read. The event `notice.created` reports new ones.
    """
    found = await reading.list_page(
        call.conn,
        call.actor,
        user_id=NOBODY,
        kinds=[
            name
            for name, kind in KINDS.items()
            if not kind.is_personal
            and kind.permission in (None, "usage")
            and (kind.scope is None or kind.scope in call.actor.scopes)
        ],
        after=paging.after_id(call, COLLECTION),
        limit=query.limit,
    )
    return NoticeList(True, *paging.page(call, COLLECTION, found, position=lambda one: [one.id], shown=_shown))


def _shown(one: reading.Noticed) -> ListedNotice:
    return ListedNotice(
        id=one.id,
        kind=one.kind,
        object=one.object,
        name=one.name,
        facts=dict(one.facts),
        created_at=iso(one.created_at),
        mode=one.mode,
    )
