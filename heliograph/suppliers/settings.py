"""Account settings for any protocol: stored values become a typed struct, and errors name the field."""

from __future__ import annotations

import math
import re
import urllib.parse
from collections.abc import Mapping
from typing import Annotated, Any, TypeVar

import msgspec

from heliograph.base.phones import REGIONS
from heliograph.base.process.settings import SettingsError
from heliograph.base.sentences import Sentence, joined, quoted, said

Kind = TypeVar("Kind", bound=msgspec.Struct)

#: How msgspec states the path of a wrong value.
_AT = re.compile(r" - at `\$\.?(.*)`$")


def checked(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """The settings as stored with a supplier. Raises SettingsError, which names the field."""
    try:
        found = msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        if isinstance(error.__cause__, DemandedError):
            raise SettingError(error.__cause__.words) from None
        text = str(error)
        if missing := re.match(r"Object missing required field `(\w+)`", text):
            raise SettingError(said("%(name)s is required", name=missing[1])) from None
        if unknown := re.match(r"Object contains unknown field `(.*)`", text):
            raise SettingError(said("%(name)s is not a setting", name=unknown[1])) from None
        at = _AT.search(text)
        raise SettingError(
            joined([at[1], describe_error(text)], " ") if at and at[1] else describe_error(text)
        ) from None
    for name in kind.__struct_fields__:
        value = getattr(found, name)
        # JSON, in which they are stored, has no other.
        if isinstance(value, float) and not math.isfinite(value):
            raise SettingError(joined([name, TYPES["float"]], " "))
    return found


class SettingError(SettingsError):
    """An account setting is wrong; the message names the field."""

    def __init__(self, words: Sentence) -> None:
        super().__init__(str(words))
        self.words = words


class DemandedError(ValueError):
    """A setting does not meet a requirement."""

    def __init__(self, field: str, what: Sentence) -> None:
        self.words = joined([field, what], " ")
        super().__init__(str(self.words))


#: What a value must be, by the type that msgspec names.
TYPES: Mapping[str, Sentence] = {
    "str": said("must be text"),
    "int": said("must be a whole number"),
    "float": said("must be a number"),
    "bool": said("must be yes or no"),
    "array": said("must be a list: values separated by commas"),
    "object": said("must be entries: a name and a value each"),
}


def describe_error(text: str) -> Sentence:
    """An error message of msgspec, without the value's path, as the rest of a sentence that begins with the field."""
    text = _AT.sub("", text)
    if found := re.fullmatch(r"Expected `(\w+)[^`]*`(?:, got `[^`]*`)?", text):
        return TYPES.get(found[1]) or said("must be %(wanted)s", wanted=found[1])
    if found := re.fullmatch(r"Expected `array` of length (\d+), got \d+", text):
        return said("must have %(count)s values", count=found[1])
    if found := re.fullmatch(r"Expected `[^`]*` of length >= (\S+)", text):
        return said("must not be empty") if found[1] == "1" else said("must have %(least)s or more", least=found[1])
    if found := re.fullmatch(r"Expected `[^`]*` of length <= (\S+)", text):
        return said("must have at most %(most)s", most=found[1])
    if found := re.fullmatch(r"Expected `[^`]*` >= (\S+)", text):
        return said("must be %(least)s or more", least=found[1])
    if found := re.fullmatch(r"Expected `[^`]*` > (\S+)", text):
        return said("must be more than %(least)s", least=found[1])
    if found := re.fullmatch(r"Expected `[^`]*` <= (\S+)", text):
        return said("must be %(most)s or less", most=found[1])
    if found := re.fullmatch(r"Expected `[^`]*` matching regex '(.*)'", text, re.S):
        if words := re.fullmatch(r"\^\(([a-z|]+)\)\$", found[1]):
            return said("must be one of %(words)s", words=words[1].replace("|", ", "))
        is_digits = found[1] == "^[0-9]+$"
        return said("must be digits") if is_digits else said("must have the form %(form)s", form=found[1])
    if found := re.fullmatch(r"Invalid enum value (.*)", text, re.S):
        return said("cannot be %(value)s", value=found[1])
    return quoted(text)


def demand(holds: bool, field: str, what: Sentence) -> None:
    """Raise DemandedError, which names the field, unless `holds`."""
    if not holds:
        raise DemandedError(field, what)


def demand_address(base_url: str) -> str:
    """Check an API's address; returned without slashes at its end, since paths begin with one. Raises DemandedError."""
    try:
        url = urllib.parse.urlsplit(base_url)
        # Checked in the text itself: the parser drops a tab and an empty query, and paths are appended to the text.
        is_plain = "@" not in url.netloc and not re.search(r"[?#\s]", base_url)
        is_url = url.scheme in ("https", "http") and bool(url.hostname) and url.port != 0 and is_plain
    except ValueError:  # its port is not a number, or too large
        is_url = False
    demand(is_url, "base_url", said("must be a URL such as https://api.example.net"))
    return base_url.rstrip("/")


#: Settings of every account, whatever its protocol, for receipts and for messages from handsets.
RecipientErrors = Annotated[
    tuple[str, ...],
    "Error codes in receipts that are caused by the recipient: no such number, a handset that is off",
]
HandlesStop = Annotated[bool, "The supplier replies to STOP, START and HELP itself: act on them, but send no reply"]
Country = Annotated[
    str, "ISO country of senders' national numbers (MZ); empty: such numbers are not attributed to anybody"
]
InboundStrip = Annotated[str, "Prefix to remove from senders' numbers, such as 0"]
InboundPrepend = Annotated[str, "Prefix to add instead, such as 258"]


def demand_numbering(country: str, inbound_prepend: str) -> None:
    """Check the settings for handsets' numbers that every account has. Raises ValueError, which names the field."""
    demand(not country or country in REGIONS.values(), "country", said("must be an ISO code such as MZ"))
    demand(not inbound_prepend or inbound_prepend.isdecimal(), "inbound_prepend", said("must be digits"))
