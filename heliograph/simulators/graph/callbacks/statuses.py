"""The statuses of a message as updates: each step of its script, with the price and the contact."""

from __future__ import annotations

import hashlib
from typing import Any

from heliograph.simulators.graph.callbacks.scripts import Script, Step
from heliograph.simulators.graph.callbacks.webhooks import Item
from heliograph.simulators.graph.objects import Message, Number, User
from heliograph.simulators.graph.operations.errors import webhook_error
from heliograph.simulators.graph.state import World

_REACHING = ("delivered", "read", "played")


def status(world: World, message: Message, script: Script, step: Step) -> Item:
    """Perform this step: update the message's state and the counters, and return its update."""
    now, options, user = world.clock.now(), world.options, message.user
    message.statuses.append(step.status)
    world.counters.statuses += 1
    if step.status in _REACHING and not message.reached:
        message.reached = True
        user.reached += 1
        world.counters.reached += 1
    made: dict[str, Any] = {"id": message.id, "status": step.status, "timestamp": str(int(now))}
    if user.wa_id:
        made["recipient_id"] = user.wa_id
    if user.user_id:
        made["recipient_user_id"] = user.user_id
    if message.tracker:
        made["biz_opaque_callback_data"] = message.tracker
    if step.status == "failed":
        made["errors"] = [webhook_error(step.code or 131000)]
    else:
        old = script.old or _version(options.webhook_version) < 24
        if old or message.free == "free_entry_point":
            made["conversation"] = _conversation(message, step, now)
        if _priced(script.pricing_on or options.pricing_on, step, message):
            made["pricing"] = _pricing(message, script.old)
    contacts = options.contacts if script.contacts is None else script.contacts
    number = world.numbers[message.number]
    return Item(
        message.account,
        "messages",
        "statuses",
        made,
        metadata(number),
        contact(user, with_name=True) if contacts else None,
    )


def metadata(number: Number) -> dict[str, str]:
    """`value.metadata` of an update about this number."""
    return {"display_phone_number": number.digits, "phone_number_id": number.id}


def contact(user: User, *, with_name: bool) -> dict[str, Any]:
    """A user in the form of `contacts`: without a phone number if the user has only a username."""
    made: dict[str, Any] = {}
    if with_name:
        made["profile"] = {"name": user.name}
        if user.username:
            made["profile"]["username"] = user.username
    if user.wa_id:
        made["wa_id"] = user.wa_id
    if user.user_id:
        made["user_id"] = user.user_id
    return made


def _priced(where: str, step: Step, message: Message) -> bool:
    if where == "none":
        return False
    if step.status == "sent":
        return where in ("sent", "both")
    # The price comes with the first of delivered, read and played, not with each.
    first = sum(one in _REACHING for one in message.statuses) == 1
    return step.status in _REACHING and first and where in ("delivered", "both")


def _pricing(message: Message, old: bool) -> dict[str, Any]:
    billable = message.free == "regular"
    category = "referral_conversion" if message.free == "free_entry_point" else message.category
    if old:
        return {"billable": billable, "pricing_model": "CBP", "category": category}
    return {"billable": billable, "pricing_model": "PMP", "type": message.free, "category": category}


def _conversation(message: Message, step: Step, now: float) -> dict[str, Any]:
    origin = "referral_conversion" if message.free == "free_entry_point" else message.category
    made: dict[str, Any] = {
        "id": hashlib.blake2b(message.id.encode(), digest_size=16).hexdigest(),
        "origin": {"type": origin},
    }
    if step.status == "sent":
        made["expiration_timestamp"] = str(int(now) + 86_400)
    return made


def _version(text: str) -> float:
    return float(text.lstrip("v"))
