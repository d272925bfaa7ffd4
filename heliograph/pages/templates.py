"""Templates: Jinja2, escaping everything, refusing undefined names. Compiled templates are stored next to their
sources, like Python's bytecode; a process loads only those that are used.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import itertools
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime
from functools import cache
from pathlib import Path
from typing import Any, Literal

import jinja2
from jinja2 import BytecodeCache, ChoiceLoader, Environment, FileSystemLoader, StrictUndefined, pass_context
from jinja2.bccache import Bucket
from jinja2.runtime import Context
from markupsafe import Markup, escape

from heliograph.audit.actions import ACTIONS
from heliograph.base import csv_files, phones
from heliograph.base.database.clock import iso
from heliograph.base.ids import uuid_in
from heliograph.base.sentences import OPTION
from heliograph.pages import languages, words
from heliograph.pages.assets import Assets
from heliograph.pages.lists import ledgers
from heliograph.pages.pieces import rendering
from heliograph.why.words import Kind, why

FOLDER = Path(__file__).with_name("templates")

#: Maximum seconds for which rendering may block the event loop, and pieces of a page between two looks at the clock:
#: about one row of a list.
BREATH, PIECES = 0.003, 8

#: Substrings of User-Agent headers, more specific ones first.
_BROWSERS = (
    ("Edg/", "Edge"),
    ("OPR/", "Opera"),
    ("Firefox/", "Firefox"),
    ("HeadlessChrome/", "Chromium"),
    ("Chrome/", "Chrome"),
    ("Safari/", "Safari"),
)
_SYSTEMS = (
    ("Android", "Android"),
    ("iPhone", "iPhone"),
    ("iPad", "iPad"),
    ("Windows", "Windows"),
    ("Mac OS X", "macOS"),
    ("Linux", "Linux"),
)


class Compiled(BytecodeCache):
    """Compiled templates in `__pycache__` next to the sources: compiling all of them takes 2 s of a web process's
    start. If the directory is read-only, or Python is told not to write, each process compiles for itself."""

    def __init__(self) -> None:
        #: What determines the compiled code in addition to a template's text.
        ours = b"".join(Path(file).read_bytes() for file in (__file__, rendering.__file__))
        self._of = f"{jinja2.__version__} {hashlib.sha256(ours).hexdigest()}"

    def get_cache_key(self, name: str, filename: str | None = None) -> str:
        """Its path."""
        assert filename is not None
        template = Path(filename)
        return str(template.parent / "__pycache__" / f"{template.name}.{sys.implementation.cache_tag}")

    def get_source_checksum(self, source: str) -> str:
        return hashlib.sha256(f"{self._of} {source}".encode()).hexdigest()

    def has(self, template: str) -> bool:
        """True if there is compiled code of a template; whether it is up to date is checked on loading."""
        return Path(self.get_cache_key(template, template)).exists()

    def load_bytecode(self, bucket: Bucket) -> None:
        try:
            bucket.bytecode_from_string(Path(bucket.key).read_bytes())
        except Exception:  # missing, unreadable, or truncated by a power failure: it is compiled again
            bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        if sys.dont_write_bytecode:
            return
        made = Path(bucket.key)
        part = made.with_name(f"{made.name}.{os.getpid()}")
        with contextlib.suppress(OSError):
            made.parent.mkdir(exist_ok=True)
            try:
                part.write_bytes(bucket.bytecode_to_string())
                part.replace(made)  # atomic, so that nobody reads half of it
            finally:
                part.unlink(missing_ok=True)


class _Environment(Environment):
    code_generator_class = rendering.Generator
    context_class = rendering.Running


def environment(folders: Sequence[Path], assets: Assets) -> Environment:
    """An environment with all templates compiled, so that no request waits for the compiler. None is loaded: all of
    them take 0.3 s and 7 MB, and a process that accepts messages may never show a page.

    `folders`: those of the screens; the kit's own is searched last.
    """
    compiled = Compiled()
    made = _Environment(
        loader=ChoiceLoader([FileSystemLoader(folder) for folder in (*folders, FOLDER)]),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,
        bytecode_cache=compiled,
        cache_size=-1,
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=["jinja2.ext.i18n"],
    )
    made.install_gettext_callables(_gettext, _ngettext, newstyle=True)  # type: ignore[attr-defined]
    made.globals["_"] = _text(made.globals["gettext"])
    made.globals["ngettext"] = _counted(made.globals["ngettext"])
    made.globals["count_label"] = _count_label
    made.globals["asset"] = assets.address
    made.filters |= {
        "number": _number,
        "moment": _moment,
        "interval": _interval,
        "instant": _instant,
        "clock": _clock,
        "ago": _ago,
        "date": _date,
        "month": _month,
        "duration": _duration,
        "sentence": _sentence,
        "commands": commands,
        "short": short,
        "brief": brief,
        "tail": tail,
        "quoted": csv_files.quoted,
        "iso": iso,
        "export_kind": _named(words.EXPORT_KINDS),
        "export_state": _named(words.EXPORT_STATES),
        "change_state": _named({**words.EXPORT_STATES, **words.CHANGE_STATES}),
        "role_name": _named(words.ROLES),
        "profile_name": _named(words.PROFILES),
        "work_name": _named(words.WORK),
        "author_name": _named(words.AUTHORS),
        "action_name": _named(ACTIONS),
        "organization_state": _named(words.ORGANIZATION_STATES),
        "ledger_reason": _ledger_reason,
        "mail_reason": _named(words.MAIL_REASONS),
        "campaign_status": _named(words.CAMPAIGN_STATUSES),
        "status_name": _named(words.STATUSES),
        "sender_status": _named(words.SENDER_STATUSES),
        "result_name": _named(words.RESULTS),
        "replay_name": _named(words.REPLAYS),
        "device": device,
        "mode_name": _named(words.MODES),
        "outcome_name": _named(words.OUTCOMES),
        "whatsapp_outcome_name": _named(words.WHATSAPP_OUTCOMES),
        "content_name": _named(words.CONTENTS, otherwise=words.CONTENTS["unknown"]),
        "slot_name": _named(words.SLOTS),
        "category_name": _named(words.CATEGORIES),
        "quality_name": _named(words.QUALITIES),
        "template_status": _named(words.TEMPLATE_STATUSES),
        "template_meaning": _named(words.TEMPLATE_MEANINGS),
        "rejection": _named(words.REJECTIONS),
        "connection_name": _named(words.CONNECTIONS),
        "credential_name": _named(words.CREDENTIALS),
        "keyword_name": _named(words.KEYWORDS),
        "spaced": phones.spaced,
        "country_name": _country,
        "country_of": phones.country,
        "why": _why,
    }
    for folder in (*folders, FOLDER):
        for file in folder.rglob("*.html"):
            if not compiled.has(str(file)):
                made.get_template(file.relative_to(folder).as_posix())
    return made


async def render(templates: Environment, name: str, values: Mapping[str, Any]) -> str:
    """A page's text. Yields to the event loop in between, so that messages being accepted meanwhile wait for a piece of
    a page, not for all of it."""
    made: list[str] = []
    pieces = templates.get_template(name).generate(values)
    began = time.perf_counter()
    while some := list(itertools.islice(pieces, PIECES)):
        made += some
        if time.perf_counter() - began > BREATH:
            await asyncio.sleep(0)
            began = time.perf_counter()
    # Rendering leaves reference cycles. Left to the garbage collector, which a web process runs late
    # (`serve.GC_THRESHOLD`), those of several pages together would block the loop for as long as all of them take.
    gc.collect(0)
    return "".join(made)


def short(id: object) -> str:
    """An id as shown: its beginning and its end."""
    text = str(id)
    return f"{text[:8]}…{text[-4:]}"


def brief(id: str) -> str:
    """What identifies an object: an id as shown, anything else as it is."""
    return short(id) if uuid_in(id) is not None else id


def tail(phone: str) -> str:
    """A phone number for those who may not see it: its last four digits."""
    return f"••• {phone[-4:]}"


def device(agent: str) -> str:
    """A User-Agent header in two words: `Firefox, Linux`."""
    browser = next((name for sign, name in _BROWSERS if sign in agent), agent.partition("/")[0][:40] or "?")
    system = next((name for sign, name in _SYSTEMS if sign in agent), "")
    return f"{browser}, {system}" if system else browser


@pass_context
def _country(context: Context, region: str) -> str:
    found: str = context["locale"].country(region)
    return found


@pass_context
def _ledger_reason(context: Context, stored: str) -> str:
    return ledgers.reason(context["locale"], stored)


@pass_context
def _why(
    context: Context, code: str, kind: Kind, part: Literal["customer", "cause", "remedy", "address"] = "customer"
) -> str:
    """What a status or failure means to a customer, or where to read more; empty for a code without an explanation."""
    found = why(kind, code)
    if found is not None and part == "address":
        return found.address
    return "" if found is None else str(getattr(found.words(context["locale"].language), part))


def _named(known: Mapping[str, str], *, otherwise: str | None = None) -> Callable[[Context, str], str]:
    """`otherwise`: the name of values that are not known; None: themselves."""

    @pass_context
    def name(context: Context, value: str) -> str:
        found: str = context["locale"].text(known.get(value, otherwise or value))
        return found

    return name


def _text(long: Any) -> Callable[..., str]:
    """`_` of templates: a text without values is looked up ready-made; for others, `long` is the extension's own."""

    @pass_context
    def text(context: Context, english: str, **values: Any) -> str:
        if not values and (found := _ready(context["locale"].language).get(english)) is not None:
            return found
        said: str = long(context, english, **values)
        return said

    setattr(text, rendering.OUTER, True)
    return text


