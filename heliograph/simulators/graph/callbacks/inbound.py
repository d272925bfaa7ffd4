"""What users send to a number, as updates: every type in the Cloud API reference.

The rule nobody may break: what opens a service window at Meta opens it here, by the time of the event, and nothing
else does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec

from heliograph.simulators.graph.callbacks.statuses import contact, metadata
from heliograph.simulators.graph.callbacks.webhooks import Item
from heliograph.simulators.graph.objects import Number, User
from heliograph.simulators.graph.operations.errors import webhook_error
from heliograph.simulators.graph.state import World, only_digits

_SILENT = ("system", "edit", "revoke", "reaction", "unsupported")
_MIME = {
    "image": "image/jpeg",
    "video": "video/mp4",
    "audio": "audio/ogg; codecs=opus",
    "document": "application/pdf",
    "sticker": "image/webp",
}


class Inbound(msgspec.Struct, kw_only=True):
    """A message from a user."""

    #: The user's digits, with or without +; may be empty if `user_id` is given.
    sender: str = ""
    #: text, button, button_reply, list_reply, flow_reply, image, video, audio, document, sticker, location, contacts,
    #: order, reaction, unreaction, number_change, identity_change, edit, revoke or unsupported.
    kind: str = "text"
    text: str = "Hello"
    #: Graph id or digits of the number it is sent to; empty means the first.
    number: str = ""
    name: str = ""
    #: A business-scoped id without a phone number: such a user has only a username.
    user_id: str = ""
    username: str = ""
    #: wamid of the message being quoted, answered, reacted to, edited or revoked.
    quotes: str = ""
    #: Id of a button or list row, or payload of a template's button.
    reply_id: str = "yes"
    forwarded: bool = False
    #: Came through an advertisement: opens the free entry point.
    referral: bool = False
    group: str = ""
    #: Age of the event, seconds: 86400 is yesterday, -86400 tomorrow.
    ago: float = 0.0
    #: The id to use, to send a message twice; empty means a new one.
    id: str = ""
    #: The new number, for `number_change`.
    new_number: str = ""


def receive(world: World, given: Inbound) -> tuple[str, Item]:
    """Send this from the user now; returns its wamid and update. Raises KeyError or ValueError."""
    number = world.number_of(given.number)
    user = _user(world, given)
    at = world.clock.now() - given.ago
    wamid = given.id or world.wamid(user.key, inbound=True)
    kind, content = _content(given, number, user)
    made: dict[str, Any] = {}
    if user.wa_id:
        made["from"] = user.wa_id
    if user.user_id:
        made["from_user_id"] = user.user_id
    made |= {"id": wamid, "timestamp": str(int(at)), "type": kind, **content}
    if kind in _MIME:
        world.media.append(content[kind]["id"])
    context: dict[str, Any] = {}
    if given.quotes and kind not in ("reaction", "edit", "revoke"):
        context = {"from": number.digits, "id": given.quotes}
    if given.forwarded:
        context["forwarded"] = True
    if context:
        made["context"] = context
    if given.referral:
        made["referral"] = _referral(given)
        world.entry_points[number.id, user.key] = -at
    if given.group:
        made["group_id"] = given.group
    if kind not in _SILENT and not given.group:
        world.open_window(number.id, user, at)
    world.counters.inbound += 1
    world.take_throughput(number)  # in and out share one limit; inbound messages are never refused
    # A number change comes without `contacts`.
    who = None if given.kind == "number_change" else contact(user, with_name=True)
    return wamid, Item(number.account, "messages", "messages", made, metadata(number), who)


def alarm(world: World, number: str, code: int) -> Item:
    """An update of `value.errors`: a problem with the app or account, not with a message."""
    found = world.number_of(number)
    return Item(found.account, "messages", "errors", webhook_error(code), metadata(found))


def _user(world: World, given: Inbound) -> User:
    digits = only_digits(given.sender)
    if digits:
        user = world.user(digits)
    elif given.user_id:
        user = world.users.setdefault(given.user_id, User(wa_id="", user_id=given.user_id))
    else:
        raise ValueError("a message needs a sender or a user_id")
    if given.name:
        user.name = given.name
    if given.username:
        user.username = given.username
    return user


def _content(given: Inbound, number: Number, user: User) -> tuple[str, dict[str, Any]]:
    kind, text = given.kind, given.text
    if kind in _MIME:
        digest = hashlib.sha256(text.encode()).hexdigest()
        media: dict[str, Any] = {"id": str(int(digest[:12], 16)), "mime_type": _MIME[kind], "sha256": digest}
        if kind == "document":
            media["filename"] = "document.pdf"
        if kind == "audio":
            media["voice"] = True
        elif kind == "sticker":
            media["animated"] = False
        elif text:
            media["caption"] = text
        return kind, {kind: media}
    if kind not in _KINDS:
        raise ValueError(f"users do not send {kind!r}")
    return _KINDS[kind](given, number, user)


_KINDS: dict[str, Callable[[Inbound, Number, User], tuple[str, dict[str, Any]]]] = {
    "text": lambda given, *_: ("text", {"text": {"body": given.text}}),
    "button": lambda given, *_: ("button", {"button": {"payload": given.reply_id, "text": given.text}}),
    "button_reply": lambda given, *_: (
        "interactive",
        {"interactive": {"type": "button_reply", "button_reply": {"id": given.reply_id, "title": given.text}}},
    ),
    "list_reply": lambda given, *_: (
        "interactive",
        {
            "interactive": {
                "type": "list_reply",
                "list_reply": {"id": given.reply_id, "title": given.text, "description": "A row"},
            }
        },
    ),
    "flow_reply": lambda given, *_: (
        "interactive",
        {
            "interactive": {
                "type": "nfm_reply",
                "nfm_reply": {"name": "flow", "body": "Sent", "response_json": '{"flow_token":"t","answer":"yes"}'},
            }
        },
    ),
    "location": lambda given, *_: (
        "location",
        {"location": {"latitude": 33.589886, "longitude": -7.603869, "name": given.text, "address": "1/2 Rue du Port"}},
    ),
    "contacts": lambda given, *_: (
        "contacts",
        {
            "contacts": [
                {
                    "name": {"formatted_name": given.text, "first_name": given.text},
                    "phones": [{"phone": "+15550009999", "wa_id": "15550009999", "type": "CELL"}],
                }
            ]
        },
    ),
    "order": lambda given, *_: (
        "order",
        {
            "order": {
                "catalog_id": "194836987003835",
                "text": given.text,
                "product_items": [
                    {"product_retailer_id": "p-1", "quantity": 2, "item_price": 7.5, "currency": "EUR"},
                ],
            }
        },
    ),
    "reaction": lambda given, *_: (
        "reaction",
        {"reaction": {"message_id": given.quotes, "emoji": given.text if given.text != "Hello" else "👍"}},
    ),
    "unreaction": lambda given, *_: ("reaction", {"reaction": {"message_id": given.quotes}}),
    "edit": lambda given, *_: (
        "edit",
        {
            "edit": {
                "original_message_id": given.quotes,
                "message": {"type": "text", "text": {"body": given.text}},
            }
        },
    ),
    "revoke": lambda given, *_: ("revoke", {"revoke": {"original_message_id": given.quotes}}),
    "unsupported": lambda given, *_: ("unsupported", {"errors": [webhook_error(131051)]}),
    "number_change": lambda given, number, user: (
        "system",
        {
            "system": {
                "type": "user_changed_number",
                "body": f"{user.name} changed from {user.wa_id} to {only_digits(given.new_number)}",
                "wa_id": only_digits(given.new_number),
            }
        },
    ),
    "identity_change": lambda given, number, user: (
        "system",
        {
            "system": {
                "type": "customer_identity_changed",
                "body": f"{user.name} has a new code",
                "customer": user.wa_id,
            },
            "identity": {"acknowledged": True, "created_timestamp": "1795162401", "hash": "pGcQ3AnS5Gc="},
        },
    ),
}


def _referral(given: Inbound) -> dict[str, Any]:
    return {
        "source_url": "https://fb.me/3cr4Wqqkv",
        "source_type": "ad",
        "source_id": "120226305854810726",
        "headline": "Chat with us",
        "body": given.text,
        "media_type": "image",
        "image_url": "https://scontent.example/ad.jpg",
        "ctwa_clid": "Aff-n8ZTODiE79d22KtAwQKj9e",
    }
