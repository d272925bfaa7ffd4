"""Suppliers' settings as people write them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from heliograph.base.errors import Invalid
from heliograph.sms.dispatch.routing import Supplier
from heliograph.sms.management import forms, options

AT = datetime(2026, 1, 1, tzinfo=UTC)
LEAST = {"host": "smsc.example", "port": 2775, "system_id": "esme"}


def row(**settings: Any) -> Supplier:
    values: dict[str, Any] = {"secret": b"", "state": "active", "prefixes": ("258",), "priority": 10, "weight": 1}
    values |= {"sessions": 1, "parts": "all", "simulated": False, "created_at": AT, "changed_at": AT}
    return Supplier(id=UUID(int=1), name="main", kind="smpp", settings=LEAST | settings, **values)


def change(*pairs: str, **settings: Any) -> dict[str, tuple[Any, Any]]:
    before = row(**settings)
    after = options.changed(before, pairs)
    return {one["setting"]: (one["before"], one["after"]) for one in options.differences(before, after)}


@pytest.mark.parametrize(
    ("pair", "setting", "before", "after"),
    [
        ("rate=50", "submits_per_second", 0.0, 50.0),
        ("window=20", "window", 10, 20),
        ("tls=false", "tls", True, False),
        ("tls=no", "tls", True, False),
        ("dlr_sniff=Yes", "dlr_sniff", False, True),
        ("short-code=6,1", "short_code", (3, 0), (6, 1)),
        ("host=a.example", "host", "smsc.example", "a.example"),
        ("final_states.ACCEPTD=delivered", "final_states", {}, {"ACCEPTD": "delivered"}),
        ('statuses={"0x401":"R"}', "statuses", {}, {"0x401": "R"}),
        ("single_shift=portuguese, spanish", "single_shift", (), ("portuguese", "spanish")),
        ("locking-shift=hindi", "locking_shift", (), ("hindi",)),
        ("simulated=true", "simulated", False, True),
        ("name=best", "name", "main", "best"),
        ("prefixes=+244, 258", "prefixes", ("258",), ("244", "258")),
        ("prefixes=", "prefixes", ("258",), ()),
        ("weight=7", "weight", 1, 7),
        ("parts=last", "parts", "all", "last"),
    ],
)
def test_a_value_is_read_as_its_field_wants_it(pair: str, setting: str, before: Any, after: Any) -> None:
    assert change(pair) == {setting: (before, after)}


def test_an_empty_value_is_the_default_and_an_entry_goes_by_itself() -> None:
    states = {"ACCEPTD": "delivered", "LOST": "failed"}
    assert change("window=", window=50) == {"window": (50, 10)}
    assert change("final_states.LOST=", final_states=states) == {"final_states": (states, {"ACCEPTD": "delivered"})}
    assert change("final_states=", final_states=states) == {"final_states": (states, {})}
    assert change("window=10", "tls=true", "prefix=258") == {}


@pytest.mark.parametrize(
    ("pair", "word"),
    [
        ("window=0", "window"),
        ("window=many", "window"),
        ("colour=red", "colour"),
        ("priority=many", "priority"),
        ("priority=1001", "priority"),
        ("window.x=1", "window"),
        ("weight", "weight"),
        ("parts=some", "parts"),
        ("prefixes=MZ", "prefixes"),
        ("system_id=", "system_id"),
        ("final_states.X=fine", "final_states"),
        ("single_shift=portuguese,french", "single_shift"),
        ("name=", "name"),
        ("password=x", "password"),
    ],
)
def test_what_is_wrong_is_named(pair: str, word: str) -> None:
    with pytest.raises(Invalid, match=word) as refused:
        change(pair)
    assert refused.value.details["fields"][0]["field"] == word


def test_a_choice_is_answered_with_the_choices() -> None:
    with pytest.raises(Invalid, match="parts must be one of all, any, first, last"):
        change("parts=some")


HTTP = {"base_url": "https://supplier.example", "body": '{"to": "{{to}}", "text": "{{text}}"}'}


@pytest.mark.parametrize(
    ("typed", "headers"),
    [
        ("X-Key: abc", {"X-Key": "abc"}),
        ("X-Key=abc", {"X-Key": "abc"}),
        ("Authorization: Basic dXNlcjpwYXNz==\r\n\r\nX-Url = https://a.example\r\n", None),
        ("X-Empty:", {"X-Empty": ""}),
    ],
)
def test_headers_are_typed_as_they_are_copied(typed: str, headers: dict[str, str] | None) -> None:
    headers = headers or {"Authorization": "Basic dXNlcjpwYXNz==", "X-Url": "https://a.example"}
    after = forms.read("http", HTTP, {"headers": typed})
    assert after["headers"] == headers
    # What is shown is read as the same.
    shown = forms.shown("http", after)["headers"]
    assert forms.read("http", HTTP, {"headers": shown})["headers"] == headers
    for wrong in ("X-Key", ": abc", "=abc"):
        with pytest.raises(Invalid, match="NAME: VALUE"):
            forms.read("http", HTTP, {"headers": wrong})


def test_an_entry_of_another_setting_may_have_a_colon_in_its_name() -> None:
    after = forms.read("smpp", LEAST, {"final_states": "A:B=delivered"})
    assert after["final_states"] == {"A:B": "delivered"}
