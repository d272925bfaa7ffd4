"""Dashboards with millions of stored messages: what open ones cost senders. (Their response times: `pages`.)"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import aiohttp

from bench.accept import Lengths, once
from bench.figures import Report
from bench.pages import owner
from bench.stage import Stage
from heliograph.traffic import folding

#: Dashboards open while messages are accepted.
OPEN = 20
#: Seconds between two requests of one: after a change, and the factor by which it grows while nothing changes.
PAUSE, GROWS, LONGEST = 2.0, 1.5, 15.0
#: Pages that they show, in turn.
WATCHED = ("/", "/messages", "/messages?status=failed")


async def dashboards(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Accepts without and with OPEN dashboards, in turn. The API must be running."""
    async with owner(stage) as session:
        without, with_open, memory = [], [], 0.0
        for _ in range(lengths.rounds):
            await fold(stage)
            without.append((await once(stage, connections=64, seconds=lengths.window, empty=False)).rate)
            await fold(stage)
            async with _watching(session):
                with_open.append((await once(stage, connections=64, seconds=lengths.window, empty=False)).rate)
            memory = max(memory, stage.size("api"))
    report.add("pages_accept_none", "accepted, 64 connections, no dashboard open", without, "/s")
    report.add("pages_accept_open", f"accepted, 64 connections, {OPEN} dashboards open", with_open, "/s")
    report.ratio(
        "pages_accept", f"accepted with {OPEN} dashboards open ÷ with none", "pages_accept_open", "pages_accept_none"
    )
    report.add("pages_memory", "resident memory, API process after its pages", [memory], "MB")


async def fold(stage: Stage) -> None:
    """Do what a worker does every ten seconds. None runs here, and the home page would add up everything accepted since
    the database was filled: tens of thousands of deltas, seven times, instead of those of a few seconds."""
    async with stage.connection() as conn:
        await folding.fold(conn)


@contextlib.asynccontextmanager
async def _watching(session: aiohttp.ClientSession) -> AsyncIterator[None]:
    """OPEN dashboards that refresh like an open page (`pages/static/live.js`)."""

    async def look(number: int) -> None:
        path, tag, seen, pause = WATCHED[number % len(WATCHED)], "", "0", PAUSE
        await asyncio.sleep(PAUSE * number / OPEN)
        while True:
            headers = {"HX-Request": "true", "X-Seen": seen} | ({"If-None-Match": tag} if tag else {})
            async with session.get(path, headers=headers) as answer:
                await answer.read()
                pause = min(pause * GROWS, LONGEST) if answer.status == 304 else PAUSE
                tag, seen = answer.headers.get("etag", tag), answer.headers.get("x-made", seen)
            await asyncio.sleep(pause)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(look(number)) for number in range(OPEN)]
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