# A table has hundreds of texts.
@cache
def _ready(language: str) -> dict[str, Markup]:
    """Our texts without placeholders, as written into a page."""
    locale, found = languages.locale(language), {}
    for english in languages.known():
        with contextlib.suppress(KeyError, TypeError, ValueError):
            found[english] = Markup(locale.text(english)) % {}  # noqa: S704 # our own text
    return found


@pass_context
def _gettext(context: Context, text: str) -> str:
    """A text of a template. The result is treated as markup into which values are filled, so a text that is not ours is
    escaped, and its placeholders are disabled."""
    if text not in languages.known():
        return escape(text).replace("%", "%%")
    found: str = context["locale"].text(text)
    return found


@pass_context
def _ngettext(context: Context, one: str, many: str, number: int) -> str:
    chosen: str = context["locale"].plural(one, many, number)
    return chosen


@pass_context
def _count_label(context: Context, status: str) -> str:
    label: str = context["locale"].count_label(status)
    return label


def _counted(ngettext: Any) -> Callable[..., str]:
    """`ngettext` with its number in the language's notation, like all others on the page."""

    @pass_context
    def counted(context: Context, one: str, many: str, number: int, **values: object) -> str:
        said: str = ngettext(context, one, many, number, **{"num": context["locale"].number(number)} | values)
        return said

    return counted


