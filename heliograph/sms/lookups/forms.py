"""Settings of look-up suppliers as fields of a form, and typed values as settings.

The rule nobody may break: API keys are not fields here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

import msgspec

from heliograph.base.errors import Problems
from heliograph.sms.lookups import accounts
from heliograph.sms.lookups.accounts import Account
from heliograph.sms.management.forms import Field
from heliograph.suppliers.lookups import kinds

#: The error for an empty field without a default.
REQUIRED = "This is required: it has no default."


def fields(kind: str) -> list[Field]:
    """All settings of a kind, in the order of its struct."""
    struct = kinds.KINDS[kind].settings
    plain, hints = get_type_hints(struct), get_type_hints(struct, include_extras=True)
    return [
        Field(
            name=one.name,
            meaning=get_args(hints[one.name])[1],
            control="number" if plain[one.name] in (int, float) else "text",
            group="connection",
            default="" if one.default is msgspec.NODEFAULT else written(one.default),
            is_required=one.default is msgspec.NODEFAULT,
        )
        for one in msgspec.structs.fields(struct)
    ]


def shown(one: Account) -> dict[str, str]:
    """The value shown in each field: the one in effect."""
    return {name: written(value) for name, value in msgspec.structs.asdict(one.settings).items()}


def read(kind: str, before: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    """The settings that typed values change; None: the default. `before`: the values that the fields showed. Raises
    Invalid with all errors of individual settings."""
    values: dict[str, Any] = {}
    wrong = Problems()
    for one in fields(kind):
        text = given.get(one.name, before.get(one.name, "")).strip()
        if one.is_required and not text:
            wrong.add(one.name, "required", REQUIRED)
        elif text != before.get(one.name, ""):
            with wrong.gathering():
                values |= accounts.parsed(kind, [f"{one.name}={text}"])
    wrong.report()
    return values


def written(value: Any) -> str:
    """A value as it would be typed."""
    return ",".join(value) if isinstance(value, tuple) else str(value)
