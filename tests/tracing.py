"""A trace exporter that keeps its spans."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from heliograph.base.process import spans
from heliograph.base.process.spans import Attributes, Context, Kind

#: Ids of messages, traces and spans. A telephone number has 15 digits at most.
IDS = re.compile(r"[0-9a-f-]{16,}")


def without_ids(text: str) -> str:
    """A text without ids, to be searched for digits: a few dozen ids contain any three of them."""
    return IDS.sub("", text)


class Step:
    """A span of the test's exporter."""

    def __init__(self, name: str, context: Context, parent: Context | None, said: Attributes) -> None:
        self.name, self.context, self.parent, self.said = name, context, parent, dict(said)
        self.has_ended = False

    def end(self, said: Attributes = spans.NOTHING, *, name: str = "", failed: bool = False) -> None:
        self.name, self.has_ended = name or self.name, True
        self.said |= said


class Exporter:
    """Keeps its spans."""

    def __init__(self) -> None:
        self.steps: list[Step] = []

    def begin(self, name: str, *, parent: Context | None, kind: Kind, at: int, said: Attributes) -> Step:
        n = len(self.steps) + 1
        self.steps.append(Step(name, Context(n if parent is None else parent.trace, n), parent, said))
        return self.steps[-1]

    def close(self) -> None:
        """Nothing to flush."""

    def roots(self) -> dict[str, Step]:
        """The root spans, by message id."""
        return {str(one.said["message_id"]): one for one in self.steps if one.parent is None}


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    found = Exporter()
    spans.use(found)
    yield found
    spans.use(None)
