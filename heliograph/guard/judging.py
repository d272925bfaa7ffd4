"""The detection rules, applied by a worker to messages about to be sent: this is where money is spent, and where
messages from every interface pass.

A message that raises no suspicion costs its place in the windows (3 to 5 µs) and no statement. The windows are in each
worker's memory; it shares what it saw with the others once a second (`sharing`), so a range is noticed as if one worker
had seen everything, a second or two later, and a worker that starts knows what was sent before. Holds are rows: a range
found by one worker is held for all of them.

The rule nobody may break: a message that is not suspicious never waits for the database here.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

import asyncpg
import msgspec

from heliograph.base import phones
from heliograph.base.database import clock
from heliograph.base.database.pool import Connection, Pool
from heliograph.base.ids import place_of
from heliograph.guard import holds, rules
from heliograph.guard.conversion import Conversions
from heliograph.guard.holds import Found
from heliograph.guard.sharing import Shared
from heliograph.guard.windows import Suspicion, Windows

TRAFFIC = "LOCK TABLE traffic IN ACCESS SHARE MODE NOWAIT"
#: Seconds for which the list of holds is used.
FRESH = 1.0
#: Seconds for which the usual numbers for this hour are used.
USUAL_FOR = 300.0
#: Seconds for which a block is not suspected because its numbers are the organization's contacts.
VOUCHED = 600.0
#: Maximum number of such blocks remembered.
MOST_VOUCHED = 10_000


class Outgoing(msgspec.Struct, frozen=True, gc=False):
    """A live single message that has not been offered to any supplier yet."""

    organization_id: UUID
    id: UUID
    #: E.164 with `+`.
    to: str
    traffic_class: str


class Judge:
    """One per worker."""

    def __init__(self, windows: Windows | None = None) -> None:
        self._windows = windows or Windows()
        self._conversions = Conversions()
        self._shared = Shared()
        #: Conversions up to this time have been applied.
        self._converted_until: datetime | None = None
        self._standing: dict[UUID, dict[str, UUID]] = {}
        self._read_at = float("-inf")
        #: When the usual numbers expire.
        self._usual_until = float("-inf")
        #: Ranges that are not suspected, and until when.
        self._vouched: dict[tuple[UUID, str], float] = {}

    async def judge(self, conn: Connection, outgoing: Sequence[Outgoing], *, at: datetime) -> set[UUID]:
        """Returns the messages that are to wait in the line GUARDED, and records why. Runs in the caller's transaction;
        `at`: now, by the database's clock."""
        if asyncio.get_running_loop().time() - self._read_at > FRESH:
            await self._read(conn)
        moment = at.timestamp()
        found: dict[tuple[UUID, str], Suspicion] = {}
        suspected: list[tuple[Outgoing, str]] = []
        for one in outgoing:
            suspicion = self._look(one, moment)
            held = self._standing.get(one.organization_id)
            range = None if held is None else _range(held, one.to, one.traffic_class)
            if range is not None:
                suspected.append((one, range))
            elif suspicion is not None and not self._is_vouched(one.organization_id, suspicion.range, moment):
                suspected.append((one, suspicion.range))
                found[(one.organization_id, suspicion.range)] = suspicion
        if not suspected:
            return set()
        if found:
            await self._begin(conn, found, moment)
        met = []
        for one, range in suspected:
            hold = self._standing.get(one.organization_id, {}).get(range)
            if hold is not None:
                met.append((one.organization_id, one.id, one.to, hold))
        return await holds.meet(conn, met) if met else set()

    async def share(self, pool: Pool) -> None:
        """Share what this worker has seen since the last time with the others; if there is nothing, runs no
        statement."""
        await self._shared.tell(pool)

    def refresh(self) -> None:
        """Make the next messages read the holds and conversions again."""
        self._read_at = float("-inf")

    def _look(self, one: Outgoing, moment: float) -> Suspicion | None:
        country = phones.country(one.to)
        # Not its time of acceptance: messages committed together share that, and would count as one.
        place = place_of(one.id)
        self._shared.saw(one.organization_id, one.to, one.traffic_class, place)
        self._conversions.sent(one.organization_id, one.to, at=moment, place=place)
        bad = self._conversions.is_bad(one.organization_id, one.to)
        return self._windows.see(
            one.organization_id,
            one.to,
            country,
            one.traffic_class,
            at=moment,
            place=place,
            unconverted=bad,
        )

    async def _read(self, conn: Connection) -> None:
        standing: dict[UUID, dict[str, UUID]] = {}
        for organization_id, range, id in await holds.standing(conn):
            standing.setdefault(organization_id, {})[range] = id
        self._standing, self._read_at = standing, asyncio.get_running_loop().time()
        self._windows.limit(await rules.limits(conn))
        if self._read_at >= self._usual_until:
            self._usual_until = self._read_at + USUAL_FOR
            self._windows.forget_usual()
        if wanted := self._windows.unusual():
            # Whoever has locked the roll-ups, as by VACUUM FULL, would stop all dispatch. They stay unknown meanwhile.
            with contextlib.suppress(asyncpg.LockNotAvailableError):
                async with conn.transaction():
                    await conn.execute(TRAFFIC)
                    for organization_id, country, messages in await holds.usual(conn, wanted):
                        self._windows.usual(organization_id, country, messages)
        # First the organizations whose conversions are known: sent messages count only for those. Then the messages
        # that other workers sent, and which of them converted.
        if self._converted_until is not None:  # a later one is from before the clock was set back
            self._converted_until = min(self._converted_until, clock.now())
        converted = await holds.converted(conn, since=self._converted_until)
        self._convert(converted)
        told = await self._shared.hear(conn)
        for seen in told:
            country = phones.country(seen.to)
            moment = seen.at.timestamp()
            self._conversions.sent(seen.organization_id, seen.to, at=moment, place=seen.place)
            self._windows.told(seen.organization_id, seen.to, country, seen.traffic_class, at=moment, place=seen.place)
        if told:
            self._convert(converted)

    def _convert(self, converted: Sequence[tuple[UUID, str, datetime]]) -> None:
        for organization_id, to, at in converted:
            self._conversions.converted(organization_id, to, at=at.timestamp())
        if converted:
            latest = converted[-1][2]
            self._converted_until = max(latest, self._converted_until or latest)

    async def _begin(self, conn: Connection, found: dict[tuple[UUID, str], Suspicion], moment: float) -> None:
        """Hold suspicious ranges, unless their numbers are the organization's contacts, or it has sent to that country
        before."""
        begun: list[Found] = []
        acquainted = await self._acquainted(conn, [key for key, one in found.items() if one.kind == "block"])
        for (organization_id, range), suspicion in found.items():
            if (organization_id, range) in acquainted:
                self._vouch(organization_id, range, moment)
                continue
            if suspicion.kind == "country" and await holds.used_to(conn, organization_id, range):
                self._windows.known(organization_id, range)
                continue
            begun.append(Found(organization_id, range, suspicion.kind, suspicion.rules, suspicion.score))
        if not begun:
            return
        made = await holds.begin(conn, begun)
        for one in begun:
            id = made.get((one.organization_id, one.range))
            if id is None:
                # It is safe, was released, or another worker was faster.
                self._vouch(one.organization_id, one.range, moment, seconds=FRESH)
            else:
                self._standing.setdefault(one.organization_id, {})[one.range] = id

    async def _acquainted(self, conn: Connection, blocks: Sequence[tuple[UUID, str]]) -> set[tuple[UUID, str]]:
        """Those of these blocks that consist largely of the organization's contacts (`holds.acquainted`)."""
        if not blocks:
            return set()
        known = await holds.acquainted(conn, [(one[0], self._windows.members(*one)) for one in blocks])
        return {one for one, is_known in zip(blocks, known, strict=True) if is_known}

    def _vouch(self, organization_id: UUID, range: str, moment: float, *, seconds: float = VOUCHED) -> None:
        if len(self._vouched) >= MOST_VOUCHED:
            self._vouched.clear()
        self._vouched[(organization_id, range)] = moment + seconds

    def _is_vouched(self, organization_id: UUID, range: str, moment: float) -> bool:
        until = self._vouched.get((organization_id, range))
        return until is not None and moment < until <= moment + VOUCHED


def _range(held: dict[str, UUID], to: str, traffic_class: str) -> str | None:
    """The held range that a message belongs to."""
    for range in holds.ranges(to, traffic_class):
        if range in held:
            return range
    return None
