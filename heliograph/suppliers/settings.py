"""Settings of accounts, whatever the wire: stored values become a typed struct, and a struct says what is wrong."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from heliograph.base.phones import REGIONS
from heliograph.base.process.settings import SettingsError

Kind = TypeVar("Kind", bound=msgspec.Struct)


def checked(kind: type[Kind], values: Mapping[str, Any]) -> Kind:
    """The settings as stored with a supplier. Raises SettingsError, which names the field."""
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        text = str(error)
        at = re.search(r" - at `\$\.?(.*)`$", text)
        raise SettingsError(f"{at[1]}: {text[: at.start()]}" if at and at[1] else text.split(" - at ")[0]) from None


def demand(holds: bool, field: str, what: str) -> None:
    """Raise ValueError, which names the field, unless it holds."""
    if not holds:
        raise ValueError(f"{field} {what}")


def demand_numbering(country: str, inbound_prepend: str) -> None:
    """What every account says of the numbers of handsets that write. Raises ValueError, which names the field."""
    demand(not country or country in REGIONS.values(), "country", "must be an ISO code such as MZ")
    demand(not inbound_prepend or inbound_prepend.isdecimal(), "inbound_prepend", "must be digits")
