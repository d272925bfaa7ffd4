"""All wrong fields of a body: msgspec stops at the first, so the fields of a refused one are converted one by one, and
those of an object within it, too.

In a list, the first mistake counts, and a body with more than MOST wrong fields is not written by hand.
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
    return [] if struct is None else list(islice(_texts(body, struct, "$"), MOST))


def _struct(body: Any, kind: Any) -> type[msgspec.Struct] | None:
    """The struct that an object claims to be; None if it does not say, or if it is none, or was to be something
    else."""
    if not isinstance(body, dict):
        return None
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    if typing.get_origin(kind) not in (typing.Union, UnionType):
        return kind if _is_struct(kind) else None
    found = [one for one in (_struct(body, part) for part in typing.get_args(kind)) if one is not None]
    configs = ((one, one.__struct_config__) for one in found)
    return next(
        (one for one, config in configs if config.tag is None or body.get(config.tag_field) == config.tag), None
    )


def _is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, msgspec.Struct)


def _texts(body: dict[str, Any], struct: type[msgspec.Struct], path: str) -> Iterator[str]:
    fields, config = {one.encode_name: one for one in msgspec.structs.fields(struct)}, struct.__struct_config__
    place = "" if path == "$" else f" - at `{path}`"
    for name, field in fields.items():
        if name not in body:
            if field.required:
                yield f"Object missing required field `{name}`{place}"
            continue
        if (inner := _struct(body[name], field.type)) is not None:
            yield from _texts(body[name], inner, f"{path}.{name}")
            continue
        try:
            msgspec.convert(body[name], field.type)
        except msgspec.ValidationError as error:
            what, at, below = str(error).partition(" - at `")
            yield f"{what} - at `" + (below.replace("$", f"{path}.{name}", 1) if at else f"{path}.{name}`")
    if config.forbid_unknown_fields:
        yield from (
            f"Object contains unknown field `{name}`{place}"
            for name in body
            if name not in fields and name != config.tag_field
        )
