"""Which organizations wait in which line, as far as this worker knows, and whose turn is next. Pure: no database, no
clock.

A line has two lanes, and in each lane organizations form a ring: one that was served goes to its end. With more
organizations than free places, each of the next ones gets one; with fewer, the places are divided evenly, and those
that one cannot fill go to the others. Lane 0 goes before lane 1, except for one place in `SHARE`.

This knowledge is only a hint where to look. The database decides whether a row is free, and the number of waiting rows
is an estimate.

The rule nobody may break: every waiting organization is in the ring. It leaves only when fewer rows were found than
were asked for and none was read in the meantime, and comes back as soon as one of its rows is read (`backlog`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping
from datetime import datetime
from itertools import islice
from uuid import UUID

import msgspec

#: While work waits in both lanes, lane 1 gets one place in this many.
SHARE = 16
#: How many organizations are asked in addition to those that got a place.
MORE = 32


class Group(msgspec.Struct):
    """Rows of one organization in one lane of a line."""

    line: UUID
    lane: int
    organization_id: UUID
    #: No free row has an earlier place, as far as known.
    place: datetime
    #: The estimated number of waiting rows.
    count: int
    #: The requests of running claims.
    asked: list[GroupRequest] = []


class GroupRequest(msgspec.Struct, eq=False):
    """One claim's request to a group: at most that many rows, from `place` on."""

    group: Group
    place: datetime
    most: int
    #: The earliest row read since then: the claim may have begun too early to see it.
    since: datetime | None = None


class LineRequest(msgspec.Struct, frozen=True):
    """One claim's request to a line: at most `free` rows, from the groups in this order."""

    line: UUID
    free: int
    asked: list[GroupRequest]


#: The number of rows found, and the place of the last one, by line, lane and organization.
Got = Mapping[tuple[UUID, int, UUID], tuple[int, datetime]]


class _Line(msgspec.Struct):
    lanes: tuple[OrderedDict[UUID, Group], OrderedDict[UUID, Group]]
    #: Places that lane 1 has accrued so far.
    credit: float = 0.0


