"""O1 Now: what is wrong, since when, and what to do; then what goes through and what waits."""

from __future__ import annotations

import functools
from datetime import datetime

import msgspec

from heliograph import doctor
from heliograph.base.checks import Check
from heliograph.base.database import clock
from heliograph.overview.installation.now import Now, Watch
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request

#: Work that is overdue for so long is late, seconds.
LATE = 10.0


class Trouble(msgspec.Struct, frozen=True):
    """A check that is not well, and since when this process has seen it so."""

    check: Check
    since: datetime


class Desk:
    """What a process remembers between two looks."""

    def __init__(self) -> None:
        self.watch = Watch()
        self._since: dict[tuple[str, str], datetime] = {}

    def troubles(self, checks: list[Check]) -> list[Trouble]:
        """Those that are not well, failures first."""
        at = clock.now()
        wrong = [one for one in checks if one.state != "ok"]
        known = {(one.check, one.state) for one in wrong}
        self._since = {key: since for key, since in self._since.items() if key in known}
        found = [Trouble(one, self._since.setdefault((one.check, one.state), at)) for one in wrong]
        return sorted(found, key=lambda one: (one.check.state != "failed", one.since))


@functools.cache
def desk() -> Desk:
    """The process's."""
    return Desk()


async def show(request: Request) -> Answer:
    """The wall screen."""
    async with request.reading() as conn:
        seen = await desk().watch.read(conn)
        troubles = desk().troubles(await doctor.examine(conn, request.services.settings, far=False))
    values = {"now": seen, "troubles": troubles, "said": _said(request, seen, troubles)}
    return Shown(template="engine/now_live.html" if request.is_fragment else "engine/now.html", values=values)


def _said(request: Request, seen: Now, troubles: list[Trouble]) -> str:
    """The whole state in a sentence."""
    failed = sum(one.check.state == "failed" for one in troubles)
    if failed:
        return request.speech.count("%(num)s thing is wrong.", "%(num)s things are wrong.", failed)
    late = max(seen.late.values(), default=0.0)
    if late > LATE:
        return request.text("Work is late: the oldest is due for %(time)s.", time=request.speech.lasted(late))
    if troubles:
        return request.speech.count("Carrying; %(num)s warning.", "Carrying; %(num)s warnings.", len(troubles))
    return request.text("Everything works.")
