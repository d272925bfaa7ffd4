"""Languages: every text has its translation, with the same placeholders."""

from __future__ import annotations

import re
from datetime import UTC, date, timedelta
from zoneinfo import ZoneInfo

import pytest
from babel import dates

from heliograph.base.database import clock
from heliograph.pages.assets import Assets
from heliograph.pages.languages import DEFAULT, LANGUAGES, accepted, alphabetical, catalogue, files, locale, read
from heliograph.pages.templates import environment

from .texts import PACKAGE, texts

OTHERS = [language for language in LANGUAGES if language != DEFAULT]


@pytest.mark.parametrize("language", OTHERS)
def test_every_text_has_its_twin_and_no_twin_is_left_over(language: str) -> None:
    known, wanted = set(catalogue(language)), texts()
    assert len(wanted) > 50
    assert wanted - known == set()
    assert known - wanted == set()


@pytest.mark.parametrize("language", OTHERS)
def test_a_text_stands_in_one_file(language: str) -> None:
    found = [text for path in files(language) for text in read(path, language)]
    assert sorted(text for text in set(found) if found.count(text) > 1) == []
    for path in files(language):
        told = re.findall(r'^((?:msgctxt ".*"\n)?msgid (?:".*"\n)+)', path.read_text(), re.M)
        assert len(told) > 1, path.name
        assert sorted(text for text in set(told) if told.count(text) > 1) == [], path.name


@pytest.mark.parametrize("language", OTHERS)
def test_a_twin_fills_in_the_same_values(language: str) -> None:
    for english, twin in catalogue(language).items():
        wanted = set(re.findall(r"%\((\w+)\)s", english)) | ({"num"} if isinstance(twin, tuple) else set())
        for form in (twin,) if isinstance(twin, str) else twin[1:]:
            assert set(re.findall(r"%\((\w+)\)s", form)) == wanted, english


@pytest.mark.parametrize("language", LANGUAGES)
def test_what_is_no_text_of_ours_is_never_taken_for_markup(language: str) -> None:
    """A template may look up a text from elsewhere: unknown text is shown as it is."""
    made = environment([], Assets([]))
    made.globals["locale"] = locale(language)
    shown = made.from_string("{{ _(word) }}").render(word="<script>evil()</script> 100 % of %(these)s %s")
    assert shown == "&lt;script&gt;evil()&lt;/script&gt; 100 % of %(these)s %s"
    filled = made.from_string('{{ _("%(name)s is removed.", name=word) }}').render(word="<b>")
    assert filled == locale(language).text("%(name)s is removed.", name="&lt;b&gt;")


@pytest.mark.parametrize(("language", "said"), [("en", "41,807 failures in a row"), ("pt", "41 807 falhas seguidas")])
def test_the_number_of_a_sentence_has_its_separators(language: str, said: str) -> None:
    made = environment([], Assets([]))
    made.globals["locale"] = locale(language)
    sentence = '{{ ngettext("%(num)s failure in a row", "%(num)s failures in a row", count) }}'
    assert made.from_string(sentence).render(count=41_807).replace("\u202f", " ").replace("\xa0", " ") == said


@pytest.mark.parametrize(
    ("english", "never"),
    [(r"\b(remove|delete)", r"\bretir"), (r"\brefund", r"\breembols"), (r"unusually many", r"mensagens a mais")],
)
def test_one_thing_has_one_word_in_portuguese(english: str, never: str) -> None:
    for text, twin in catalogue("pt").items():
        if re.search(english, text, re.I):
            assert not re.search(never, twin if isinstance(twin, str) else " ".join(twin), re.I), text


def test_a_number_without_a_plural_has_no_participle_that_depends_on_it_in_portuguese() -> None:
    """ "1 sent, 1 delivered." was "1 enviadas, 1 entregues.": "Enviadas: 1; entregues: 1." fits every number."""
    depends = re.compile(r"%\((?!share)\w+\)s (?:\w+(?:[adv]as|dos)|entregues|aceites)(?:[,.;]| ou |$)")
    found = [twin for twin in catalogue("pt").values() if isinstance(twin, str) and depends.search(twin)]
    assert found == []


def test_a_browser_gets_the_language_it_likes_best() -> None:
    for header, language in (
        ("pt-MZ,pt;q=0.9,en;q=0.8", "pt"),
        ("fr, en;q=0.5, pt;q=0.7", "pt"),
        ("fr", "en"),
        ("", "en"),
        ("pt;q=much, en", "en"),
        ("pt;q=0", "en"),
    ):
        assert accepted(header) == language, header


