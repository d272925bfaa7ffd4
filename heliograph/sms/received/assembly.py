"""Reassembly of long messages from handsets. Pure: rows go in, groups of parts come out.

Parts belong together by account, both addresses, reference and number of parts. References are small numbers that are
reused, and handsets, networks and suppliers repeat parts. The rule nobody may break: no part is in two messages, and
what has arrived is shown, even if the rest never comes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from uuid import UUID

import msgspec

from heliograph.consent.keywords import Keyword

#: An incomplete message is shown as it is after this time; the rest may arrive until `LATEST`.
PATIENCE = timedelta(minutes=10)
LATEST = timedelta(hours=24)
#: An identical message within this time is a repetition, unless the supplier got our answer to the first.
AGAIN = timedelta(minutes=10)
#: Replaces missing parts.
GAP = " [...] "


class Row(msgspec.Struct, frozen=True, gc=False):
    """A message from a supplier, or a part of one."""

    id: UUID
    supplier_id: UUID
    sender: str
    recipient: str
    #: The form in which `body` is encoded; empty: text.
    form: str
    body: bytes
    #: (reference, total, number), or None.
    concatenation: tuple[int, int, int] | None
    received_at: datetime
    state: str = "new"
    message_id: UUID | None = None
    #: Types of number: see `handsets`.
    sender_ton: int = 0
    recipient_ton: int = 0
    #: Its organization, once known; whether it is stored sealed; whether it cannot be opened now.
    organization_id: UUID | None = None
    is_sealed: bool = False
    is_locked: bool = False
    #: What its supplier took it for.
    asked: Keyword | None = None


class Group(msgspec.Struct):
    """A message: its parts by number. `id` is that of the first part to arrive."""

    id: UUID
    first: Row
    total: int
    parts: dict[int, Row]
    #: True if it was shown before, with missing parts.
    shown: bool = False
    #: True if one of its parts arrived now.
    changed: bool = False

    @property
    def missing(self) -> int:
        """The number of missing parts."""
        return self.total - len(self.parts)

    @property
    def until(self) -> datetime:
        """When it will be shown as it is."""
        return self.first.received_at + PATIENCE


def assemble(known: Sequence[Row], new: Sequence[Row]) -> tuple[list[Group], list[Row]]:
    """Add new parts to the known ones. Both in order of arrival.

    Returns all groups, and which of the rows are repetitions, with their message. A single message is a group of its
    own. The known parts may not be all there are, so some of a message may have been shown while others waited: these
    change it. For the same reason two of them may have one number.
    """
    newest: dict[tuple[object, ...], Group] = {}
    groups: dict[UUID, Group] = {}
    repeated: list[Row] = []
    for row in known:
        assert row.concatenation is not None
        assert row.message_id is not None
        group = groups.get(row.message_id)
        if group is None:
            group = groups[row.message_id] = Group(row.message_id, row, row.concatenation[1], {})
        earlier = group.parts.setdefault(row.concatenation[2], row)
        if earlier is not row and row.state == "waiting":
            if earlier.body == row.body or row.id == row.message_id:
                repeated.append(row)
            else:
                groups[row.id] = Group(row.id, row, row.concatenation[1], {row.concatenation[2]: row})
            continue
        group.shown = group.shown or row.state != "waiting"
        group.changed = group.changed or row.state == "waiting"
        newest[_key(row)] = group
    for row in new:
        if row.concatenation is None:
            groups[row.id] = Group(row.id, row, 1, {1: row}, changed=True)
            continue
        _, total, number = row.concatenation
        group = newest.get(_key(row))
        if group is not None and row.received_at - group.first.received_at < LATEST:
            there = group.parts.get(number)
            if there is None:
                group.parts[number] = row
                group.changed = True
                continue
            if there.body == row.body and (group.missing or row.received_at - there.received_at < AGAIN):
                repeated.append(msgspec.structs.replace(row, message_id=group.id))
                continue
        # It belongs to no known message, or the reference was reused: a new message begins.
        groups[row.id] = newest[_key(row)] = Group(row.id, row, total, {number: row}, changed=True)
    return list(groups.values()), repeated


def text_of(group: Group, read: Callable[[bytes, str], str | None]) -> str | None:
    """Its text, with gaps where parts are missing; None if it is not text. `read`: decodes octets (`kinds.read`).

    Neighbouring parts are joined before decoding: some senders split characters.
    """
    pieces: list[str] = []
    run: list[Row] = []
    for number in range(1, group.total + 2):
        row = group.parts.get(number)
        if run and (row is None or row.form != run[0].form):
            piece = read(b"".join(one.body for one in run), run[0].form)
            if piece is None:
                return None
            pieces.append(piece)
            run = []
        if row is not None:
            run.append(row)
        elif number <= group.total and (not pieces or pieces[-1] is not GAP):
            pieces.append(GAP)
    return "".join(pieces).strip(" ") if group.missing else "".join(pieces)


def _key(row: Row) -> tuple[object, ...]:
    reference, total, _ = row.concatenation or (0, 0, 0)
    return row.supplier_id, row.sender, row.recipient, reference, total
