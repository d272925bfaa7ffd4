"""The OpenAPI document is complete: nothing is unnamed, undescribed or unused, and its examples fit its schemas."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import validate

from heliograph.api.document import error_pages, event_bodies, openapi
from heliograph.api.routes import OPERATIONS
from heliograph.notices.kinds import KINDS as NOTICES
from heliograph.webhooks.recording.events import KINDS
from tests.house.project import DOCS, blocks

DOCUMENT: dict[str, Any] = msgspec.json.decode(openapi.document(OPERATIONS, ""))
SCHEMAS: dict[str, Any] = DOCUMENT["components"]["schemas"]
DESCRIBED = [
    pytest.param(path, method, operation, id=operation["operationId"])
    for path, methods in DOCUMENT["paths"].items()
    for method, operation in methods.items()
]
#: Names of the fields of `error.details` that are documented for each code.
DETAILS = {one.code: one.details.keys() for one in error_pages.errors()}
OPERATION = pytest.mark.parametrize(("path", "method", "operation"), DESCRIBED)


def check(value: Any, schema: dict[str, Any]) -> None:
    Draft202012Validator(schema | {"components": DOCUMENT["components"]}).validate(value)


def resolved(one: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in one:
        return one
    found: Any = DOCUMENT
    for step in one["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return found


def walk(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from walk(each)
    elif isinstance(value, list):
        for each in value:
            yield from walk(each)


def test_it_is_openapi() -> None:
    validate(DOCUMENT)
    assert DOCUMENT["openapi"] == "3.1.0"
    assert {"title", "version", "description", "license"} <= DOCUMENT["info"].keys()


def test_operations_are_told_apart() -> None:
    for field in ("operationId", "summary"):
        seen = Counter(each.values[2][field] for each in DESCRIBED)
        assert [name for name, times in seen.items() if times > 1] == []


def test_tags_are_those_that_are_used_and_say_what_they_are() -> None:
    used = {tag for each in DESCRIBED for tag in each.values[2]["tags"]}
    assert {tag["name"] for tag in DOCUMENT["tags"]} == used
    assert all(tag["description"] for tag in DOCUMENT["tags"])


@OPERATION
def test_an_operation_says_what_it_is(path: str, method: str, operation: dict[str, Any]) -> None:
    assert re.fullmatch(r"[a-z][A-Za-z]+", operation["operationId"])
    assert operation["summary"]
    assert not operation["summary"].endswith(".")
    assert operation["description"]
    assert len(operation["tags"]) == 1


@OPERATION
def test_a_parameter_is_described_and_its_example_fits(path: str, method: str, operation: dict[str, Any]) -> None:
    parameters = [resolved(one) for one in operation["parameters"]]
    assert sorted(re.findall(r"\{(\w+)\}", path)) == sorted(one["name"] for one in parameters if one["in"] == "path")
    for one in parameters:
        assert one["description"], one["name"]
        assert one["schema"], one["name"]
        if "example" in one:
            check(one["example"], one["schema"])


@OPERATION
def test_a_body_has_an_example_that_fits(path: str, method: str, operation: dict[str, Any]) -> None:
    if "requestBody" not in operation:
        return
    media = operation["requestBody"]["content"]["application/json"]
    check(media["example"], media["schema"])


@OPERATION
def test_every_answer_is_described_and_every_refusal_shown(path: str, method: str, operation: dict[str, Any]) -> None:
    responses = operation["responses"]
    assert sum(status.startswith("2") for status in responses) == 1
    expected = {"400", "413", "414", "431", "500", "503"}
    if operation["security"]:
        expected |= {"401", "403"}
    if path != "/health":
        expected.add("429")
    if "{" in path:
        expected.add("404")
    assert expected <= responses.keys()
    for status, response in responses.items():
        assert response["description"], status
        assert "x-request-id" in response["headers"]
        media = response["content"]["application/json"]
        assert media["schema"]["$ref"]
        if status.startswith("2"):
            check(media["example"], media["schema"])
            continue
        assert media["examples"], status
        for code, example in media["examples"].items():
            assert f"`{code}`" in response["description"]
            assert example["value"]["error"]["code"] == code
            assert example["value"]["error"]["details"].keys() == DETAILS[code], f"the example of {code} in errors.toml"
            check(example["value"], media["schema"])
        if limited := media["examples"].get("rate_limit_exceeded"):
            bucket = re.search("Rate bucket: `(.*)`", operation["description"])
            shown = limited["value"]["error"]["details"]["limit"]
            assert shown == ("unauthenticated" if bucket is None else bucket[1])
            assert response["headers"].keys() > {"Retry-After", "X-RateLimit-Limit", "X-RateLimit-Reset"}


def test_the_example_of_the_settings_has_every_kind_of_notice() -> None:
    for method in ("get", "patch"):
        answer = DOCUMENT["paths"]["/account/settings"][method]["responses"]["200"]["content"]["application/json"]
        assert list(answer["example"]["settings"]["notices"]) == list(NOTICES)


def test_answers_of_the_pages_for_people_are_the_same() -> None:
    shown = [msgspec.json.decode(block.text) for block in blocks(DOCS / "api.md") if block.words == ["json"]]
    assert openapi.EXAMPLES.keys() == {each.id for each in OPERATIONS}
    assert {id for id, one in openapi.EXAMPLES.items() if one.request is not None} == {
        each.id for each in OPERATIONS if each.request is not None
    }
    assert sum(one.answer in shown for one in openapi.EXAMPLES.values()) >= 20


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_is_described(name: str) -> None:
    schema = SCHEMAS[name]
    assert schema["description"]
    undescribed = [field for field, shape in schema.get("properties", {}).items() if not shape.get("description")]
    assert undescribed == []
    for field, shape in schema.get("properties", {}).items():
        for example in shape.get("examples", ()):
            try:
                check(example, shape)
            except Exception as error:
                raise AssertionError(f"{name}.{field}: {error}") from error


def test_enumerations_say_of_what_type_they_are() -> None:
    """Without it, generators leave out everything that contains one."""
    types = {str: "string", int: "integer", bool: "boolean"}
    listed = [one for one in walk(DOCUMENT) if isinstance(one.get("enum"), list) or "const" in one]
    assert listed
    for one in listed:
        for value in one.get("enum", [one.get("const")]):
            assert one.get("type") == types[type(value)], one


def test_nothing_is_named_that_is_not_used() -> None:
    used = {one["$ref"] for one in walk(DOCUMENT) if isinstance(one.get("$ref"), str)}
    kept = {
        f"#/components/{kind}/{name}"
        for kind, components in DOCUMENT["components"].items()
        if kind != "securitySchemes"
        for name in components
    }
    assert kept == used
    schemes = {name for each in DESCRIBED for one in each.values[2]["security"] for name in one}
    assert schemes == DOCUMENT["components"]["securitySchemes"].keys()


# ── What generators of clients stumble on ─────────────────────────────────────────────────────────────────────────────


def objects() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema with fields, in components and in paths, and its location."""
    for name, schema in SCHEMAS.items():
        yield from ((name, one) for one in walk(schema) if isinstance(one.get("properties"), dict))


