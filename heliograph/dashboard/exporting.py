"""Requesting an export: what the "Export" button does in the lists of every room.

The rule nobody may break: no page holds a connection while a file is written or read.
"""

from __future__ import annotations

from heliograph.accounts.requests import IdempotencyConflict
from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.overview.exports import jobs
from heliograph.overview.exports.jobs import TooManyExports
from heliograph.overview.exports.kinds import Wanted
from heliograph.pages.answers import Answer, Redirect
from heliograph.pages.pieces.charts import SEPARATORS
from heliograph.pages.requests import Request

HERE = "/exports"


def separator(request: Request) -> str:
    """The delimiter of CSV files, as expected by spreadsheets in the reader's language."""
    return SEPARATORS.get(request.locale.language, ",")


async def ask(request: Request, actor: Actor, wanted: Wanted) -> Answer:
    """Request the file, once per form, and go to the page that shows its progress."""

    async def work(conn: Connection) -> str:
        return str(await jobs.ask(conn, actor, wanted=wanted))

    try:
        try:
            await request.once(work)
        except IdempotencyConflict:  # same page, but another file format
            async with request.writing() as conn:
                await work(conn)
    except TooManyExports as refusal:
        return Redirect(location=request.to(HERE), notice=request.text(refusal.message), is_refusal=True)
    return Redirect(location=request.to(HERE))
