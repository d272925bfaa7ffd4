"""What callbacks say, read by where it stands: a supplier's file names the places, and this reads what is there. Pure.

An item is a mapping: a form's fields, or one of a list in JSON. One that names nothing that a message can be known by
is left out, and so is a message of nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from heliograph.suppliers.contract import Inbound, Receipt, ReceiptState
from heliograph.suppliers.http.kind import Callback, at, inbound_of, listed, text_of

#: A field of an item, or the steps to one inside it.
Place = str | tuple[str | int, ...]
#: An item, and its bytes as evidence.
Item = tuple[Any, bytes]
#: What a state's word means; or, where more than a word decides, the state of an item, None if nobody knows it.
States = Mapping[str, ReceiptState] | Callable[[Any], ReceiptState | None]

#: Characters of a failure's reason, and of a word that nobody knows.
_ERROR, _WORD = 64, 40
#: Of these there is no failure, whatever stands where its reason would be.
_NO_FAILURE = frozenset((ReceiptState.DELIVERED, ReceiptState.PENDING))


class ReceiptPlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a receipt has what; empty: it has it nowhere."""

    #: What may be the supplier's id of the message, the most trusted first.
    keys: tuple[Place, ...]
    #: Its state, or the code of it.
    state: Place
    #: What operators are shown of a state that nobody knows; empty: the state as it stands.
    word: Place = ""
    recipient: Place = ""
    sender: Place = ""
    error: Place = ""
    #: MCC and MNC of the recipient's network.
    network: Place = ""


class MessagePlaces(msgspec.Struct, frozen=True, kw_only=True):
    """Where a handset's message has what."""

    sender: Place
    recipient: Place
    text: Place
    #: The supplier's id of it.
    key: Place
    #: Reference, total and number of a part, where the supplier hands over a long text in parts.
    part: tuple[Place, Place, Place] | None = None
    #: Its numbers have a calling code, with a plus or without.
    international: bool = False


#: The items of a callback.
Items = Callable[[Callback], list[Item]]


def form_body(callback: Callback) -> list[Item]:
    """The body as a form that is one item."""
    return [(callback.form, callback.body)]


def any_fields(callback: Callback) -> list[Item]:
    """One item, of the query and of the body, in whichever form that is."""
    return [(callback.fields, callback.body or callback.url.encode())]


def json_list(*path: str) -> Items:
    """The items of a list in a body of JSON."""
    return lambda callback: [(one, msgspec.json.encode(one)) for one in listed(callback.json, *path)]


def receipts_from(items: Items, places: ReceiptPlaces, states: States) -> Callable[[Any, Callback], list[Receipt]]:
    """Reads the receipts of a callback. A state that nobody knows is counted, and shown to operators."""

    def one(item: Any, raw: bytes) -> Receipt | None:
        keys = tuple(key for key in (_text(item, place) for place in places.keys) if key)
        if not keys:
            return None
        state = states(item) if callable(states) else states.get(_text(item, places.state).casefold())
        error = "" if state in _NO_FAILURE else _text(item, places.error)[:_ERROR]
        return Receipt(
            keys=keys,
            state=state or ReceiptState.UNKNOWN,
            recipient=_text(item, places.recipient).removeprefix("+"),
            sender=_text(item, places.sender),
            raw=raw,
            error="" if error == "0" else error,
            unknown_word="" if state else _text(item, places.word or places.state)[:_WORD],
            network=_text(item, places.network),
        )

    return lambda settings, callback: [found for item in items(callback) if (found := one(*item)) is not None]


def messages_from(items: Items, places: MessagePlaces) -> Callable[[Any, Callback], list[Inbound]]:
    """Reads the handsets' messages of a callback, or parts of them."""

    def one(item: Any, raw: bytes) -> Inbound | None:
        sender = _text(item, places.sender)
        if not sender or _at(item, places.text) is None:
            return None
        return inbound_of(
            sender=f"+{sender.removeprefix('+')}" if places.international else sender,
            recipient=_text(item, places.recipient),
            text=_text(item, places.text),
            raw=raw,
            key=_text(item, places.key),
            concatenation=part_of(*(_text(item, place) for place in places.part)) if places.part else None,
        )

    return lambda settings, callback: [found for item in items(callback) if (found := one(*item)) is not None]


def part_of(*said: str) -> tuple[int, int, int] | None:
    """Reference, total and number of a part, as they were said; None: it is whole."""
    try:
        reference, total, number = (int(one) for one in said)
    except ValueError:
        return None
    return (reference & 0xFFFF, total, number) if 1 <= number <= total <= 255 else None


def _at(item: Any, place: Place) -> Any:
    return at(item, *((place,) if isinstance(place, str) else place)) if place else None


def _text(item: Any, place: Place) -> str:
    return text_of(_at(item, place))