def test_nothing_defaults_to_null_and_no_body_to_anything() -> None:
    """openapi-typescript makes a field with a default required, also if the default is null."""
    assert [one for one in walk(DOCUMENT["paths"]) if "default" in one and one["default"] is None] == []
    with_default = [
        f"{name}.{field}" for name, one in objects() for field, shape in one["properties"].items() if "default" in shape
    ]
    assert with_default == [], "say in the description what holds without it"


def test_no_field_is_spelt_twice() -> None:
    """`sender_id` and `senderId` are one name in Java, Go and Python, and do not compile."""
    for name, one in objects():
        folded = Counter(field.replace("_", "").replace("-", "").lower() for field in one["properties"])
        assert [field for field, times in folded.items() if times > 1] == [], f"{name}: mark one with `alias_of`"
    for each in DESCRIBED:
        parameters = [resolved(one) for one in each.values[2]["parameters"]]
        folded = Counter((one["in"], one["name"].replace("_", "").replace("-", "").lower()) for one in parameters)
        assert max(folded.values()) == 1, each.id


def test_an_object_with_any_fields_says_so() -> None:
    """Of one that names no fields, openapi-typescript makes an object that has none: nothing in it can be read."""
    for name, schema in SCHEMAS.items():
        for one in walk(schema):
            if one.get("type") == "object":
                assert one.keys() & {"properties", "additionalProperties"}, name


def test_nothing_is_only_null() -> None:
    """openapi-generator has no type for only null."""
    nothing_else = [
        f"{name}.{field}"
        for name, one in objects()
        for field, shape in one["properties"].items()
        if shape.get("type") == "null"
    ]
    assert nothing_else == []


def reachable(schema: Any) -> set[str]:
    """The names of the schemas that a schema refers to."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        for one in walk(waiting.pop()):
            name = str(one.get("$ref", "")).rpartition("/")[2]
            if name in SCHEMAS and name not in found:
                found.add(name)
                waiting.append(SCHEMAS[name])
    return found


def test_what_is_received_is_open() -> None:
    """A generated client refuses a value that its document does not list, so a later addition would break it."""
    received = {
        name
        for each in DESCRIBED
        for response in each.values[2]["responses"].values()
        for name in reachable(response["content"])
    }
    sent = {name for each in DESCRIBED for name in reachable(each.values[2].get("requestBody", {}))}
    assert received & sent == set(), "give what is received a struct of its own: it is open, a request is closed"
    events = reachable(DOCUMENT["webhooks"])
    listed = [name for name in received | events for one in walk(SCHEMAS[name]) if isinstance(one.get("enum"), list)]
    assert listed == []
    fixed = {name for name in received | events for one in walk(SCHEMAS[name]) if "const" in one}
    assert fixed == {event_bodies.name(kind) for kind in KINDS}, "only an event's kind is what it is"
    for name in received | events:
        for field, shape in SCHEMAS[name].get("properties", {}).items():
            for value in [value for one in walk(shape) for value in one.get("x-extensible-enum", ())]:
                assert f"`{value}`" in shape["description"], f"{name}.{field}"


def test_every_kind_of_event_has_its_webhook() -> None:
    assert list(DOCUMENT["webhooks"]) == list(KINDS)
    for kind, webhook in DOCUMENT["webhooks"].items():
        body = resolved(webhook["post"]["requestBody"]["content"]["application/json"]["schema"])
        assert body["properties"]["type"]["const"] == kind
        assert body["properties"].keys() == SCHEMAS["RecordedEvent"]["properties"].keys(), "as GET /events shows it"
        data = resolved(body["properties"]["data"])
        assert data["properties"], kind
        assert [resolved(one)["name"] for one in webhook["post"]["parameters"]]
