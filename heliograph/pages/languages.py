"""Languages: catalogs of texts, and numbers and times in the reader's notation.

Texts are written in English where they are used, and looked up here. The rule nobody may break: a catalog is
complete, so that no page mixes languages; a test extracts every text and checks for its translation.
"""

from __future__ import annotations

import re
import unicodedata
from datetime import date, datetime, timedelta
from decimal import Decimal
from functools import cache, lru_cache
from pathlib import Path
from zoneinfo import ZoneInfo, available_timezones

from babel import Locale, dates, numbers
from babel.messages.pofile import read_po

from heliograph.base.database import clock
from heliograph.base.sentences import Sentence, Value

#: Context of translations of statuses that label a count: many have that status.
COUNT = "count\x04"
#: Contexts of statuses whose translations have the gender of what has them: a message's is another.
SENDER, TEMPLATE = "sender\x04", "template\x04"
#: Context of reasons in ledgers.
LEDGER = "ledger\x04"
#: Code and native name of each language; the first is that of the texts themselves.
LANGUAGES = {"en": "English", "pt": "Português"}
DEFAULT = "en"
FOLDER = Path(__file__).with_name("locale")

_LOCALES = {"en": "en_GB", "pt": "pt_PT"}
_OFFERED = re.compile(r"([a-zA-Z]{1,8})(?:-[a-zA-Z0-9-]{1,32})?(?:;q=([0-9.]{1,6}))?")


@cache
def catalogue(language: str) -> dict[str, str | tuple[str, ...]]:
    """Translations by English text; plural forms are a tuple. Empty for English."""
    if language == DEFAULT:
        return {}
    return {text: twin for path in files(language) for text, twin in read(path, language).items()}


def learn() -> None:
    """Load catalogs and time zones, which take 0.1 s or more, so that the first page and concurrent requests do not
    wait for them."""
    known()
    for language in LANGUAGES:
        locale(language)


@cache
def known() -> frozenset[str]:
    """All of our texts, in English."""
    return frozenset(text for language in LANGUAGES for text in catalogue(language))


def files(language: str) -> list[Path]:
    """The files of a catalog: one per package, and one of texts that several packages share."""
    return sorted((FOLDER / language).glob("*.po"))


def read(path: Path, language: str) -> dict[str, str | tuple[str, ...]]:
    """The texts of one file, as in `catalogue`; a context and \\x04 precede a text that has one."""
    with path.open("rb") as file:
        messages = read_po(file, locale=language)
    found: dict[str, str | tuple[str, ...]] = {}
    for message in messages:
        if message.id and message.string:
            key = message.id[0] if isinstance(message.id, tuple | list) else message.id
            key = f"{message.context}\x04{key}" if message.context else key
            found[key] = tuple(message.string) if isinstance(message.string, tuple | list) else message.string
    return found


