"""Concurrent changes: what others changed while somebody had a form open.

A form submits all of its fields, including those that its sender never touched. It also carries the values originally
shown, so that an untouched field does not undo somebody else's change: it keeps its current value.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

#: The field that carries the values shown, written by `kit.was`: {name: text} as JSON.
WAS = "_was"


def written(shown: Mapping[str, str]) -> str:
    """The values shown in a form's fields, for the form to carry."""
    return msgspec.json.encode(shown).decode()


def unchanged_fields(form: Mapping[str, str]) -> frozenset[str]:
    """Names of the fields that were not changed; empty if the form does not carry the values shown. A box that is not
    checked is not submitted, and was shown as ""."""
    try:
        was = msgspec.json.decode(form.get(WAS, "{}"), type=dict[str, str])
    except (msgspec.DecodeError, msgspec.ValidationError):
        return frozenset()
    return frozenset(name for name, text in was.items() if _plain(form.get(name, "")) == _plain(text))


def current_values(form: Mapping[str, str], now: Mapping[str, str]) -> dict[str, str]:
    """Current values of the unchanged fields that are in `now`."""
    return {name: now[name] for name in unchanged_fields(form) if name in now}


def typed(form: Mapping[str, str], names: Iterable[str], now: Mapping[str, str]) -> dict[str, str]:
    """The fields of a form: those left unchanged with their current values, the others as typed."""
    given = {name: form.get(name, "") for name in names}
    return given | {name: text for name, text in current_values(form, now).items() if name in given}


def _plain(text: str) -> str:
    """A text for comparison: browsers change line endings, and forms strip surrounding whitespace."""
    return text.replace("\r\n", "\n").strip()
