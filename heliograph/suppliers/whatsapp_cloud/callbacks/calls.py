"""Calls between users and a number (field `calls`): only that a user called, and when. Pure.

A call may be reported twice, when it begins and when it ends; both name the time at which it began, except the end of
an unanswered call. Calls that the business makes, and their statuses, are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

import msgspec

from heliograph.suppliers.whatsapp_cloud.callbacks.content import capitals, part, text_id, words
from heliograph.suppliers.whatsapp_cloud.callbacks.items import CallItem, PoisonItem
from heliograph.suppliers.whatsapp_cloud.callbacks.management import digits_of, id_of, time_of, time_or_none

#: The field with the time at which a call began, by event.
_BEGAN = {"connect": "timestamp", "terminate": "start_time"}


def calls_of(waba_id: str, at: datetime | None, value: Mapping[str, Any]) -> Iterator[CallItem | PoisonItem]:
    """The calls of users in one change. `at`: of its entry, for a call without a readable time."""
    metadata = part(value, "metadata")
    number = id_of(metadata.get("phone_number_id")), digits_of(metadata.get("display_phone_number"))
    calls = value.get("calls")
    for call in calls if isinstance(calls, list) else ():
        try:
            item = _call(waba_id, number, at, call)
        except ValueError as error:
            yield PoisonItem(reason=f"call: {error}", raw=msgspec.json.encode(call), waba_id=waba_id)
        else:
            if item is not None:
                yield item


def _call(waba_id: str, number: tuple[str | None, str | None], at: datetime | None, call: object) -> CallItem | None:
    number_id, number_digits = number
    if not isinstance(call, Mapping):
        raise ValueError("not an object")
    if capitals(call.get("direction")) == "BUSINESS_INITIATED":
        return None
    began = _BEGAN.get(words(call.get("event")) or "")
    if began is None or (began != "timestamp" and call.get(began) is None):
        return None
    sender = digits_of(call.get("from"))
    user_id = text_id(call.get("from_user_id")) or (None if sender else text_id(call.get("from")))
    if number_id is None or (sender is None and user_id is None):
        raise ValueError("no number" if number_id is None else "no caller")
    when = time_or_none(call.get(began)) or at
    return CallItem(
        waba_id=waba_id,
        phone_number_id=number_id,
        number_digits=number_digits,
        sender=sender,
        user_id=user_id,
        at=when if when is not None else time_of(call.get(began)),
    )
