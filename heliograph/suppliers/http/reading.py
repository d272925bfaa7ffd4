"""Reads callbacks by the places of their fields: a supplier's module names the places, and this reads them. Pure.

An item is a mapping: a form's fields, or one entry of a JSON list. Items that do not identify a message are skipped,
and so are messages without a sender.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from heliograph.suppliers.contract import ASKED, NO_WORD, Inbound, Receipt, ReceiptState
from heliograph.suppliers.http.kind import Callback, listed, text_of, value_at

#: A field of an item, or the steps to one inside it.
Place = str | tuple[str | int, ...]
#: An item, and its bytes as evidence.
Item = tuple[Any, bytes]
#: The meaning of a state's word; or, if more than a word decides, a function of the item, None if unknown.
States = Mapping[str, ReceiptState] | Callable[[Any], ReceiptState | None]

#: Maximum characters of a failure's reason, and of an unknown word.
_ERROR, _WORD = 64, 40
#: States without a failure, whatever the field for its reason contains.
_NO_FAILURE = frozenset((ReceiptState.DELIVERED, ReceiptState.PENDING))
#: Type of number of a number with a calling code.
INTERNATIONAL = 1
#: As in +1 (415) 555-0123.
_SEPARATORS = str.maketrans("", "", " \xa0.()-")


class ReceiptPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a receipt has each field; empty: nowhere."""

    #: Candidates for the supplier's id of the message, most trusted first.
    keys: tuple[Place, ...]
    #: Its state or the state's code.
    state: Place
    #: What operators are shown for an unknown state; empty: the state itself.
    word: Place = ""
    recipient: Place = ""
    sender: Place = ""
    error: Place = ""
    #: MCC and MNC of the recipient's network.
    network: Place = ""


class MessagePlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a handset's message has each field."""

    sender: Place
    recipient: Place
    text: Place
    #: The supplier's id for it.
    key: Place
    #: Reference, total and number of a part, if the supplier delivers long texts in parts.
    part: tuple[Place, Place, Place] | None = None
    #: Its numbers have a calling code, with or without a plus.
    international: bool = False
    #: What the supplier took it for, in a word that is one of ASKED whatever its case.
    asked: Place = ""


#: The items of a callback.
Items = Callable[[Callback], list[Item]]


def form_body(callback: Callback) -> list[Item]:
    """One item: the body as a form."""
    return [(callback.form, callback.body)]


def any_fields(callback: Callback) -> list[Item]:
    """One item: the fields of query and body, whatever the body's format."""
    return [(callback.fields, callback.body or callback.url.encode())]


def json_list(*path: str) -> Items:
    """The items of a list in a JSON body."""
    return lambda callback: [(one, msgspec.json.encode(one)) for one in listed(callback.json, *path)]


def receipts_from(items: Items, places: ReceiptPlaces, states: States) -> Callable[[Any, Callback], list[Receipt]]:
    """Reads the receipts of a callback. Unknown states are counted, and shown to operators."""

    def one(item: Any, raw: bytes) -> Receipt | None:
        keys = tuple(key for key in (_text(item, place) for place in places.keys) if key)
        if not keys:
            return None
        state = states(item) if callable(states) else states.get(_text(item, places.state).casefold())
        error = "" if state in _NO_FAILURE else _text(item, places.error)[:_ERROR]
        return Receipt(
            keys=keys,
            state=state or ReceiptState.UNKNOWN,
            recipient=number_of(_text(item, places.recipient)).lstrip("+ "),
            sender=_text(item, places.sender).strip(),
            raw=raw,
            error="" if error == "0" else error,
            unknown_word="" if state else _text(item, places.word or places.state)[:_WORD] or NO_WORD,
            network=_text(item, places.network),
        )

    return lambda settings, callback: [found for item in items(callback) if (found := one(*item)) is not None]


def messages_from(items: Items, places: MessagePlaces) -> Callable[[Any, Callback], list[Inbound]]:
    """Reads the messages from handsets, or parts of them, in a callback."""

    def one(item: Any, raw: bytes) -> Inbound | None:
        sender = _text(item, places.sender)
        if not sender or _at(item, places.text) is None:
            return None
        return inbound_of(
            sender=f"+{sender.lstrip('+ ')}" if places.international else sender,
            recipient=_text(item, places.recipient),
            text=_text(item, places.text),
            raw=raw,
            key=_text(item, places.key),
            concatenation=part_of(*(_text(item, place) for place in places.part)) if places.part else None,
            asked=_text(item, places.asked).lower(),
        )

    return lambda settings, callback: [found for item in items(callback) if (found := one(*item)) is not None]


def part_of(*said: str) -> tuple[int, int, int] | None:
    """Reference, total and number of a part, parsed from text; None: the message is whole."""
    try:
        reference, total, number = (int(one) for one in said)
    except ValueError:
        return None
    return (reference & 0xFFFF, total, number) if 1 <= number <= total <= 255 and total > 1 else None


def inbound_of(
    *,
    sender: str,
    recipient: str,
    text: str,
    raw: bytes,
    key: str = "",
    concatenation: tuple[int, int, int] | None = None,
    asked: str = "",
) -> Inbound:
    """A message from a handset, or a part of one. `key`: the supplier's id for it, by which a repeat is recognized.
    `concatenation`: (reference, total, number) of a part. `asked`: what the supplier took it for; ignored unless it is
    one of ASKED."""
    sender, recipient = number_of(sender), number_of(recipient)
    return Inbound(
        sender=sender.removeprefix("+"),
        recipient=recipient.removeprefix("+"),
        text=text,
        raw=raw,
        concatenation=concatenation,
        sender_ton=INTERNATIONAL if sender.startswith("+") else 0,
        key=key,
        asked=asked if asked in ASKED else "",
    )


def number_of(text: str) -> str:
    """An address without spaces around it, and a number without the separators that some gateways write in it. In a
    query or a form a plus that was not escaped arrives as a space."""
    bare = text.translate(_SEPARATORS)
    if not bare.removeprefix("+").isdecimal():
        return text.strip()
    return f"+{bare}" if text[0] == " " and text[1].isdecimal() else bare


def _at(item: Any, place: Place) -> Any:
    return value_at(item, *((place,) if isinstance(place, str) else place)) if place else None


def _text(item: Any, place: Place) -> str:
    return text_of(_at(item, place))
