"""O1 Now: what is wrong, since when, and what to do; then what goes through and what waits."""

from __future__ import annotations

from heliograph.console.engine.desk import Trouble, desk
from heliograph.overview.installation.now import Now, only_simulated
from heliograph.pages.answers import Answer, Shown
from heliograph.pages.requests import Request

#: Work that is overdue for so long is late, seconds.
LATE = 10.0


async def show(request: Request) -> Answer:
    """The wall screen."""
    async with request.reading() as conn:
        seen = await desk(request).watch.read(conn)
        troubles = await desk(request).look(conn, request.services.settings)
    values = {"now": seen, "troubles": troubles, "said": _said(request, seen, troubles)}
    values["simulated_only"] = only_simulated(seen.suppliers)
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
