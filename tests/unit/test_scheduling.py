"""When tests may begin."""

from __future__ import annotations

from datetime import datetime

import pytest

from tests import scheduling


@pytest.mark.parametrize(
    ("at", "seconds"),
    [
        ("2026-11-30T12:00:00Z", 0),
        ("2026-11-30T23:55:59Z", 0),
        ("2026-11-30T23:56:00Z", 241),
        ("2026-11-30T23:59:59.500Z", 1.5),
        ("2026-12-01T00:00:00Z", 1),
        ("2026-12-01T00:00:01Z", 0),
    ],
)
def test_none_begins_shortly_before_midnight(at: str, seconds: float) -> None:
    assert scheduling.seconds_until_it_may_begin(datetime.fromisoformat(at).timestamp()) == pytest.approx(seconds)
