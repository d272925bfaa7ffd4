"""Which worker runs which test when. `make test` runs more workers than there are processors, because tests mostly
wait.

Long tests, marked `@pytest.mark.lasts(seconds)`, come first in order of length, so that none runs alone at the end.
Only some workers take them; the others keep the processors busy with all the short ones meanwhile. xdist's own
schedulers do neither: a group runs on one worker, and a worker's share may end with the longest test.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

#: Besides its name, a test's group is the only thing xdist passes to the scheduler.
LASTING = "lasting-"
#: Workers per processor, and additional ones, which take the long tests.
EACH, MORE = 2, 2
#: No test begins in the last seconds of a day of UTC, and so of a month: what it counts as today's would be yesterday's
#: before it is compared.
BEFORE_MIDNIGHT = 240.0


def workers() -> int:
    """The number of workers for `-n auto`."""
    return EACH * (os.cpu_count() or 1) + MORE


def seconds_until_it_may_begin(now: float) -> float:
    """How long a test waits at a moment, in seconds since 1970: not at all, or until a second after midnight, since the
    database's clock may differ a little."""
    return max(0.0, BEFORE_MIDNIGHT + 1 - (now + BEFORE_MIDNIGHT) % 86_400)


def order(items: list[pytest.Item]) -> None:
    """Sort long tests first, the longest before all others. Tests that share a group stay together."""
    items.sort(key=lambda item: -_seconds(item))
    for number, item in enumerate(items):
        if not _seconds(item):
            break
        own = item.get_closest_marker("xdist_group")
        item.add_marker(pytest.mark.xdist_group(f"{LASTING}{own.args[0] if own else number}"))


def _seconds(item: pytest.Item) -> float:
    mark = item.get_closest_marker("lasts")
    return float(mark.args[0]) if mark else 0.0


class Scheduling(LoadGroupScheduling):
    """Gives each worker one test and the next one, which a worker needs to know before it starts."""

    def remove_node(self, node: Any) -> str | None:
        """Override: xdist would run the test that crashed its worker again and again."""
        units = self.assigned_work.pop(node)
        left = {scope: unit for scope, unit in units.items() if not all(unit.values())}
        if not left:
            return None
        unit = next(iter(left.values()))
        crashed = next(test for test, done in unit.items() if not done)
        unit[crashed] = True
        self.workqueue.update((scope, unit) for scope, unit in left.items() if not all(unit.values()))
        for other in self.assigned_work:
            self._reschedule(other)
        return crashed

    def _reschedule(self, node: Any) -> None:
        if node not in self.registered_collections:  # it replaces a crashed worker, and is still collecting
            return
        # More than one test, because nobody would come back to a worker that waits for the next.
        while not (node.shutting_down or (self.workqueue and self._pending_of(self.assigned_work[node]) > 1)):
            super()._reschedule(node)

    def _assign_work_unit(self, node: Any) -> None:
        self.workqueue.move_to_end(self._next(node), last=False)
        super()._assign_work_unit(node)

    def _next(self, node: Any) -> str:
        first = next(iter(self.workqueue))
        if not _lasts(first):
            return first
        busy = [one for one, work in self.assigned_work.items() if self._waits_for_long(work)]
        if node not in busy and len(busy) < max(1, len(self.assigned_work) - (os.cpu_count() or 1)):
            return first
        return next((scope for scope in self.workqueue if not _lasts(scope)), first)

    def _waits_for_long(self, work: dict[str, dict[str, bool]]) -> bool:
        return any(_lasts(scope) and not all(done.values()) for scope, done in work.items())


def _lasts(scope: str) -> bool:
    # xdist joins the names of a test's groups in alphabetical order; the scope of a test without a group is its own
    # name.
    return LASTING in scope and "::" not in scope


def make(config: pytest.Config, log: Any) -> Scheduling:
    """The scheduler for a distributed run."""
    return Scheduling(config, log)


__all__: Sequence[str] = ["Scheduling", "make", "order", "workers"]
