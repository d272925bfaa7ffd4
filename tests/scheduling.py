"""Which worker runs which test when. `make test` runs more workers than there are processors, as tests mostly wait.

Tests that last, which say so with `@pytest.mark.lasts(seconds)`, come first, the longest at the very first, so that
none is left to the end alone. Only some workers take them; the others keep the processors busy meanwhile with all the
short ones. xdist's own orders know neither: a group runs on one worker, and a share may end in the longest test.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pytest
from xdist.scheduler import LoadGroupScheduling

#: xdist's way to tell the scheduler more of a test than its name is the name of a group.
LASTING = "lasting-"
#: Workers on each processor, and further ones. Those that take tests that last are the ones beyond the processors.
EACH, MORE = 2, 2


def workers() -> int:
    """How many workers `-n auto` means."""
    return EACH * (os.cpu_count() or 1) + MORE


def order(items: list[pytest.Item]) -> None:
    """What lasts first, the longest before all others. What is of a group of its own stays together."""
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
    """Gives each worker one test and a next one, which it needs to know before it begins."""

    def remove_node(self, node: Any) -> str | None:
        """xdist runs the test that ended its worker again, and again."""
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
        if node not in self.registered_collections:  # it takes the place of one that has crashed, and still collects
            return
        # Not only one test: nobody would come back to a worker that waits for the next.
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
    # xdist joins the names of a test's groups in alphabetical order; a test that is in none has its own name.
    return LASTING in scope and "::" not in scope


def make(config: pytest.Config, log: Any) -> Scheduling:
    """The scheduler of a run that is distributed."""
    return Scheduling(config, log)


__all__: Sequence[str] = ["Scheduling", "make", "order", "workers"]
