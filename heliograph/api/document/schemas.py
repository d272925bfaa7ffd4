"""Converts msgspec's JSON Schemas into OpenAPI schemas that client generators understand.

Request schemas are closed, because requests are validated strictly. Response and event schemas are open: a string that
has a few values today may have more tomorrow, so a generated client must not refuse values it does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from functools import cache
from typing import Any

import msgspec

from heliograph.api.shapes.fields import ALIAS, NEEDED

Schema = dict[str, Any]

TEMPLATE = "#/components/schemas/{name}"
_JSON_TYPES = {bool: "boolean", int: "integer", str: "string"}
_NULL = {"type": "null"}


def components(shapes: Iterable[Any]) -> dict[str, Schema]:
    """The schemas of structs and of all structs nested in them, by name."""
    return deepcopy(_components(tuple(shapes)))


@cache
def _components(shapes: tuple[Any, ...]) -> dict[str, Schema]:
    _, found = msgspec.json.schema_components(shapes, ref_template=TEMPLATE)
    return found


def of_requests(found: Mapping[str, Schema]) -> dict[str, Schema]:
    """Schemas of bodies that clients send: closed, without aliases and without defaults.

    Generators assume that a field with a default is always present, and make it required; the description states the
    default instead.
    """
    return {name: _plain(_described_fields(schema), keep_defaults=False) for name, schema in found.items()}


def of_answers(found: Mapping[str, Schema]) -> dict[str, Schema]:
    """Schemas of what clients receive: open."""
    return {name: opened(_plain(schema, keep_defaults=False)) for name, schema in found.items()}


def of_query(query: type[msgspec.Struct]) -> list[Schema]:
    """The fields of a query struct as OpenAPI parameters."""
    schema = _described_fields(components([query])[query.__name__])
    parameters = []
    for name, shape in schema["properties"].items():
        # A parameter is absent, never null.
        (given,) = [one for one in shape.get("anyOf", [shape]) if one != _NULL]
        described = {key: value for key, value in given.items() if key != "description"}
        if given.get("type") == "string" and not given.keys() & {"enum", "format"}:
            described.setdefault("minLength", 1)
        parameter = {"name": name, "in": "query", "schema": _plain(described, keep_defaults=True)}
        if "description" in shape:
            parameter["description"] = shape["description"]
        if name in schema.get("required", ()):
            parameter["required"] = True
        parameters.append(parameter)
    return parameters


def _described_fields(schema: Schema) -> Schema:
    """An object schema without its fields' aliases, and with its required fields listed."""
    if "properties" not in schema:
        return schema
    properties, required = {}, list(schema.get("required", ()))
    for name, shape in schema["properties"].items():
        if ALIAS in shape:
            continue
        if NEEDED in shape:
            required.append(name)
            (given,) = [one for one in shape["anyOf"] if one != _NULL]
            shape = given | {"description": shape["description"]}
        properties[name] = shape
    return schema | {"properties": properties} | ({"required": required} if required else {})


def _plain(schema: Any, *, keep_defaults: bool) -> Any:
    """A schema with typed enumerations, single values as `const`, and no null defaults."""
    if isinstance(schema, list):
        return [_plain(one, keep_defaults=keep_defaults) for one in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {}
    for name, one in schema.items():
        if name == "properties":  # under any name, `default` included
            plain[name] = {field: _plain(shape, keep_defaults=keep_defaults) for field, shape in one.items()}
        elif name != "default" or (keep_defaults and one is not None):
            plain[name] = _plain(one, keep_defaults=keep_defaults)
    values = plain.get("enum")
    if isinstance(values, list) and (kind := _JSON_TYPES.get(type(values[0]))):
        plain["type"] = kind
        if len(values) == 1:
            plain["const"] = plain.pop("enum")[0]
    return plain


def opened(schema: Schema) -> Schema:
    """A response schema: the values listed for a string or number are not exhaustive.

    The values remain listed in the description and in `x-extensible-enum`. A constant that is not a string becomes an
    example: openapi-generator's Python client compares a constant with its text, and refuses `true` for not being
    "true".
    """
    open_ = dict(schema)
    if "properties" in schema:
        open_["properties"] = {name: opened(shape) for name, shape in schema["properties"].items()}
        return open_
    if schema.get("type") == "null":  # only null: generators have no such type
        open_["type"] = ["string", "null"]
        return open_
    listed = [_values_out(open_)]
    _say_any(open_)
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            open_[key] = dict(schema[key])
            listed.append(_values_out(open_[key]))
    if "anyOf" in schema:
        open_["anyOf"] = [dict(one) for one in schema["anyOf"]]
        listed += [_values_out(one) for one in open_["anyOf"]]
        for one in open_["anyOf"]:
            _say_any(one)
    text = open_.get("description", "")
    values = [value for found in listed for value in found]
    if any(f"`{value}`" not in text for value in values):
        open_["description"] = f"{text} {'One of ' if len(values) > 1 else ''}{_listed(values)}; more may come.".strip()
    elif values:
        open_["description"] = f"{text} More values may come."
    return open_


def _say_any(schema: Schema) -> None:
    """An object that may have any fields says so: openapi-typescript takes one that names none for one without any."""
    if schema.get("type") == "object":
        schema.setdefault("additionalProperties", True)


def _values_out(schema: Schema) -> list[Any]:
    """Replace a schema's list of values with a remark in its description."""
    if schema.get("type") in ("integer", "boolean") and "const" in schema:
        schema["examples"] = [schema.pop("const")]
        return []
    if schema.get("type") != "string":
        return []
    values = schema.pop("enum", None) or ([schema.pop("const")] if "const" in schema else [])
    if values:
        schema["x-extensible-enum"] = values
    return values


def _listed(values: list[Any]) -> str:
    return ", ".join(f"`{value}`" for value in values)
