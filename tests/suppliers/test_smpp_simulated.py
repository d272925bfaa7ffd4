"""The connector with the simulated SMSC: nothing is lost or duplicated, whatever the SMSC does."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import structs
from smpp_peer import PeerAccount, until
from smpp_peer import submission as made

from heliograph.simulators.smsc.options import SmscOptions
from heliograph.simulators.smsc.simulator import Smsc
from heliograph.suppliers.contract import Verdict


async def run(options: dict[str, Any], count: int, *, sessions: int = 1, **settings: Any) -> tuple[PeerAccount, Smsc]:
    """Submit this many messages to an SMSC with these options, as capacity allows, and wait for their outcomes."""
    smsc = Smsc(SmscOptions(**({"port": 0, "systems": {"esme": "secret"}, "magic": "", "seed": 1} | options)))
    await smsc.start()
    account = await PeerAccount(smsc.port, sessions=sessions, **settings).start(bound=sessions)
    left = count
    while left:
        await until(account.connector.capacity)
        burst = min(left, account.connector.capacity())
        for _ in range(burst):
            account.submit(to=f"25884{left:07d}")
            left -= 1
    await account.ended(count)
    return account, smsc


async def finish(account: PeerAccount, smsc: Smsc) -> None:
    await account.connector.stop(grace=1)
    await smsc.stop()


def ids(account: PeerAccount) -> list[str | None]:
    return [part.supplier_message_id for _, outcome in account.outcomes for part in outcome.parts]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ({}, {}),
        ({"early": 0.5, "duplicates": 0.2}, {}),
        ({"resp_base": "hex", "dlr_base": "dec"}, {"resp_id_base": "hex", "dlr_id_base": "dec"}),
        ({"resp_padding": 12, "dlr_upper": True, "resp_base": "hex", "dlr_base": "hex"}, {}),
        ({"form": "tlv", "by": "data_sm"}, {}),
        ({"form": "text", "other_bind": True}, {"sessions": 2}),
        ({"interim": 0.5}, {"window": 50}),
    ],
    ids=str,
)
async def test_every_receipt_names_a_message(options: dict[str, Any], settings: dict[str, Any]) -> None:
    account, smsc = await run(options, 200, **settings)
    assert {outcome.verdict for _, outcome in account.outcomes} == {Verdict.ACCEPTED}
    known = set(ids(account))
    assert len(known) == 200
    await until(lambda: {key for receipt in account.receipts for key in receipt.keys} >= known)
    assert {receipt.keys[0] for receipt in account.receipts} == known
    await finish(account, smsc)
    assert smsc.counters.receipts_acked == len(account.receipts)


async def test_connections_that_drop_lose_nothing_and_double_nothing() -> None:
    options = {"drop_after": 25, "count_destinations": True}
    account, smsc = await run(options, 400, reconnect_seconds=0.01, sessions=2)
    assert len({submission.message_id for submission, _ in account.outcomes}) == len(account.outcomes) == 400
    read = smsc.destinations
    for submission, outcome in account.outcomes:
        # What the SMSC read is accepted or unknown here; what is unreachable was not read.
        if outcome.verdict is Verdict.ACCEPTED:
            assert read[submission.to] == 1
        elif outcome.verdict is Verdict.UNREACHABLE:
            assert submission.to not in read
        else:
            assert outcome.verdict is Verdict.UNKNOWN
            assert read.get(submission.to, 0) <= 1
    assert {outcome.verdict for _, outcome in account.outcomes} >= {Verdict.ACCEPTED, Verdict.UNKNOWN}
    await finish(account, smsc)


async def test_throttled_messages_cost_no_try() -> None:
    account, smsc = await run({"throughput": 50.0}, 100, window=100)
    busy = [outcome for _, outcome in account.outcomes if outcome.verdict is Verdict.BUSY]
    assert busy
    assert {(outcome.code, outcome.counts) for outcome in busy} == {("0x00000058", False)}
    assert len(busy) == smsc.counters.throttled
    await finish(account, smsc)


async def test_an_smsc_that_throttles_bills_each_segment_once() -> None:
    options = {"port": 0, "systems": {"esme": "secret"}, "magic": "", "throughput": 20.0}
    smsc = Smsc(SmscOptions(**options))
    await smsc.start()
    account = await PeerAccount(smsc.port, window=50).start()
    waiting = [made(to=f"25884{n:07d}", segments=tuple(b"part %d" % part for part in range(5))) for n in range(8)]
    held: dict[str, set[int]] = {one.to: set() for one in waiting}
    rounds = 0
    while waiting:
        account.outcomes.clear()
        for one in waiting:
            account.connector.submit(structs.replace(one, held=tuple(sorted(held[one.to]))))
        await account.ended(len(waiting))
        for one, outcome in account.outcomes:
            assert outcome.verdict in (Verdict.ACCEPTED, Verdict.BUSY)
            assert outcome.total == 5
            held[one.to] |= {part.number for part in outcome.parts}
        waiting = [one for one, outcome in account.outcomes if outcome.verdict is Verdict.BUSY]
        rounds += 1
    assert set(map(len, held.values())) == {5}
    assert smsc.counters.accepted == 40
    assert rounds > 1
    assert smsc.counters.throttled > 0
    await finish(account, smsc)


async def test_swallowed_messages_are_unknown() -> None:
    account, smsc = await run({"swallow": 0.2}, 50, window=50, response_seconds=0.3, max_timeouts=1000)
    verdicts = [outcome.verdict for _, outcome in account.outcomes]
    assert verdicts.count(Verdict.UNKNOWN) == smsc.counters.swallowed > 0
    assert verdicts.count(Verdict.ACCEPTED) == 50 - smsc.counters.swallowed
    await finish(account, smsc)


async def test_a_receipt_that_could_not_be_stored_comes_again() -> None:
    account, smsc = await run({"receipt_delay": 0.1, "redeliver_after": 0.1}, 10)
    account.broken = OSError("the database is gone")
    await until(lambda: smsc.counters.receipts_sent >= 10)
    assert not account.receipts
    account.broken = None
    await until(lambda: {receipt.keys[0] for receipt in account.receipts} == set(ids(account)))
    await finish(account, smsc)
