"""Sends one message through an account's real connector, outside the queue, and shows its requests and answers.

Nothing is stored. The rule nobody may break: no secret is shown, so each request is built a second time for display,
with placeholders for the secrets.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote, quote_plus
from xml.sax.saxutils import escape

import msgspec

from heliograph.base.sentences import Sentence, quoted, said
from heliograph.suppliers import kinds
from heliograph.suppliers.contract import Account, Connector, Outcome, Receipt, Submission
from heliograph.suppliers.http import connector as http
from heliograph.suppliers.http.kind import Answer, HttpKind, Message, Request, Secrets, secrets_of
from heliograph.suppliers.smpp import connector as smpp
from heliograph.suppliers.smpp.codec.pdu import PduError, SubmitSm
from heliograph.suppliers.smpp.settings import settings_from
from heliograph.suppliers.smpp.submits import Builder

#: Placeholder for a secret.
HIDDEN = "(hidden)"
#: Maximum characters of an answer that are shown.
SHOWN = 4000
#: Seconds for closing at the end.
_GRACE = 1.0


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a trial."""

    #: HTTP requests or PDUs that were written, or would have been.
    requests: list[dict[str, Any]]
    #: The answers to them; for SMPP also the answer to the bind.
    answers: list[dict[str, Any]]
    #: None: nothing was to be sent, or no session opened.
    outcome: Outcome | None = None
    #: Why no session opened; empty: one did, or none is needed.
    error: Sentence = quoted("")


async def attempt(kind: str, account: Account, submission: Submission, *, is_sent: bool = True) -> Trial:
    """Send a message on an account of a kind, or (`is_sent` False) only show it and, over SMPP, bind.

    Takes at most the account's own time limits. An SMPP session is bound as a transmitter, so it receives no receipts.
    Raises SettingsError (names the field).
    """
    if kind == kinds.SMPP:
        return await _smpp(account, submission, is_sent)
    return await _http(kinds.HTTP[kind], account, submission, is_sent)


class _NotSentError(ValueError):
    """The request was only to be shown."""


async def _http(kind: HttpKind, account: Account, submission: Submission, is_sent: bool) -> Trial:
    requests: list[dict[str, Any]] = []
    answers: list[dict[str, Any]] = []
    secrets = secrets_of(account.secret)
    hidden = {*secrets.values(), account.callback.rpartition("/")[2]}

    def request(settings: Any, secrets: Secrets, message: Message) -> Request:
        made = kind.request(settings, secrets, message)
        callback = message.callback.replace(account.callback, _shown_callback(account.callback))
        shown = msgspec.structs.replace(message, callback=callback)
        plain = kind.request(settings, dict.fromkeys(secrets, HIDDEN), shown)
        requests.append(_shown_request(plain))
        # Values that contain a secret, such as a user name and password in base64.
        hidden.update(value for name, value in made.headers.items() if plain.headers.get(name) != value)
        if not is_sent:
            raise _NotSentError
        return made

    def answer(settings: Any, message: Message, answer: Answer) -> Outcome:
        body = _without(answer.body.decode("utf-8", "replace"), hidden)
        found: dict[str, Any] = {"status": answer.status, "body": body[:SHOWN]}
        if answer.retry_after is not None:
            found["retry_after"] = answer.retry_after
        answers.append(found)
        return kind.answer(settings, message, answer)

    outcomes: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    watched = msgspec.structs.replace(kind, request=request, answer=answer)
    connector = http.connect(watched, account, _first(outcomes))
    outcome = await _submitted(connector, submission, outcomes)
    return Trial(requests=requests, answers=answers, outcome=outcome if is_sent or not requests else None)


async def _smpp(account: Account, submission: Submission, is_sent: bool) -> Trial:
    settings = settings_from(account.settings)
    outcomes: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
    connector = smpp.connect(account, _first(outcomes), _nobody, _nobody, transmits_only=True)
    try:
        requests = [_shown_pdu(one) for one in Builder(settings).build(submission)]
    except PduError:
        requests = []  # and the outcome says why
    await connector.start()
    connector.set_sessions(1)
    health = await connector.opened()
    if not health.sessions:
        await connector.stop(grace=0.0)
        error = health.last_error or said("no session in time")
        return Trial(requests=requests, answers=[{"bind": error}], error=error)
    answers: list[dict[str, Any]] = [{"bind": "accepted"}]
    if not is_sent:
        await connector.stop(grace=_GRACE)
        return Trial(requests=requests, answers=answers)
    connector.submit(submission)
    outcome = await outcomes
    await connector.stop(grace=_GRACE)
    answers += [{"segment": one.number, "status": one.status, "id": one.supplier_message_id} for one in outcome.parts]
    return Trial(requests=requests, answers=answers, outcome=outcome)


async def _submitted(connector: Connector, submission: Submission, outcomes: asyncio.Future[Outcome]) -> Outcome:
    await connector.start()
    connector.set_sessions(1)
    connector.submit(submission)
    outcome = await outcomes
    await connector.stop(grace=_GRACE)
    return outcome


def _first(outcomes: asyncio.Future[Outcome]) -> Any:
    """Takes the first outcome; an answer after the timeout is ignored here."""

    def heard(_: Submission, outcome: Outcome) -> None:
        if not outcomes.done():
            outcomes.set_result(outcome)

    return heard


async def _nobody(_: Sequence[Receipt] | Sequence[Any]) -> None:
    """A transmitter gets no receipts; if one arrives anyway, it is not acknowledged, so the supplier sends it again."""
    raise RuntimeError("a trial takes no receipts")


def _shown_request(request: Request) -> dict[str, Any]:
    return {
        "method": request.method,
        "url": request.url,
        "headers": dict(request.headers),
        "body": request.body.decode("utf-8", "replace"),
    }


def _shown_callback(callback: str) -> str:
    """The callback without its last part, which is a secret."""
    return f"{callback.rpartition('/')[0]}/{HIDDEN}"


def _without(text: str, hidden: Collection[str]) -> str:
    """An answer's text with secrets masked, whether verbatim or escaped."""
    words = {one for value in hidden for one in (value, value.rpartition(" ")[2])}
    for word in sorted({as_written(word) for word in words for as_written in _WRITTEN} - {""}, key=len, reverse=True):
        text = text.replace(word, HIDDEN)
    return text


def _in_json(text: str) -> str:
    return msgspec.json.encode(text).decode()[1:-1]


#: The forms in which an answer may contain a value.
_WRITTEN = (str, quote_plus, partial(quote, safe=""), _in_json, escape)


def _shown_pdu(pdu: SubmitSm) -> dict[str, Any]:
    fields = {name: getattr(pdu, name) for name in pdu.__struct_fields__ if name not in ("sequence", "status", "tlvs")}
    fields = {name: value.hex() if isinstance(value, bytes) else value for name, value in fields.items()}
    tlvs = {f"{tag:#06x}": value.hex() for tag, value in pdu.tlvs.items()}
    return {"pdu": "submit_sm", **fields, "tlvs": tlvs}