@pass_context
def _number(context: Context, value: float, digits: int = 0) -> str:
    found: str = context["locale"].number(value, digits)
    return found


def commands(text: str) -> Markup:
    """A text in which whatever is between backticks, as in Markdown, becomes code. Lines do not end within an option of
    a command, such as behind one of the hyphens of `--org`."""
    parts = text.split("`")
    if len(parts) % 2 == 0:  # an unpaired backtick is an ordinary character
        return escape(text)
    return Markup().join(
        Markup("<code>{}</code>").format(_options(one)) if n % 2 else one for n, one in enumerate(parts)
    )


def _options(command: str) -> Markup:
    whole = Markup('<span class="nowrap">{}</span>')
    parts = OPTION.split(command)
    return Markup().join(whole.format(one) if n % 2 else escape(one) for n, one in enumerate(parts))


@pass_context
def _sentence(context: Context, sentence: str) -> str:
    found: str = context["locale"].sentence(sentence)
    return found


@pass_context
def _duration(context: Context, seconds: float) -> str:
    found: str = context["locale"].duration(seconds)
    return found


@pass_context
def _moment(context: Context, at: datetime) -> Markup:
    return _time(context, at, context["locale"].moment(at))


@pass_context
def _interval(context: Context, at: datetime) -> Markup:
    return _time(context, at, context["locale"].interval(at))


@pass_context
def _instant(context: Context, at: datetime) -> Markup:
    return _time(context, at, context["locale"].instant(at))


@pass_context
def _clock(context: Context, at: datetime) -> Markup:
    return _time(context, at, context["locale"].clock(at))


@pass_context
def _date(context: Context, day: date) -> str:
    found: str = context["locale"].whole_day(day)
    return found


@pass_context
def _month(context: Context, day: date) -> str:
    found: str = context["locale"].month(day)
    return found


@pass_context
def _ago(context: Context, at: datetime) -> Markup:
    return _time(context, at, context["locale"].ago(at))


def _time(context: Context, at: datetime, shown: str) -> Markup:
    """A time as shown, with the exact time on hover and for copying."""
    # Digits and the name of a zone need no escaping, and Markup's formatting takes longer than everything in it.
    markup = f'<time datetime="{iso(at)}" title="{context["locale"].exact(at)}">{escape(shown)}</time>'
    return Markup(markup)  # noqa: S704 # see above
