"""Sections of the form for a supplier's settings: first those that every account needs, then, collapsed, those that
most accounts leave unchanged.

A section with a setting that differs from its default is open: nothing in effect is hidden.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import msgspec

from heliograph.sms.management import forms
from heliograph.sms.management.forms import Field


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """Some fields under a heading."""

    #: In English, as is `note`.
    heading: str
    fields: list[Field]
    is_open: bool
    note: str = ""

    @property
    def names(self) -> list[str]:
        """Its fields' names in the form."""
        return [forms.OPTION + one.name for one in self.fields]


class _Place(msgspec.Struct, frozen=True):
    """Which settings a section has: by name, or by the beginning of their names."""

    group: str
    heading: str
    is_folded: bool
    names: frozenset[str] = frozenset()
    prefixes: tuple[str, ...] = ()

    def has(self, one: Field) -> bool:
        if one.group != self.group or (one.is_required and self.is_folded):
            return False
        return one.is_required or one.name in self.names or one.name.startswith(self.prefixes)


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


#: For sections whose settings say where a value is found.
NOTES: Mapping[str, str] = {
    "Its answer": "A place is a JSON pointer such as /messages/0/id; form:, query: or header: and a name; regex: and a "
    "pattern with one group; or status.",
}
#: In the order in which they are shown; a setting is shown in the first section that has it.
_PLACES = (
    _Place("connection", "Connection", False, _names("host port base_url system_id tls")),
    _Place("connection", "More about the connection", True, prefixes=("",)),
    _Place("limits", "Limits", False, prefixes=("",)),
    _Place("protocol", "The request", False, _names("method path content_type body headers basic_user")),
    _Place("protocol", "Its answer", False, _names("id_at code_at codes detail_at")),
    _Place("protocol", "Receipts", False, _names("receipt_id_at receipt_state_at receipt_states registered_delivery")),
    _Place("protocol", "Message ids", False, _names("resp_id_base dlr_id_base tlv_id_base")),
    _Place("protocol", "Alphabet and long messages", False, _names("default_alphabet long_messages")),
    _Place("protocol", "The account", False, _names("shared_sender with_sender api_key_sid messaging_service_sid")),
    _Place(
        "protocol",
        "More about receipts",
        True,
        _names("final_states recipient_errors receipts_queue dlr_sniff"),
        ("receipt_",),
    ),
    _Place("protocol", "Messages from handsets", True, _names("handles_stop country"), ("inbound_",)),
    _Place("protocol", "Callbacks", True, prefixes=("callback_", "token_", "signature_", "reply")),
    _Place("protocol", "Several messages per request", True, _names("batch"), ("item",)),
    _Place("protocol", "Senders and numbers", True, _names("destination international alphanumeric short_code")),
    _Place(
        "protocol",
        "Encoding, length and validity",
        True,
        _names("max_characters validity validity_seconds single_shift locking_shift"),
        ("gsm7_", "ucs2_", "data_coding_"),
    ),
    _Place("protocol", "Errors", True, _names("statuses max_timeouts")),
    _Place("protocol", "Other fields of the protocol", True, prefixes=("",)),
    _Place("times", "Time limits", True, prefixes=("",)),
)
HEADINGS = tuple(one.heading for one in _PLACES)


def sections(kind: str, given: Mapping[str, str], groups: Container[str]) -> list[Section]:
    """The sections of some groups (`forms.Field.group`) of a kind's settings. `given`: what the form shows."""
    found: dict[str, list[Field]] = {}
    for one in forms.fields(kind):
        if one.group in groups:
            place = next(place for place in _PLACES if place.has(one))
            found.setdefault(place.heading, []).append(one)
    return [
        Section(
            heading=place.heading,
            fields=listed,
            is_open=not place.is_folded or any(_is_used(one, given) for one in listed),
            note=NOTES.get(place.heading, ""),
        )
        for place in _PLACES
        if (listed := found.get(place.heading))
    ]


def _is_used(one: Field, given: Mapping[str, str]) -> bool:
    return given.get(forms.OPTION + one.name, one.default).replace("\r\n", "\n") != one.default
