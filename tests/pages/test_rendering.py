"""Pages are rendered in pieces, between which the event loop may run."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from heliograph.pages.serving.rendering import kit
from heliograph.pages.templates import BREATH, PIECES, environment, render


async def test_others_go_on_while_a_long_page_is_made(tmp_path: Path) -> None:
    """Each row takes as long as a page may block the loop, so the loop runs after each check of the clock."""
    rows = 5 * PIECES
    (tmp_path / "long.html").write_text("{% for one in rows %}{{ row(one) }}{% endfor %}")
    made = environment([tmp_path], kit(())[0])
    turns: list[int] = []

    def row(number: int) -> str:
        last = time.perf_counter() + BREATH
        while time.perf_counter() < last:
            pass
        return f"{number} "

    async def count() -> None:
        while True:
            turns.append(len(turns))
            await asyncio.sleep(0)

    others = asyncio.create_task(count())
    text = await render(made, "long.html", {"rows": range(rows), "row": row})
    others.cancel()
    assert text == "".join(f"{number} " for number in range(rows))
    assert len(turns) == rows // PIECES


async def test_a_short_page_is_made_at_once(tmp_path: Path) -> None:
    (tmp_path / "short.html").write_text("{{ name }}")
    made = environment([tmp_path], kit(())[0])
    with pytest.raises(StopIteration) as ended:
        render(made, "short.html", {"name": "<Ana>"}).send(None)
    assert ended.value.value == "&lt;Ana&gt;"
