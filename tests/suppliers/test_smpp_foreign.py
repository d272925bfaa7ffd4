"""The connector against an SMSC that shares no code with it: smpp.twisted3, in its own environment (`make test`)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from smpp_peer import PeerAccount, until

from heliograph.suppliers.contract import ReceiptState, Verdict

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".peers" / "bin" / "python"
SCRIPT = Path(__file__).parent / "peers" / "twisted_smsc.py"


@pytest.fixture
async def port() -> AsyncIterator[int]:
    assert PYTHON.exists(), "`make .peers/stamp` makes the environment of the foreign peer"
    process = await asyncio.create_subprocess_exec(
        PYTHON,
        SCRIPT,
        "esme",
        "secret",
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    yield int(await asyncio.wait_for(process.stdout.readline(), 120))
    process.stdin.close()
    await asyncio.wait_for(process.wait(), 120)


async def test_messages_and_receipts(port: int) -> None:
    account = await PeerAccount(port).start()
    account.submit(20)
    account.submit(segments=("Олá".encode("utf-16-be"),), encoding="ucs2", validity_seconds=3600)
    account.submit(segments=(b"a" * 153, b"b"))
    outcomes = await account.ended(22)
    assert {outcome.verdict for outcome in outcomes} == {Verdict.ACCEPTED}
    ids = {part.supplier_message_id for outcome in outcomes for part in outcome.parts}
    assert len(ids) == 23
    await until(lambda: len(account.receipts) == 23)
    assert {receipt.keys[0] for receipt in account.receipts} == ids
    assert {receipt.state for receipt in account.receipts} == {ReceiptState.DELIVERED}
    await account.connector.stop(grace=2)


@pytest.mark.parametrize("way", ["sar", "payload", "udh16"])
async def test_it_takes_every_form_of_a_long_message(port: int, way: str) -> None:
    account = await PeerAccount(port, long_messages=way, vendor_tlvs={"1400": "1107"}).start()
    account.submit(segments=(b"one", b"two"))
    (outcome,) = await account.ended()
    assert outcome.verdict is Verdict.ACCEPTED, outcome
    await account.connector.stop(grace=2)


async def test_a_wrong_password(port: int) -> None:
    account = PeerAccount(port, secret="wrong")
    await account.connector.start()
    await until(lambda: "0x0000000E" in account.connector.health().last_error)
    assert account.connector.health().sessions == 0
    await account.connector.stop(grace=1)


async def test_more_sessions_than_the_account_has(port: int) -> None:
    account = await PeerAccount(port, sessions=3).start(bound=2)
    await until(lambda: any("bind refused" in link.last_error for link in account.connector._transmitters))
    account.connector.set_sessions(2)
    await account.connector.stop(grace=1)


async def test_a_transmitter_and_a_receiver(port: int) -> None:
    account = await PeerAccount(port, bind="pair").start()
    await until(lambda: all(link.bound for link in account.connector._sessions[0]))
    account.submit()
    assert (await account.ended())[0].verdict is Verdict.ACCEPTED
    await account.connector.stop(grace=1)
