"""National tables compared with an independent reading of the standard, and splits with Unicode's grapheme clusters."""

from __future__ import annotations

import unicodedata

import gsmcodecs  # registers the codecs used for comparison
import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.sms.accepting import encoding
from heliograph.suppliers.alphabets import cutting, gsm7, national

assert gsmcodecs

LANGUAGES = list(national.IDENTIFIERS.values())
#: In the locking tables of the Indic languages and Urdu, the other library has an apostrophe where phones have a comma.
COMMA = 0x2C


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_are_those_of_the_standard(language: int) -> None:
    for code in range(128):
        if code == gsm7.ESCAPE:
            continue
        locked = gsm7.decode(bytes((code,)), locking=language)
        if not (code == COMMA and language >= 4):
            expected = bytes((code,)).decode(f"gsm23.038-{language}-0", "replace")
            assert locked == (expected if locked != "\ufffd" else "\ufffd"), hex(code)
        else:
            assert locked == ","
        after = national.SINGLE[language].get(code)
        if after is not None:
            assert bytes((gsm7.ESCAPE, code)).decode(f"gsm23.038-{language}-{language}") == after, hex(code)


@pytest.mark.parametrize("language", LANGUAGES)
def test_tables_lack_nothing_that_the_standard_has(language: int) -> None:
    theirs = gsmcodecs.GSMCHARMAPS[language]
    single = set(theirs["singleShift"]["decode"]) - {gsm7.ESCAPE}
    assert single == set(national.SINGLE[language])
    if "locking" in theirs:
        table = national.LOCKING[language]
        assert len(table) == 128
        assert {code for code, one in enumerate(table) if one != "\ufffd"} == set(theirs["locking"]["decode"])
    else:
        assert national.IDENTIFIERS["spanish"] == language
        assert language not in national.LOCKING


@pytest.mark.parametrize("locking", [0, *national.LOCKING])
@pytest.mark.parametrize("single", [0, *national.SINGLE])
def test_what_is_written_is_read_again(locking: int, single: int) -> None:
    characters = set(national.LOCKING.get(locking, gsm7.BASIC)) | set(
        national.SINGLE.get(single, national.EXTENSION).values()
    )
    text = "".join(sorted(characters - {"\x1b", "\ufffd"}))
    septets = gsm7.shifted(text, locking, single)
    assert septets is not None
    assert gsm7.decode(septets, locking=locking, single=single) == text
    assert gsm7.shifted(text + "\U0001f600", locking, single) is None


# -- cuts --------------------------------------------------------------------------------------------------------------

FAMILY = "👨\u200d👩\u200d👧"
CLUSTERS = [
    "e\u0301\u0323", FAMILY, "👍🏽", "🇲🇿", "🇧🇷", "☎\ufe0f", "1\ufe0f\u20e3", "🏴\U000e0067\U000e0062\U000e007f",
    "क्षि", "नि", "হ্যাঁ", "மி", "ன்", "กำ", "각", "\u1112\u1161\u11ab", "\uac00\u11a8", "ж", "я", "\r\n", "\u0600١", "が",
]  # fmt: skip


def theirs(text: str) -> set[int]:
    """Positions of cluster boundaries, in octets of UTF-16."""
    begin, at = set(), 0
    for cluster in regex.findall(r"\X", text):
        begin.add(at)
        at += len(cluster.encode("utf-16-be"))
    return begin


@settings(max_examples=150, deadline=None)
@given(pieces=st.lists(st.sampled_from(CLUSTERS) | st.characters(exclude_categories=["Cs"]), max_size=40))
def test_no_cluster_begins_where_unicode_has_none(pieces: list[str]) -> None:
    text = "".join(pieces)
    assert set(cutting.clusters(text)) <= theirs(text)


@settings(max_examples=100, deadline=None)
@given(pieces=st.lists(st.sampled_from(CLUSTERS), min_size=10, max_size=90))
def test_a_segment_ends_inside_a_grapheme_only_where_that_saves_a_segment(pieces: list[str]) -> None:
    text = "ж" + "ж".join(pieces)
    units = text.encode("utf-16-be")
    assert set(cutting.clusters(text)) == theirs(text)
    begin, at = theirs(text), 0
    segments = cutting.cut_units(units, 134)
    for left, segment in zip(reversed(range(len(segments))), segments, strict=True):
        start, at = at, at + len(segment)
        if left and at not in begin:
            whole = max(one for one in begin if one < at)
            assert whole <= start or cutting.count_units(units[whole:], 134) > left


def test_flags_conjuncts_and_accents_stay_whole() -> None:
    for cluster in CLUSTERS:
        text = "ж" * 66 + cluster + "ж" * 10
        first = encoding.encode(text).segments[0].decode("utf-16-be")
        if len(unicodedata.normalize("NFC", cluster).encode("utf-16-be")) > 2:
            assert first == "ж" * 66, cluster
    text = "a" * 152 + "\r\n" + "b" * 10
    assert [len(one) for one in encoding.encode(text).segments] == [152, 12]
    # 306 septets fill two segments, and not one more is used.
    assert [len(one) for one in encoding.encode("a" * 152 + "\r\n" + "b" * 152).segments] == [153, 153]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.sampled_from([*CLUSTERS, "😀"]), max_size=120))
def test_the_number_of_segments_does_not_depend_on_graphemes(pieces: list[str]) -> None:
    units = "".join(pieces).encode("utf-16-be")
    for size in (132, 134):
        cut = cutting.cut_units(units, size)
        assert len(cut) == cutting.count_units(units, size)
        assert b"".join(cut) == units
        assert all(len(one) <= size for one in cut)
