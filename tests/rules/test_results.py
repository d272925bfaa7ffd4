"""Suppliers' responses while the database is down: they wait, and the log says so once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from heliograph.base.database.pool import Pool
from heliograph.base.ids import uuid7
from heliograph.base.network.connecting import DatabaseUnavailable
from heliograph.sending import results
from heliograph.sending.results import Results


class Writer:
    """Writes successfully after the database has been down for some attempts."""

    kind, table = "sms", "messages"
    #: Answers that cannot be written.
    bad: tuple[Any, ...] = ()

    def __init__(self, *, fails: int) -> None:
        self.fails = fails
        self.written: list[Any] = []

    async def prepare(self, answered: Any, reports: Any) -> None:
        if self.fails:
            self.fails -= 1
            raise DatabaseUnavailable("the database does not answer")

    async def write(self, conn: Any, answered: Any, *_: Any, **__: Any) -> int:
        if any(one in self.bad for one in answered):
            raise ValueError
        self.written += answered
        return 0


async def test_answers_that_wait_for_the_database_are_logged_once(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(results, "RETRY", 0.0)
    writer = Writer(fails=5)
    recorded: Results[Any] = Results(pool, writer)
    lease = SimpleNamespace(organization_id=uuid7(), id=uuid7())
    attempt = SimpleNamespace(lease=lease, number=1)
    answer: Any = SimpleNamespace(outcome=SimpleNamespace(verdict="accepted"), attempt=attempt, is_late=False)
    with capture_logs() as logs:
        recorded.answer(answer)
        await recorded.drain()
    assert writer.written == [answer]
    assert [line["log_level"] for line in logs] == ["warning", *["debug"] * 4]


async def test_what_is_not_committed_is_not_reported_as_recorded(pool: Pool) -> None:
    writer = Writer(fails=0)
    recorded: Results[Any] = Results(pool, writer)
    attempt = SimpleNamespace(lease=SimpleNamespace(organization_id=uuid7(), id=uuid7()))
    first, second = answers = [SimpleNamespace(outcome=SimpleNamespace(verdict="accepted"), attempt=attempt, n=n)
                               for n in range(2)]  # fmt: skip
    writer.bad = (second,)
    committed: list[Any] = []
    recorded.committed = committed.extend
    for one in answers:
        recorded.answer(one)  # type: ignore[arg-type]
    await recorded.drain()
    assert committed == [first]
