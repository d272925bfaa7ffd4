"""A test message through an account not yet in use, followed through attempt, answer and receipt, with a check of its
ids: the supplier's answer against its receipt, and the setting that makes them match.

The session belongs to this process, and receives receipts. The rule nobody may break: a receipt that does not belong
to the test message is not acknowledged, so that the supplier delivers it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import msgspec

from heliograph.base.ids import uuid7
from heliograph.base.sentences import Sentence, quoted, said, sentence
from heliograph.sms.accepting import encoding
from heliograph.sms.reports.keys import is_same
from heliograph.suppliers import kinds, trial
from heliograph.suppliers.contract import Account, Inbound, Outcome, Receipt, Submission, Verdict
from heliograph.suppliers.smpp import bases
from heliograph.suppliers.smpp import connector as smpp

#: Seconds to wait for a receipt, for those of other parts after one has arrived, and for closing at the end.
WAIT, REST, GRACE = 60.0, 20.0, 1.0
#: Maximum number of receipts kept per test message.
MOST = 20


class ForeignError(Exception):
    """A message or receipt that does not belong to the test: it is not acknowledged, and will be delivered again."""


class TrialReceipt(msgspec.Struct, frozen=True):
    """A receipt, with the ids that it contains."""

    ids: tuple[str, ...]
    state: str
    error: str = ""
    fits: bool = False
    #: The number of parts, if it counts all as sent and delivered; otherwise 0.
    counted: int = 0

    @property
    def is_final(self) -> bool:
        """True if no further receipt will follow for the same part."""
        return self.state != "pending"


class Followed(msgspec.Struct, frozen=True, kw_only=True):
    """The progress of a test message."""

    #: "connecting", "sent", "answered" or "done".
    phase: str
    verdict: str = ""
    code: str = ""
    detail: Sentence = quoted("")
    ids: tuple[str, ...] = ()
    #: Number of submits that it took; 0: none was answered.
    parts: int = 0
    receipts: tuple[TrialReceipt, ...] = ()
    #: Settings with which its receipts would match its ids; empty: they do already, or no settings help.
    cure: dict[str, str] = {}
    #: Why it ended without a receipt: "unreached", "refused", "elsewhere" (receipts come by callbacks) or "silent".
    note: str = ""


Told = Callable[[Followed], Awaitable[None]]


def submission(number: str, text: str, sender: str) -> Submission:
    """The test message. `number`: E.164."""
    encoded = encoding.encode(text)
    id = uuid7()
    return Submission(
        message_id=id,
        attempt=1,
        to=number[1:],
        sender=sender.removeprefix("+") if sender[1:].isdecimal() else sender,
        text=encoded.text,
        encoding=encoded.encoding,
        reference=id.int & 0xFFFF,
    )


async def follow(
    kind: str, account: Account, message: Submission, told: Told, *, wait: float = WAIT, rest: float = REST
) -> Followed:
    """Send a test message and wait for its receipt, reporting each step to `told`. Raises SettingsError (names the
    field).

    For a message with several parts, the wait continues for `rest` seconds after each receipt. Over HTTP, receipts go
    to the address of an existing account: they are not waited for.
    """
    await told(Followed(phase="connecting"))
    if kind in kinds.HTTP:
        outcome = (await trial.attempt(kind, account, message)).outcome
        assert outcome is not None
        return answered(outcome, phase="done", note="elsewhere" if outcome.verdict is Verdict.ACCEPTED else "refused")
    return await _smpp(account, message, told, wait, rest)


async def _smpp(account: Account, message: Submission, told: Told, wait: float, rest: float) -> Followed:
    outcomes: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    heard: list[Receipt] = []
    came = asyncio.Event()

    def came_back(_: Submission, outcome: Outcome) -> None:
        if not outcomes.done():
            outcomes.set_result(outcome)

    async def receipts(received: Sequence[Receipt]) -> None:
        ours = [one for one in received if is_same(message.to, one.recipient)]
        heard.extend(ours[: MOST - len(heard)])
        came.set()
        if len(ours) < len(received):
            raise ForeignError

    async def inbound(received: Sequence[Inbound]) -> Any:
        raise ForeignError

    connector = smpp.connect(account, came_back, receipts, inbound)
    await connector.start()
    connector.set_sessions(1)
    loop = asyncio.get_running_loop()
    try:
        health = await connector.opened()
        if not health.sessions:
            return Followed(phase="done", detail=health.last_error or said("no session in time"), note="unreached")
        await told(Followed(phase="sent"))
        connector.submit(message)
        outcome = await outcomes
        if outcome.verdict is not Verdict.ACCEPTED:
            return answered(outcome, phase="done", note="refused")
        await told(answered(outcome, phase="answered"))
        end = until = loop.time() + wait
        while True:
            # Cleared before the check, so that a receipt that arrives during the report wakes this again.
            came.clear()
            found = _checked(account, outcome, heard)
            if found.receipts:
                await told(found)
            if is_whole(found):
                break
            if any(one.is_final for one in found.receipts):
                until = min(end, loop.time() + rest)
            try:
                await asyncio.wait_for(came.wait(), max(until - loop.time(), 0.0))
            except TimeoutError:
                break
        return msgspec.structs.replace(found, phase="done", note="" if heard else "silent")
    finally:
        await connector.stop(grace=GRACE)


def is_whole(found: Followed) -> bool:
    """True if every id in the answer has its receipt, or one receipt counts them all."""
    final = [one for one in found.receipts if one.is_final]
    if any(one.counted >= found.parts for one in final):
        return True
    return len({one.ids for one in final}) >= max(len(set(found.ids)), 1)


def answered(outcome: Outcome, *, phase: str, note: str = "") -> Followed:
    """The progress after an answer."""
    return Followed(
        phase=phase,
        verdict=outcome.verdict.value,
        code=outcome.code,
        detail=sentence(outcome.detail),
        ids=tuple(one.supplier_message_id for one in outcome.parts if one.supplier_message_id),
        parts=len(outcome.parts),
        note=note,
    )


def _checked(account: Account, outcome: Outcome, heard: Sequence[Receipt]) -> Followed:
    found = answered(outcome, phase="answered")
    receipts = tuple(
        TrialReceipt(
            one.keys,
            one.state.value,
            one.error,
            any(key in found.ids for key in one.keys),
            counted(one.submitted, one.delivered),
        )
        for one in heard
    )
    return checked(account, found, receipts)


def counted(submitted: int | None, delivered: int | None) -> int:
    """The number of parts, if a receipt counts all as sent and delivered; otherwise 0."""
    return submitted if submitted and submitted == delivered else 0


def checked(account: Account, found: Followed, receipts: tuple[TrialReceipt, ...]) -> Followed:
    """The answer with its receipts, and the settings that would make their ids match."""
    cure = cured(account.settings, found.ids, [one.ids for one in receipts])
    return msgspec.structs.replace(found, receipts=receipts, cure=cure)


def cured(settings: dict[str, Any], ids: Sequence[str], named: Sequence[Sequence[str]]) -> dict[str, str]:
    """The settings with the fewest changes under which a receipt names one of these ids; empty: there are none, or a
    receipt already does."""
    if any(set(keys) & set(ids) for keys in named):
        return {}
    now, *others = bases.ways(settings)
    for way in others:
        if any(set(bases.stored(keys, now, way)) & set(ids) for keys in named):
            return {name: base for name, base in way.items() if base != now[name]}
    return {}
