"""What others changed while somebody had a form open.

A form sends all of its fields, also those that its sender never looked at. It brings along how they were shown, so that
a field which was left as it was undoes nothing: it stands as it is now.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

#: The field that has them, which `kit.was` makes: {name: text} as JSON.
WAS = "_was"


def written(shown: Mapping[str, str]) -> str:
    """How fields are shown, for the form that shows them."""
    return msgspec.json.encode(shown).decode()


def left(form: Mapping[str, str]) -> frozenset[str]:
    """Names of the fields that are as they were shown. None of a form that brings nothing along. A box that is not
    ticked is not sent, and was shown as ""."""
    try:
        was = msgspec.json.decode(form.get(WAS, "{}"), type=dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return frozenset()
    return frozenset(name for name, text in was.items() if _plain(form.get(name, "")) == _plain(text))


def kept(form: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Those of them that are among `now`, as they are now."""
    return {name: now[name] for name in left(form) if name in now}


def _plain(text: str) -> str:
    """Browsers end lines their own way, and forms are read without what surrounds a text."""
    return text.replace("\r\n", "\n").strip()