class ReaderLocale:
    """A page's texts and formats for one reader: in a language, with times in a zone."""

    def __init__(self, language: str, zone: str | None = None) -> None:
        self.language = language if language in LANGUAGES else DEFAULT
        self.zone = zone if zone in zones() else "UTC"
        self._texts = catalogue(self.language)
        self._locale = Locale.parse(_LOCALES[self.language])
        self._zone = ZoneInfo(self.zone)

    def text(self, english: str, **values: object) -> str:
        """A text in the reader's language, with `%(name)s` filled in. It may begin with a context."""
        known = self._texts.get(english) or english.rpartition("\x04")[2]
        found = known if isinstance(known, str) else known[0]
        return found % values if values else found

    def count_label(self, english: str) -> str:
        """A status as the label of a count: Portuguese has a plural for it, and English the same word."""
        found = self._texts.get(COUNT + english)
        return found if isinstance(found, str) else self.text(english)

    def sentence(self, sentence: str) -> str:
        """A sentence for operators in the reader's language; anything else, and quoted words, are unchanged."""
        if not isinstance(sentence, Sentence) or not sentence.english:
            return sentence
        return self.text(sentence.english, **{name: self._value(value) for name, value in sentence.values.items()})

    def error(self, message: str) -> str:
        """The message of an invalid field: a Sentence, or a text that has a translation."""
        return self.sentence(message) if isinstance(message, Sentence) else self.text(message)

    def _value(self, value: Value) -> str:
        if isinstance(value, str):
            return self.sentence(value)
        if isinstance(value, datetime):
            return self.moment(value)
        return self.number(value, len(str(value).partition(".")[2]))

    def plural(self, one: str, many: str, number: int) -> str:
        """`one` or `many`, depending on the number, with `%(num)s` still to be filled in."""
        known = self._texts.get(one)
        forms = known if isinstance(known, tuple) else (one, many)
        # English and Portuguese alike: one thing is singular, everything else plural.
        return forms[0 if number == 1 else -1]

    def count(self, one: str, many: str, number: int, **values: object) -> str:
        """Like `plural`, with the number and `values` filled in."""
        return self.plural(one, many, number) % {"num": self.number(number), **values}

    def number(self, value: float, digits: int = 0) -> str:
        """A number with the separators of the language."""
        return _number(self.language, value, digits)

    def money(self, millionths: int, currency: str) -> str:
        """An amount with its currency: `€12.50`, with as many decimal places as needed, at least the currency's."""
        amount = Decimal(millionths) / 1_000_000
        pattern = _money(self.language, numbers.get_currency_precision(currency))
        return pattern.apply(amount, self._locale, currency=currency, currency_digits=False)

    def moment(self, at: datetime) -> str:
        """A date and time: `12 May 2026, 10:02`."""
        return f"{self.day(at)}, {self.time(at)}"

    def interval(self, at: datetime) -> str:
        """The moment at which an interval begins, or something is due. When clocks go back, an hour is shown twice, so
        its two have their offsets: `25 Oct 2026, 01:00 +01:00`."""
        local = at.astimezone(self._zone)
        is_twice = local.utcoffset() != local.replace(fold=1 - local.fold).utcoffset()
        return f"{self.moment(at)} {local.isoformat()[-6:]}" if is_twice else self.moment(at)

    def instant(self, at: datetime) -> str:
        """A date and time in milliseconds, for events within the same second: `12 May 2026, 10:02:41.123`."""
        local = at.astimezone(self._zone)
        return f"{_day(self.language, local.date())}, {local.time().isoformat('milliseconds')}"

    def clock(self, at: datetime) -> str:
        """The same on a day that was named already: `10:02:41.123`."""
        return at.astimezone(self._zone).time().isoformat("milliseconds")

    def exact(self, at: datetime) -> str:
        """A time in milliseconds, with the zone."""
        local = at.astimezone(self._zone).replace(tzinfo=None)
        return f"{local.isoformat(' ', 'milliseconds')} {self.zone}"

    def country(self, region: str) -> str:
        """The name of an ISO region; `001` stands for numbers without a country."""
        return self.text("No country") if region == "001" else self._locale.territories.get(region, region)

    def day(self, at: datetime) -> str:
        """`12 May 2026`."""
        return _day(self.language, at.astimezone(self._zone).date())

    def whole_day(self, day: date) -> str:
        """A calendar date: `12 May 2026`."""
        return _day(self.language, day)

    def month(self, day: date) -> str:
        """`May 2026`."""
        return dates.format_skeleton("yMMMM", day, locale=self._locale)

    def time(self, at: datetime) -> str:
        """`10:00`."""
        local = at.astimezone(self._zone)
        return f"{local.hour:02}:{local.minute:02}"

    def ago(self, at: datetime) -> str:
        """A relative time: `4 minutes ago`, or `in 4 minutes` for a future one. Beyond a day: the date."""
        gap = at - clock.now()
        if abs(gap.total_seconds()) < 10:
            return self.text("just now")
        if gap.total_seconds() < -86_400:
            return self.moment(at)
        return _gap(self.language, gap // timedelta(seconds=1))

    def duration(self, seconds: float) -> str:
        """A duration: `0.42 s`, `3.1 s`, `4 min 10 s`, `2 h 5 min`."""
        if seconds < 60:
            return f"{self.number(seconds, 2 if seconds < 1 else 1)} s"
        minutes, rest = divmod(round(seconds), 60)
        if minutes < 60:
            return f"{minutes} min {rest} s" if rest else f"{minutes} min"
        hours, minutes = divmod(minutes, 60)
        if hours < 48:
            return f"{hours} h {minutes} min" if minutes else f"{hours} h"
        return self.count("%(num)s day", "%(num)s days", hours // 24)


@cache
def _money(language: str, places: int) -> numbers.NumberPattern:
    standard = Locale.parse(_LOCALES[language]).currency_formats["standard"].pattern
    return numbers.parse_pattern(standard.replace("0.00", f"0.{'0' * places}{'#' * (6 - places)}"))


# A page of figures has hundreds, mostly the same small ones; formatting each takes 20 µs.
@lru_cache(4096)
def _number(language: str, value: float, digits: int) -> str:
    pattern = "#,##0" + ("." + "0" * digits if digits else "")
    return numbers.format_decimal(value, format=pattern, locale=_LOCALES[language])


# The same for times: a list shows some fifty times on a few days.
@lru_cache(4096)
def _day(language: str, day: date) -> str:
    return dates.format_date(day, "d MMM y", locale=_LOCALES[language])


@lru_cache(4096)
def _gap(language: str, seconds: int) -> str:
    return dates.format_timedelta(timedelta(seconds=seconds), add_direction=True, locale=_LOCALES[language])


@cache
def locale(language: str, zone: str | None = None) -> ReaderLocale:
    """The ReaderLocale for a language and zone."""
    return ReaderLocale(language, zone)


@cache
def zones() -> frozenset[str]:
    """Names of time zones that can be chosen."""
    return frozenset(available_timezones()) | {"UTC"}


def alphabetical(text: str) -> tuple[str, str]:
    """A key by which texts sort as in an index: `África` among those with A, not behind Z."""
    letters = unicodedata.normalize("NFD", text.casefold())
    return "".join(one for one in letters if not unicodedata.combining(one)), text


def accepted(header: str) -> str:
    """Our language that Accept-Language prefers (RFC 9110 §12.5.4)."""
    best, weight = DEFAULT, 0.0
    for part in header[:200].split(","):
        match = _OFFERED.fullmatch(part.strip().replace(" ", ""))
        if match is None or match[1].lower() not in LANGUAGES:
            continue
        try:
            wanted = float(match[2] or 1)
        except ValueError:
            continue
        if wanted > weight:
            best, weight = match[1].lower(), wanted
    return best
