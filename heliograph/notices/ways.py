"""A person's choices of how to be notified, by kind of notice: only deviations from the defaults are stored."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import cast

import msgspec

from heliograph.base.errors import Invalid
from heliograph.notices.kinds import WAYS, Way

#: Ways by kind, for kinds with a choice.
Chosen = Mapping[str, Sequence[Way]]


def checked(
    ways: Mapping[str, Collection[str] | None], offered: Mapping[str, Sequence[Way]]
) -> dict[str, tuple[Way, ...] | None]:
    """Check requested choices; None: the default. `offered`: the ways of each kind. Raises Invalid."""
    wrong = [
        (f"ways.{kind}"[:80], "enum", f"`{kind[:60]}` is not a kind of notice; they are {', '.join(offered)}")
        for kind in ways
        if kind not in offered
    ]
    wrong += [
        (f"ways.{kind}", "enum", f"Ways of `{kind}` must be among {', '.join(offered[kind])}")
        for kind, chosen in ways.items()
        if kind in offered and chosen is not None and not set(chosen) <= set(offered[kind])
    ]
    if wrong:
        raise Invalid(*wrong)
    return {
        kind: None if chosen is None else tuple(way for way in WAYS if way in chosen) for kind, chosen in ways.items()
    }


def merged(before: Chosen, changes: Mapping[str, tuple[Way, ...] | None], usual: Chosen) -> dict[str, tuple[Way, ...]]:
    """The resulting choices, without those equal to the default."""
    found = {kind: tuple(chosen) for kind, chosen in before.items()}
    for kind, chosen in changes.items():
        if chosen is None or (kind in usual and set(chosen) == set(usual[kind])):
            found.pop(kind, None)
        else:
            found[kind] = chosen
    return dict(sorted(found.items()))


def decoded(text: str, kinds: Collection[str]) -> dict[str, tuple[Way, ...]]:
    """Choices from a column `notice_ways`."""
    found = msgspec.json.decode(text, type=dict[str, tuple[str, ...]])
    return {kind: cast("tuple[Way, ...]", ways) for kind, ways in found.items() if kind in kinds}


def encoded(chosen: Chosen) -> str:
    """Choices as stored in a column `notice_ways`."""
    return msgspec.json.encode(chosen).decode()


def audit_values(chosen: Chosen) -> dict[str, list[str]]:
    """Choices for the audit log."""
    return {kind: list(ways) for kind, ways in chosen.items()}
