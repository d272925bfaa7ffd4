"""The content of a user's message as shown to the customer: without Meta's ids and file addresses.

The shapes, by type (fields that Meta does not send are absent):

    text, edit          {"body"}
    button              {"text", "payload"}
    interactive         {"kind": "button_reply" | "list_reply", "id", "title", "description"}
                        {"kind": "nfm_reply", "name", "body", "response"}
    image … sticker     {"mimeType", "caption", "filename", "voice", "animated"}
    location            {"latitude", "longitude", "name", "address", "url"}
    contacts            {"contacts": [{"name", "phones": [...]}]}
    order               {"text", "items": [{"productId", "quantity", "price", "currency"}]}
    reaction            {"emoji"}: null if it was removed
    system              {"kind", "body"}
    others              {}

In addition, for messages of any type:

    context             {"forwarded"}, and Meta's id of the message it answers, which `quoted` extracts
    referral            {"sourceType", "headline", "body", "mediaType"} of an advertisement or post
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

#: Maximum characters kept of an id. Those of Meta have less than 200; the database can index no more than 2,700 bytes,
#: and an answer that it cannot store is lost: the message would be sent again.
ID_LENGTH = 255
#: Maximum contacts or order items per message, and phones per contact.
_MANY = 50


def content_of(type: str, message: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """(text, content) of a message of `type`. Anything with an unexpected shape is left out."""
    read = _READERS.get(type)
    if read is None:
        return None, {}
    inner = message.get(type)
    if type == "contacts":
        inner = {"contacts": inner}
    return read(inner) if isinstance(inner, Mapping) else (None, {})


def quoted(message: Mapping[str, Any]) -> str | None:
    """Meta's id of the message that this one answers, reacts to, edits or deletes."""
    found = text_id(part(message, "context").get("id")) or text_id(part(message, "reaction").get("message_id"))
    for name in ("edit", "revoke"):
        found = found or text_id(part(message, name).get("original_message_id"))
    return found


def is_forwarded(message: Mapping[str, Any]) -> bool:
    """Whether the user forwarded it from somebody else."""
    context = part(message, "context")
    return context.get("forwarded") is True or context.get("frequently_forwarded") is True


def referral_of(message: Mapping[str, Any]) -> dict[str, Any] | None:
    """The advertisement or post that brought the user here; None if there was none."""
    if message.get("referral") is None:
        return None
    names = {"sourceType": "source_type", "headline": "headline", "body": "body", "mediaType": "media_type"}
    return _picked(part(message, "referral"), **names)


def capitals(value: object) -> str | None:
    """One of Meta's names for states and kinds (an open set), in capitals."""
    return value.upper() if isinstance(value, str) and value else None


def words(value: object) -> str | None:
    """A text unchanged; None for anything else."""
    return value if isinstance(value, str) else None


def text_id(value: object) -> str | None:
    """An id that is a text, shortened alike wherever Meta writes it; None for anything else, or if it is empty."""
    return (value[:ID_LENGTH] or None) if isinstance(value, str) else None


def part(value: object, name: str) -> Mapping[str, Any]:
    """The object called `name` within `value`; empty if there is none."""
    inner = value.get(name) if isinstance(value, dict) else None
    return inner if isinstance(inner, dict) else {}


def _picked(source: Mapping[str, Any], **names: str) -> dict[str, Any]:
    """Plain values of `source`; `names`: our name = theirs."""
    found = {ours: source.get(theirs) for ours, theirs in names.items()}
    return {ours: value for ours, value in found.items() if isinstance(value, str | int | float)}


def _text(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    return words(inner.get("body")), _picked(inner, body="body")


def _button(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    return words(inner.get("text")), _picked(inner, text="text", payload="payload")


def _interactive(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    kind = words(inner.get("type")) or ""
    reply = part(inner, kind)
    if kind == "nfm_reply":
        return words(reply.get("body")), {
            "kind": kind,
            **_picked(reply, name="name", body="body", response="response_json"),
        }
    if kind in ("button_reply", "list_reply"):
        found = _picked(reply, id="id", title="title", description="description")
        return words(reply.get("title")), {"kind": kind, **found}
    return None, {}


def _media(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    found = _picked(
        inner, mimeType="mime_type", caption="caption", filename="filename", voice="voice", animated="animated"
    )
    return words(inner.get("caption")), found


def _location(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    found = _picked(inner, latitude="latitude", longitude="longitude", name="name", address="address", url="url")
    return None, found


def _contacts(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    people = []
    for card in _list(inner.get("contacts")):
        phones = [words(phone.get("phone")) for phone in _list(card.get("phones"))]
        people.append(
            {**_picked(part(card, "name"), name="formatted_name"), "phones": [phone for phone in phones if phone]}
        )
    return None, {"contacts": people}


def _order(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    items = [
        _picked(one, productId="product_retailer_id", quantity="quantity", price="item_price", currency="currency")
        for one in _list(inner.get("product_items"))
    ]
    return words(inner.get("text")), {**_picked(inner, text="text"), "items": items}


def _reaction(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    return None, {"emoji": words(inner.get("emoji")) or None}


def _system(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    return None, _picked(inner, kind="type", body="body")


def _edit(inner: Mapping[str, Any]) -> tuple[str | None, dict[str, Any]]:
    """The new text, or the new caption of a file."""
    message = part(inner, "message")
    changed = part(message, words(message.get("type")) or "text")
    text = words(changed.get("body")) or words(changed.get("caption"))
    return text, {} if text is None else {"body": text}


def _list(value: object) -> list[Mapping[str, Any]]:
    return [one for one in value if isinstance(one, Mapping)][:_MANY] if isinstance(value, list) else []


_READERS: dict[str, Callable[[Mapping[str, Any]], tuple[str | None, dict[str, Any]]]] = {
    "text": _text,
    "button": _button,
    "interactive": _interactive,
    "image": _media,
    "video": _media,
    "audio": _media,
    "document": _media,
    "sticker": _media,
    "location": _location,
    "contacts": _contacts,
    "order": _order,
    "reaction": _reaction,
    "system": _system,
    "edit": _edit,
}