class Turns:
    """The rings of one kind of work."""

    def __init__(self) -> None:
        self._lines: OrderedDict[UUID, _Line] = OrderedDict()
        self._found: dict[UUID, None] = {}

    def __bool__(self) -> bool:
        """True if any group seems to have waiting rows: a line without one is dropped."""
        return bool(self._lines)

    def lines(self, limit: int) -> list[UUID]:
        """Lines in which work seems to be waiting; if there are more than `limit`, the next call returns others."""
        lines = list(islice(self._lines, limit))
        if len(lines) < len(self._lines):
            for line in lines:
                self._lines.move_to_end(line)
        return lines

    def found(self) -> list[UUID]:
        """Lines in which more work was found since the last call."""
        found, self._found = list(self._found), {}
        return found

    def add(self, line: UUID, lane: int, organization_id: UUID, place: datetime, count: int) -> None:
        """Note that `count` more rows are waiting, the first of them at `place`."""
        self._group(line, lane, organization_id, place).count += count

    def add_all(self, line: UUID, lane: int, organization_id: UUID, place: datetime, count: int) -> None:
        """Note that `count` rows are waiting in all, the first of them at `place`."""
        group = self._group(line, lane, organization_id, place)
        group.count = max(group.count, count)

    def clear(self) -> None:
        """Forget everything."""
        self._lines.clear()
        self._found.clear()

    def ask(self, free: Mapping[UUID, int], *, more: int = MORE) -> list[LineRequest]:
        """Decide which groups to ask for how many rows, so that at most `free[line]` of each line are found. Those
        asked go to the end of the ring. `more`: how many others to ask in case those whose turn it is have too few."""
        asks: list[LineRequest] = []
        for id, places in free.items():
            line = self._lines.get(id)
            if line is None or places <= 0:
                continue
            first, second = line.lanes
            kept = 0
            if first and second:
                line.credit = min(line.credit + places / SHARE, float(places))
                kept = min(int(line.credit), sum(group.count for group in second.values()))
                line.credit -= kept
            singles, taken = _share(first, places - kept, more)
            bulk, _ = _share(second, max(kept, places - taken), more)
            # The first group asked may have more rows than is known, so what is reserved for lane 1 has to come first.
            asks.append(LineRequest(id, places, bulk + singles if kept else singles + bulk))
            for one in asks[-1].asked:
                one.group.asked.append(one)
        return asks

    def took(self, asks: Iterable[LineRequest], got: Got) -> None:
        """Record what a claim found."""
        for ask in asks:
            counts = [
                got.get((ask.line, one.group.lane, one.group.organization_id), (0, one.place)) for one in ask.asked
            ]
            # Once all places were taken the others were not asked, and the last one perhaps not for everything it has.
            full = sum(count for count, _ in counts) >= ask.free
            heard = max((n for n, (count, _) in enumerate(counts) if count), default=-1) if full else len(counts)
            for n, (one, (count, place)) in enumerate(zip(ask.asked, counts, strict=True)):
                group = one.group
                _ended(one)
                if n < heard and count < one.most and one.since is None:
                    self._drop(group)
                elif n <= heard:
                    group.count = max(group.count - count, 1)
                    # Another claim may have learned of an earlier place in the meantime.
                    if group.place >= one.place:
                        group.place = max(group.place, place)
                    if one.since is not None:
                        group.place = min(group.place, one.since)
            for one in reversed(ask.asked[heard + 1 :]):
                self._first(one.group)

    def give_back(self, asks: Iterable[LineRequest]) -> None:
        """Undo a claim that was rolled back: everything waits as before."""
        for ask in asks:
            for one in ask.asked:
                group = one.group
                _ended(one)
                self.add_all(group.line, group.lane, group.organization_id, one.place, max(group.count, one.most))

    def _group(self, id: UUID, lane: int, organization_id: UUID, place: datetime) -> Group:
        line = self._lines.get(id)
        if line is None:
            line = self._lines[id] = _Line((OrderedDict(), OrderedDict()))
        self._found[id] = None
        ring = line.lanes[lane]
        group = ring.get(organization_id)
        if group is None:
            group = ring[organization_id] = Group(id, lane, organization_id, place, 0)
        elif place < group.place:
            group.place = place
        for one in group.asked:
            if one.since is None or place < one.since:
                one.since = place
        return group

    def _drop(self, group: Group) -> None:
        if (ring := self._ring_of(group)) is None:
            return
        del ring[group.organization_id]
        if not any(self._lines[group.line].lanes):
            del self._lines[group.line]

    def _first(self, group: Group) -> None:
        if (ring := self._ring_of(group)) is not None:
            ring.move_to_end(group.organization_id, last=False)

    def _ring_of(self, group: Group) -> OrderedDict[UUID, Group] | None:
        """The ring that a group is in; None if it has left."""
        line = self._lines.get(group.line)
        if line is None or line.lanes[group.lane].get(group.organization_id) is not group:
            return None
        return line.lanes[group.lane]


def _share(ring: OrderedDict[UUID, Group], places: int, more: int) -> tuple[list[GroupRequest], int]:
    """Divide places among a ring's organizations; also returns how many of them will probably be filled.

    An organization that is asked for all its known rows is asked for one more: if there is none, it may leave. The one
    with the most comes last, and may use what the others leave.
    """
    if places <= 0 or not ring:
        return [], 0
    asked: list[GroupRequest] = []
    if len(ring) >= places:
        for group in list(islice(ring.values(), places + more)):
            ring.move_to_end(group.organization_id)
            asked.append(GroupRequest(group, group.place, 1 if group.count > 1 else 2))
        return asked, places
    left = places
    sizes: dict[UUID, int] = {}
    # The smallest first: the unused part of its share goes to those after it.
    by_count = sorted(ring.values(), key=_count)
    for n, group in enumerate(by_count):
        size = min(group.count, left // (len(ring) - n))
        sizes[group.organization_id] = size
        left -= size
    ring.move_to_end(by_count[-1].organization_id)
    for group in list(ring.values()):
        size = sizes[group.organization_id]
        asked.append(GroupRequest(group, group.place, size + left // len(ring) + (size >= group.count)))
    asked[-1] = GroupRequest(by_count[-1], by_count[-1].place, places)
    return asked, places - left


def _ended(one: GroupRequest) -> None:
    """Note that a claim has ended."""
    if one in one.group.asked:
        one.group.asked.remove(one)


def _count(group: Group) -> int:
    return group.count
