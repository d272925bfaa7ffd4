"""Cursors decode to what was encoded, and only for the same list."""

from __future__ import annotations

import base64
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.base.crypto import derive_key
from heliograph.base.database import cursor
from heliograph.base.errors import Invalid

KEY = derive_key("k" * 32, "cursors")
ORGANIZATION = UUID("0198b0b5-7a42-7b7f-8a5e-3c3c4b1b9d11")
OTHER = UUID("0198b0b5-7a42-7b7f-8a5e-3c3c4b1b9d12")
BOUND: dict[str, Any] = {"organization_id": ORGANIZATION, "collection": "contacts", "filters": {"tag": "vip"}}


def refused(text: str, key: bytes = KEY, **other: Any) -> bool:
    try:
        cursor.decode(key, text, **(BOUND | other))
    except Invalid as refusal:
        return [field["field"] for field in refusal.details["fields"]] == ["cursor"]
    return False


@given(st.lists(st.none() | st.integers(-(2**53), 2**53) | st.text(max_size=50), max_size=4))
def test_a_position_comes_back(position: list[Any]) -> None:
    assert cursor.decode(KEY, cursor.encode(KEY, position, **BOUND), **BOUND) == position


def test_times_and_ids_come_back_as_text() -> None:
    at = datetime(2026, 3, 1, 12, 0, 0, 123456, UTC)
    text = cursor.encode(KEY, [at, ORGANIZATION], **BOUND)
    assert cursor.decode(KEY, text, **BOUND) == ["2026-03-01T12:00:00.123456Z", str(ORGANIZATION)]
    assert len(text) < 200
    assert set(text) <= set("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def test_a_cursor_works_only_where_it_was_issued() -> None:
    text = cursor.encode(KEY, ["x", 1], **BOUND)
    assert not refused(text)
    assert refused(text, organization_id=OTHER)
    assert refused(text, collection="campaigns")
    assert refused(text, filters={})
    assert refused(text, filters={"tag": "other"})
    assert refused(text, filters={"name": "vip"})
    assert refused(text, filters={"tag": "vip", "name": "x"})
    assert refused(text, key=derive_key("another" * 8, "cursors"))


def test_an_absent_filter_and_none_are_the_same_and_order_does_not_matter() -> None:
    text = cursor.encode(KEY, [1], **(BOUND | {"filters": {"a": 1, "b": None, "c": "x"}}))
    assert cursor.decode(KEY, text, **(BOUND | {"filters": {"c": "x", "a": 1}})) == [1]


def test_bindings_do_not_run_into_each_other() -> None:
    text = cursor.encode(KEY, [1], **(BOUND | {"collection": "a", "filters": {"b": "c"}}))
    assert refused(text, collection='a",{"b":"c"}]', filters={})
    assert refused(text, collection="a", filters={"b": ["c"]})


def test_no_altered_cursor_works() -> None:
    text = cursor.encode(KEY, ["2026-03-01T12:00:00Z", str(ORGANIZATION)], **BOUND)
    for at in range(len(text)):
        for replacement in "A_z=":
            if text[at] != replacement:
                assert refused(text[:at] + replacement + text[at + 1 :])
        assert refused(text[:at])
    assert refused(text + "A")
    assert refused(text + "=")


@pytest.mark.parametrize("text", ["", "=", "a", "****", "\x00", "ü", "\udcff", "A" * 5000, "AQ" * 30, " "])
def test_nonsense_is_refused(text: str) -> None:
    assert refused(text)


@given(st.text(max_size=100))
def test_no_text_makes_it_raise_anything_else(text: str) -> None:
    assert refused(text)
    assert refused(base64.urlsafe_b64encode(text.encode("utf-8", "replace")).decode().rstrip("="))
