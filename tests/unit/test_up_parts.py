"""A part of `heliograph up` is started again whatever became of it, or of the attempt to start it."""

from __future__ import annotations

import asyncio
import errno
import os
from typing import Any

import pytest

from heliograph.up.parts import Part


async def test_a_part_that_cannot_be_started_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    launch, refusals = asyncio.create_subprocess_exec, [errno.EMFILE, errno.ENOMEM]

    async def scarce(*command: Any, **options: Any) -> asyncio.subprocess.Process:
        if refusals:
            number = refusals.pop(0)
            raise OSError(number, os.strerror(number))
        return await launch(*command, **options)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", scarce)
    said: list[str] = []
    ended = asyncio.Event()

    def say(line: str) -> None:
        said.append(line)
        if "ended" in line:
            ended.set()

    part = Part("api", ["--version"], os.environ, say)
    part.start()
    try:
        await asyncio.wait_for(ended.wait(), 60)
    finally:
        await part.stop()
    assert said[:3] == [
        "api cannot be started: Too many open files; trying again.",
        "api cannot be started: Cannot allocate memory; trying again.",
        "api ended (0); restarting it.",
    ]
