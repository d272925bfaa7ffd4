"""The text of WhatsApp messages as the user sees or wrote it: filled templates, and text for other types."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

import msgspec

from heliograph.base.actor import Actor
from heliograph.base.database.pool import Connection
from heliograph.suppliers.whatsapp_cloud.bodies import TemplateLayout, layout
from heliograph.suppliers.whatsapp_cloud.tolerant_json import UNREADABLE, decoded
from heliograph.whatsapp import library
from heliograph.whatsapp.messages import Message

#: Keys of a content that may contain text; the first one present is used.
_SAYING = ("body", "title", "text", "caption", "emoji", "name", "filename")
#: Echoed along with the answers in a form: its sender chose it, not the user.
_ECHO = "flow_token"
#: Parts of a template, as named by `library.slots`, whose values are not in its text.
_OUTSIDE = frozenset({"header", "button"})

# Another account may have a different template of this name.
LAYOUTS = """
SELECT item.number_id, t.name, t.language, t.category, t.components::text, t.parameter_format, t.edited_at
  FROM unnest($2::uuid[], $3::text[], $4::text[]) AS item (number_id, name, language)
  JOIN whatsapp_numbers n ON n.organization_id = $1 AND n.id = item.number_id
  JOIN whatsapp_templates t ON t.organization_id = $1 AND t.account_id = n.account_id
                           AND t.name = item.name AND t.language = item.language
"""
#: A template as a message names it: the number that it is sent from, name and language.
Named = tuple[UUID, str | None, str | None]


class Rendered(msgspec.Struct, frozen=True):
    """The text of a message."""

    #: A template is filled as it is now; "" if there is no text.
    text: str
    #: Its template was edited after it was sent, so the user may have read something else.
    is_outdated: bool = False
    #: Values of its template that are not in the text: (header or button, value).
    outside: list[tuple[str, str]] = []


async def rendered(conn: Connection, actor: Actor, *, messages: Sequence[Message]) -> dict[UUID, Rendered]:
    """The text of each message."""
    layouts = await _layouts(conn, actor, messages)
    return {
        one.id: _rendered(one, *layouts.get((one.number_id, one.template_name, one.template_language), (None, None)))
        for one in messages
    }


def _rendered(message: Message, known: TemplateLayout | None, edited_at: datetime | None) -> Rendered:
    values = _values((message.content or {}).get("parameters"))
    outside = [] if known is None or not _fits(known, values) else list(zip(library.slots(known), values, strict=True))
    # Meta may leave out the statuses before the last one. A message that was never sent was not read with another text.
    sent_at = message.sent_at or message.delivered_at or message.read_at
    return Rendered(
        _text(message, known),
        edited_at is not None and sent_at is not None and edited_at > sent_at,
        [(kind, value) for (kind, _), value in outside if kind in _OUTSIDE],
    )


async def _layouts(
    conn: Connection, actor: Actor, messages: Sequence[Message]
) -> dict[Named, tuple[TemplateLayout, datetime | None]]:
    """The layouts of the messages' templates, and when each was last edited."""
    wanted = {
        (one.number_id, one.template_name, one.template_language)
        for one in messages
        if one.type == "template" and one.template_name and one.content is not None
    }
    layouts: dict[Named, tuple[TemplateLayout, datetime | None]] = {}
    if wanted:
        numbers, names, languages = zip(*wanted, strict=True)
        for row in await conn.fetch(LAYOUTS, actor.organization_id, list(numbers), list(names), list(languages)):
            components = msgspec.json.decode(row["components"])
            known = layout(components, row["parameter_format"], row["category"])
            layouts[row["number_id"], row["name"], row["language"]] = known, row["edited_at"]
    return layouts


def _text(message: Message, known: TemplateLayout | None) -> str:
    content = message.content
    if content is None:
        return ""
    if message.type == "template":
        return filled(known, content.get("parameters"))
    return plain_text(content)


def filled(known: TemplateLayout | None, parameters: Any) -> str:
    """A template's body with its values; only the values if the template has changed."""
    values = _values(parameters)
    return known.text(values) if known is not None and _fits(known, values) else ", ".join(values)


def _values(parameters: Any) -> list[str]:
    return [str(one) for one in parameters] if isinstance(parameters, list | tuple) else []


def _fits(known: TemplateLayout, values: Sequence[str]) -> bool:
    return not known.unsupported and len(values) == known.parameter_count


def content_type(message: Message, text: str) -> str:
    """What a message with this text is. A reaction that its user took back, which has no emoji, is "reaction_removed",
    and a text without a character "blank"."""
    if message.content is None:
        return message.type
    if message.type == "reaction" and not message.content.get("emoji"):
        return "reaction_removed"
    return "blank" if message.type == "text" and not text.strip() else message.type


def plain_text(content: dict[str, Any]) -> str:
    """The text of a user's message, and its other contents, one line each: address and coordinates of a place, contact
    cards, items of an order, answers in a form. "" if there is none."""
    lines = [next((str(content[name]) for name in _SAYING if content.get(name)), "")]
    lines.append(str(content.get("address") or ""))
    if "latitude" in content and "longitude" in content:
        lines.append(f"{content['latitude']}, {content['longitude']}")
    lines += [_card(one) for one in content.get("contacts") or ()]
    lines += [_item(one) for one in content.get("items") or ()]
    lines += _answers(content.get("response"))
    return "\n".join(line for line in lines if line)


def _card(card: dict[str, Any]) -> str:
    return ": ".join(filter(None, (str(card.get("name") or ""), ", ".join(card.get("phones") or ()))))


def _item(item: dict[str, Any]) -> str:
    price = " ".join(str(item[name]) for name in ("price", "currency") if name in item)
    return f"{item.get('quantity', 1)} × {item.get('productId', '?')}" + (f" ({price})" if price else "")


def _answers(response: Any) -> list[str]:
    """The answers in a form, by the names of its fields; `response`: JSON, as the form's author shaped it."""
    try:
        # JSON within JSON: the callback's parser took its escapes for text.
        answers = decoded(response.encode(), msgspec.json.decode) if isinstance(response, str) else None
    except UNREADABLE:
        return []
    if not isinstance(answers, dict):
        return []
    found = {name: _answer(value) for name, value in answers.items() if name != _ECHO}
    return [f"{name}: {text}" for name, text in found.items() if text]


def _answer(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(_plain(one) for one in value)
    return _plain(value)


def _plain(value: Any) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    return msgspec.json.encode(value).decode()