def test_numbers_and_times_are_written_as_the_reader_does() -> None:
    english, portuguese = locale("en"), locale("pt", "Africa/Maputo")
    assert (english.number(1234567), portuguese.number(1234567.5, 1)) == (
        "1,234,567",
        "1 234 567,5".replace(" ", "\xa0"),
    )
    at = clock.EPOCH + timedelta(days=20_000, hours=10)
    assert (english.moment(at), portuguese.time(at)) == ("4 Oct 2024, 10:00", "12:00")
    assert english.instant(at + timedelta(seconds=41, milliseconds=123)) == "4 Oct 2024, 10:00:41.123"
    assert english.duration(0.42) == "0.42 s"
    assert english.duration(250) == "4 min 10 s"
    assert locale("en", "Nowhere/Atall").zone == "UTC"


@pytest.mark.parametrize(
    ("millionths", "currency", "english", "portuguese"),
    [
        (1_500_000_000, "EUR", "€1,500.00", "1 500,00 €"),
        (12_340, "EUR", "€0.01234", "0,01234 €"),
        # Currencies without decimals, and with three.
        (1_500_000_000, "UGX", "UGX1,500", "1 500 UGX"),
        (-1_500_250_000, "UGX", "-UGX1,500.25", "-1 500,25 UGX"),
        (1_500_000, "KWD", "KWD1.500", "1,500 KWD"),
    ],
)
def test_money_has_the_decimals_of_its_currency_or_more(
    millionths: int, currency: str, english: str, portuguese: str
) -> None:
    written = [locale(one).money(millionths, currency).replace("\u00a0", " ") for one in ("en", "pt")]
    assert written == [english, portuguese]


@pytest.mark.parametrize(("language", "identifier"), [("en", "en_GB"), ("pt", "pt_PT")])
def test_days_are_written_as_babel_writes_them(language: str, identifier: str) -> None:
    """That loads patterns for each of them, and takes ten times as long."""
    zone = ZoneInfo("America/Sao_Paulo")
    made, midday = locale(language, zone.key), clock.EPOCH + timedelta(days=20_000, hours=2, minutes=5)
    for number in range(0, 400, 9):
        at = midday + timedelta(days=number, seconds=number)
        day = date(2026, 1, 1) + timedelta(days=number)
        assert made.whole_day(day) == dates.format_date(day, "d MMM y", locale=identifier)
        for shown, pattern in ((made.moment(at), "d MMM y, HH:mm"), (made.instant(at), "d MMM y, HH:mm:ss.SSS")):
            assert shown == dates.format_datetime(at, pattern, tzinfo=zone, locale=identifier)
        assert made.day(at.astimezone(UTC)) == made.moment(at).partition(",")[0]


def test_names_sort_as_in_an_index() -> None:
    named = [locale("pt").country(code) for code in ("ZA", "AO", "AT", "ZM", "IN", "AF")]
    assert sorted(named, key=alphabetical) == ["Afeganistão", "África do Sul", "Angola", "Áustria", "Índia", "Zâmbia"]


def test_the_first_choice_of_a_filter_agrees_with_all_that_is_filtered() -> None:
    """In Portuguese `All` is feminine for messages; for a channel, a country and a period it is not."""
    assert catalogue("pt")["Any"] == "Qualquer"
    for path in PACKAGE.rglob("*.html"):
        assert '<option value="">{{ _("All")' not in path.read_text(), path


def test_a_status_has_the_gender_of_what_has_it() -> None:
    """In Portuguese a message is "Rejeitada", and a sender ID or a template "Rejeitado"."""
    made = environment([], Assets([]))
    shown = made.from_string("{{ word|status_name }} {{ word|sender_status }} {{ word|template_status }}")
    assert shown.render(word="rejected", locale=locale("pt")) == "Rejeitada Rejeitado Rejeitado"
    assert shown.render(word="rejected", locale=locale("en")) == "Rejected Rejected Rejected"


def test_a_sender_id_has_one_gender() -> None:
    """In Portuguese "o ID de remetente", in all texts."""
    feminine = re.compile(
        r"\b([aà]|da|na|[nd]?uma|n?esta|nenhuma|alguma)s? IDs? de remetente|de remetente \w+ad?as?\b", re.I
    )
    twins = [one for twin in catalogue("pt").values() for one in ((twin,) if isinstance(twin, str) else twin)]
    assert sum("de remetente" in one for one in twins) > 10
    assert [one for one in twins if feminine.search(one)] == []
