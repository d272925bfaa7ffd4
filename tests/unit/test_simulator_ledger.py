"""A simulator's ledger on a disk that is full for a while."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from heliograph.simulators.ledger import Ledger
from heliograph.simulators.receiver import Options, Receiver
from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.records import Records
from heliograph.simulators.smsc.wire import read_submit
from heliograph.suppliers.smpp.codec.pdu import SubmitSm
from tests.processes import until


@contextlib.contextmanager
def no_file_longer_than(size: int) -> Iterator[None]:
    """What a full disk does to a file: a part of a write fits, then none."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_each_line_is_in_it_once_although_the_disk_was_full(tmp_path: Path) -> None:
    path = tmp_path / "ledger"
    path.write_text("before\n")
    ledger = Ledger(str(path))
    with no_file_longer_than(10):
        ledger.write(["first\n", "second\n"])
        ledger.write(["third\n"])
    assert path.read_text() == "before\nfir"
    ledger.write(["fourth\n"])
    assert path.read_text() == "before\nfirst\nsecond\nthird\nfourth\n"
    ledger.close()


def test_what_never_found_room_is_said(tmp_path: Path) -> None:
    ledger = Ledger(str(tmp_path / "ledger"))
    with no_file_longer_than(3):
        ledger.write(["first\n"])
        with pytest.raises(OSError) as raised:
            ledger.close()
    assert raised.value.errno == errno.EFBIG


async def test_the_receivers_ledger_goes_on_once_there_is_room(tmp_path: Path) -> None:
    receiver = Receiver(Options(ledger=str(tmp_path / "ledger")))
    await receiver.start()
    with no_file_longer_than(4):
        await take(receiver, "first")
        receiver.flush()
    await take(receiver, "second")
    await receiver.stop()
    assert (tmp_path / "ledger").read_text() == "first message.delivered \nsecond message.delivered \n"


async def take(receiver: Receiver, id: str) -> None:
    body = f'{{"id":"{id}","type":"message.delivered","data":{{}}}}'
    reader, writer = await asyncio.open_connection("127.0.0.1", receiver.port)
    writer.write(f"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    writer.close()


async def test_the_ledger_of_the_smsc_goes_on_once_there_is_room(tmp_path: Path) -> None:
    records = Records(SmscOptions(ledger=str(tmp_path / "ledger")))
    records.open()
    frame = SubmitSm(source_addr="258", destination_addr="258841234567", short_message=b"hello").encode()
    with no_file_longer_than(4):
        records.add("heliograph", frame, read_submit(frame, 0, len(frame)), 0, "first")
        await until(lambda: (tmp_path / "ledger").read_text())
    records.add("heliograph", frame, read_submit(frame, 0, len(frame)), 0, "second")
    await until(lambda: (tmp_path / "ledger").read_text().count("\n") == 2)
    records.close()
    assert [line.split("\t")[5] for line in (tmp_path / "ledger").read_text().splitlines()] == ["first", "second"]
