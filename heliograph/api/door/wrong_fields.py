"""All wrong fields of a body: msgspec stops at the first, so the fields of a refused one are converted one by one.

Within a field, the first mistake counts, and a body with more than MOST wrong fields is not written by hand.
"""

from __future__ import annotations

import typing
from collections.abc import Iterator
from itertools import islice
from types import UnionType
from typing import Any

import msgspec

#: Wrong fields that are reported.
MOST = 20


def texts(body: Any, kind: type[msgspec.Struct] | UnionType) -> list[str]:
    """What msgspec says of each wrong field, with its path from the body: "Expected `str`, got `int` - at `$.to`".
    `kind`: the struct that the body was to be, or a union of tagged ones."""
    struct = _struct(body, kind)
    return [] if struct is None else list(islice(_texts(body, struct), MOST))


def _struct(body: Any, kind: type[msgspec.Struct] | UnionType) -> type[msgspec.Struct] | None:
    """The struct that a body claims to be; None if it does not say, or is not an object."""
    if not isinstance(body, dict):
        return None
    if not isinstance(kind, UnionType):
        return kind
    configs = ((one, one.__struct_config__) for one in typing.get_args(kind))
    return next((one for one, config in configs if body.get(config.tag_field) == config.tag), None)


def _texts(body: dict[str, Any], struct: type[msgspec.Struct]) -> Iterator[str]:
    fields, config = {one.encode_name: one for one in msgspec.structs.fields(struct)}, struct.__struct_config__
    for name, field in fields.items():
        if name not in body:
            if field.required:
                yield f"Object missing required field `{name}`"
            continue
        try:
            msgspec.convert(body[name], field.type)
        except msgspec.ValidationError as error:
            what, at, path = str(error).partition(" - at `")
            yield f"{what} - at `" + (path.replace("$", f"$.{name}", 1) if at else f"$.{name}`")
    if config.forbid_unknown_fields:
        yield from (
            f"Object contains unknown field `{name}`"
            for name in body
            if name not in fields and name != config.tag_field
        )
