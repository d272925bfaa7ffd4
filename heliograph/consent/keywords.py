"""Keywords that people send to stop messages, to resume them, or to ask for help. Pure.

Each language of the countries we serve has its own. A word as clear as STOP counts everywhere; a word that means
something else in another language counts only where its own language is spoken; and a word that is ambiguous even there
(SAIR, BAJA) is `doubtful`: the caller has to know what the person was answering.

The rule nobody may break: only a message that consists of a keyword counts, however often it repeats it, except for a
few words of courtesy around a clear one, a word for advertising, or the name of the organization that is meant. "Stop
by tomorrow" stops nothing, and nobody is unsubscribed by something they did not say.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Collection, Iterable
from typing import Literal

import msgspec

Keyword = Literal["stop", "start", "help", "doubtful"]

#: The keywords required by North American carriers, including REVOKE and OPTOUT since 2025.
STOP = frozenset({"stop", "stopall", "unsubscribe", "cancel", "end", "quit", "revoke", "optout"})
START = frozenset({"start", "unstop", "yes"})
#: Means START only from somebody who has opted out: otherwise it is an answer to something else.
ONLY_OPTED_OUT = frozenset({"yes"})
HELP = frozenset({"help", "info"})
#: A longer text is not a keyword, and not worth folding.
LONGEST = 100
#: Words around a clear one that do not change its meaning, and how many there may be.
COURTESY = frozenset(
    {
        *("please", "pls", "plz", "now", "thanks", "thank", "you", "sms", "texts", "messages", "texting", "me", "it"),
        *("this", "all", "por", "favor", "agora", "obrigado", "obrigada", "mensagens", "gracias", "ahora", "mensajes"),
        *("sending", "messaging"),
        *("svp", "les", "merci", "maintenant", "tafadhali", "sasa", "asante", "bitte", "danke"),
        # As folded: "from your kindness", "messages", "thanks".
        *("من", "فضلك", "الرسايل", "رسايل", "شكرا"),
    }
)
MOST_COURTESY = 3
#: Words for advertising. Next to a clear word, they ask to stop it: "Stop promotions", in the template's language, is
#: the button that Meta offers for marketing templates.
PROMOTIONS = frozenset({"promotions", "promotion", "promotional", "promos", "promo", "marketing", "ads"})
#: Articles, which people write before such a word, and which are ignored only with one.
ARTICLES = frozenset({"the", "as", "os", "a", "das", "dos", "de", "les", "la", "des", "las", "los", "die"})


class Language(msgspec.Struct, frozen=True):
    """The keywords of one language, folded, and the countries (ISO) where it is spoken."""

    countries: frozenset[str]
    stop: frozenset[str] = frozenset()
    #: As clear as STOP where the language is spoken, but another word elsewhere.
    stop_here: frozenset[str] = frozenset()
    #: Count where the language is spoken, and only in reply to a campaign.
    doubtful: frozenset[str] = frozenset()
    start: frozenset[str] = frozenset()
    help: frozenset[str] = frozenset()
    #: As `PROMOTIONS`.
    promotions: frozenset[str] = frozenset()


def fold(text: str) -> str:
    """Normalize a text for comparison: compatibility forms, case, accents, spaces and surrounding symbols are ignored.

    Surrounding symbols are everything but letters, digits and their marks: punctuation, quotes, emoji. In Arabic, vowel
    signs, tatweel and the forms of alef are ignored as well; in Indian scripts, the signs count as letters.
    """
    apart = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text).casefold())
    shown = []
    for one in unicodedata.normalize("NFKC", "".join(one for one in apart if not _is_mark(one))):
        kind = unicodedata.category(one)
        if kind != "Cf":  # joiners and direction marks are invisible
            shown.append(" " if kind == "Pd" else one)
    words = " ".join("".join(shown).split())
    start, end = 0, len(words)
    while start < end and not _is_word(words[start]):
        start += 1
    while end > start and not _is_word(words[end - 1]):
        end -= 1
    return unicodedata.normalize("NFKC", words[start:end].casefold()).translate(_ARABIC)


def _is_word(character: str) -> bool:
    return unicodedata.category(character)[0] in "LNM"


def _is_mark(character: str) -> bool:
    """An accent of the Latin, Greek or Cyrillic script, an Arabic sign that is not a letter, or a sign of an emoji: how
    it is shown (the last code point of ❤️), or the key around it (1️⃣)."""
    return (
        "\u0300" <= character <= "\u036f"
        or "\u064b" <= character <= "\u0655"
        or "\ufe00" <= character <= "\ufe0f"
        or character in "\u0640\u0670\u20e3"
    )


_ARABIC = str.maketrans("أإآٱ", "اااا")


def _words(text: str) -> frozenset[str]:
    return frozenset(map(fold, text.split()))


def _countries(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGES = {
    "pt": Language(
        _countries("PT BR MZ AO CV GW ST TL MO"),
        stop=_words("parar pare remover interromper descadastrar desinscrever"),
        doubtful=_words("sair cancelar"),
        start=_words("iniciar começar retomar"),
        help=_words("ajuda"),
        promotions=_words("promoções promoção promocional promocionais publicidade"),
    ),
    "fr": Language(
        _countries(
            "FR BE CH LU MC CI SN ML BF NE TG BJ CM GA CG CD GN MG DJ KM CF TD MA DZ TN RW BI HT RE GP MQ NC PF"
        ),
        stop=_words("arrêt arrêter désabonner désinscrire"),
        doubtful=_words("fin annuler td"),
        start=_words("démarrer commencer reprendre"),
        help=_words("aide"),
        promotions=_words("promotionnel promotionnels promotionnelles publicité publicités"),
    ),
    "es": Language(
        _countries("ES MX AR CO PE CL VE EC GT CU BO HN PY SV NI CR PA UY GQ US"),
        stop=_words("parar detener"),
        doubtful=_words("baja alto cancelar salir"),
        start=_words("iniciar comenzar reanudar"),
        help=_words("ayuda"),
        promotions=_words("promociones promoción promocional promocionales publicidad"),
    ),
    "sw": Language(
        _countries("TZ KE UG RW BI CD KM"),
        stop=_words("simamisha ondoa komesha"),
        stop_here=_words("acha"),
        doubtful=_words("toka"),
        start=_words("anza endelea"),
        help=_words("msaada"),
        promotions=_words("matangazo promosheni"),
    ),
    "de": Language(
        _countries("DE AT CH LI LU"),
        stop=_words("stopp stoppen abmelden abbestellen"),
        doubtful=_words("ende aus"),
        start=_words("starten"),
        help=_words("hilfe"),
        promotions=_words("werbung werbeaktionen werbenachrichten"),
    ),
    "id": Language(
        _countries("ID"),
        stop=_words("berhenti hentikan"),
        doubtful=_words("batal keluar"),
        start=_words("mulai"),
        help=_words("bantuan"),
        promotions=_words("promosi iklan"),
    ),
    "ar": Language(
        _countries("EG MA DZ TN LY SD MR SA AE QA KW BH OM YE JO LB SY IQ PS SO DJ KM TD"),
        # The last is "cancel the subscription".
        stop=_words("توقف قف أوقف إيقاف إلغاءالاشتراك"),
        doubtful=_words("إلغاء"),
        start=_words("ابدأ"),
        help=_words("مساعدة"),
        promotions=_words("العروض الترويجية"),
    ),
    "hi": Language(
        _countries("IN"),
        stop=_words("रोकें रोको"),
        doubtful=_words("बंद"),
        start=_words("शुरू"),
        help=_words("मदद"),
        promotions=_words("प्रचार प्रमोशन"),
    ),
    # With Ukrainian. The first word is STOP in Bulgarian and Serbian too.
    "ru": Language(
        _countries("RU BY KZ KG UA"),
        stop=_words("стоп отписаться отписка відписатися відписка"),
        doubtful=_words("отмена отменить скасувати"),
        start=_words("старт"),
        help=_words("помощь допомога"),
    ),
    "zh": Language(
        _countries("CN HK MO TW SG"),
        stop=_words("退订 退訂 取消订阅 取消訂閱"),
        # What advertising in China asks for, after 退订 in Latin letters.
        stop_here=_words("td"),
        doubtful=_words("停止 取消"),
        start=_words("开始 開始"),
        help=_words("帮助 幫助"),
    ),
    "el": Language(
        _countries("GR CY"),
        stop=_words("στοπ διακοπή"),
        doubtful=_words("διαγραφή ακύρωση"),
        start=_words("έναρξη"),
        help=_words("βοήθεια"),
    ),
    "tr": Language(
        _countries("TR"),
        stop=_words("durdur"),
        # "Stop", and the refusal that its law on commercial messages is about; elsewhere, a hard thing and a colour.
        stop_here=_words("dur ret red"),
        doubtful=_words("iptal"),
        start=_words("başlat"),
        # With either i: capitals are written without a thought for which it is.
        help=_words("yardım yardim"),
    ),
    "he": Language(
        _countries("IL"),
        stop=_words("הסר"),
        doubtful=_words("ביטול"),
        start=_words("התחל"),
        help=_words("עזרה"),
    ),
}

_STOP = STOP.union(*(language.stop for language in LANGUAGES.values()))
_START = START.union(*(language.start for language in LANGUAGES.values()))
_HELP = HELP.union(*(language.help for language in LANGUAGES.values()))
_PROMOTIONS = PROMOTIONS.union(*(language.promotions for language in LANGUAGES.values()))


def fold_name(name: str) -> str:
    """Normalize a name for comparison: as `fold`, and without spaces and dashes."""
    return "".join(map(fold, fold(name).split(" ")))


def find(
    text: str,
    *,
    additions: Collection[str] = (),
    countries: Iterable[str] = (),
    names: Collection[str] = (),
    others: Collection[str] = (),
) -> tuple[Keyword, str] | None:
    """What the text asks for, and the keyword, folded; None: the text is not a keyword.

    `additions`: an organization's own words for STOP, folded. `names`: its names, by `fold_name`: "STOP ACME" concerns
    Acme and no other organization. `others`: the names of organizations that share the number with it. `countries`:
    those whose languages the person may write in. "doubtful" means STOP in reply to a campaign, and a question
    otherwise.
    """
    if len(text) > LONGEST:
        return None
    word = fold(text)
    if not word:  # only symbols
        return None
    spoken = [language for language in LANGUAGES.values() if not language.countries.isdisjoint(countries)]
    words = [fold(one) for one in word.split(" ")]  # without symbols around each
    # "OPT OUT" and "STOP ALL" are written with a space as often as without.
    forms = [word, word.replace(" ", "", 1)] if len(words) == 2 else [word]
    if len(set(words)) == 1:  # repeated
        forms.append(words[0])
    for one in forms:
        if one in _STOP or any(one in language.stop_here for language in spoken):
            return "stop", one
        if one in _START:
            return "start", one
        if one in _HELP:
            return "help", one
        if one in additions:
            return "stop", one
        if any(one in language.doubtful for language in spoken):
            return "doubtful", one
    if (clear := _clear(words) or _clear(_apart(word))) is not None:
        return "stop", clear
    # Names come first, as one may be a word for advertising: on a shared number, "STOP Marketing" then stops only its
    # owner's messages.
    directed = _directed(words) if names or others else []
    for keyword, name in directed:
        if name in names:
            return "stop", keyword
    if any(name in others for _, name in directed) or _PROMOTIONS.isdisjoint(words):
        return None
    clear = _clear([one for one in words if one not in _PROMOTIONS and one not in ARTICLES])
    return None if clear is None else ("stop", clear)


def _apart(text: str) -> list[str]:
    """The words of a text in which symbols may stand for spaces: "stop,please"."""
    return "".join(one if _is_word(one) else " " for one in text).split()


def _clear(words: list[str]) -> str | None:
    """The first clear word, if there are only others and a few words of courtesy around it: "STOP/PARAR"."""
    asked = [one for one in words if one and one not in COURTESY]
    fits = asked and len(words) - len(asked) <= MOST_COURTESY and set(asked) <= _STOP - _LOOSE
    return asked[0] if fits else None


def is_directed(text: str) -> bool:
    """Whether it is a clear word with something that could be a name before or after it."""
    return len(text) <= LONGEST and bool(_directed([fold(one) for one in fold(text).split(" ")]))


def _directed(words: list[str]) -> list[tuple[str, str]]:
    """The clear word that a text begins or ends with, and the rest as a name, with and without words of courtesy and of
    advertising, and with and without a joining word ("STOP au 36180")."""
    found = []
    for word, rest in ((words[0], words[1:]), (words[-1], words[:-1])):
        if rest and word in _STOP - _LOOSE:
            without = rest[1:] if rest[0] in _JOINING else rest
            for some in (rest, without):
                found += [(word, "".join(_without(one, some))) for one in (_NONE, COURTESY, COURTESY | _PROMOTIONS)]
    return [one for one in found if one[1]]


def _without(ignored: frozenset[str], words: list[str]) -> list[str]:
    asked = [one for one in words if one not in ignored]
    return asked if len(words) - len(asked) <= MOST_COURTESY else []


_NONE: frozenset[str] = frozenset()
#: Everyday words: combined with others they mean something else ("end it now").
_LOOSE = frozenset({"cancel", "end", "quit"})
#: Between the word and a name or number: French terms ask for "STOP au 36180".
_JOINING = frozenset({"au", "to", "from", "de"})
