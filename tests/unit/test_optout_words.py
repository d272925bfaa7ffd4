"""Keywords for opting out, opting in and help: what counts as one, and what must not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heliograph.consent import keywords
from heliograph.consent.keywords import find, fold


@pytest.mark.parametrize("word", ["STOP", "STOPALL", "UNSUBSCRIBE", "CANCEL", "END", "QUIT", "REVOKE", "OPTOUT"])
def test_the_standard_words_stop(word: str) -> None:
    for text in (word, word.lower(), word.title(), f"  {word}\r\n", f"“{word}!”", f"🛑 {word}. 🙏"):
        assert find(text) == ("stop", word.lower()), text


@pytest.mark.parametrize(
    ("text", "kind", "word"),
    [
        ("START", "start", "start"),
        ("unstop", "start", "unstop"),
        ("Yes.", "start", "yes"),
        ("HELP?", "help", "help"),
        ("info", "help", "info"),
        ("ＳＴＯＰ", "stop", "stop"),  # full width, as Japanese handsets write
        ("𝐒𝐓𝐎𝐏", "stop", "stop"),
        ("ST\u200bOP", "stop", "stop"),
        # With U+FE0F, which keyboards put after many emoji.
        ("STOP \u2764\ufe0f", "stop", "stop"),
        ("\u26d4\ufe0f STOP \u26d4\ufe0f", "stop", "stop"),
        ("Stop \u2764\ufe0f please", "stop", "stop"),
        ("STOP\ufe0e", "stop", "stop"),
        ("START \u2714\ufe0f", "start", "start"),
        ("\u202aSTOP\u202c", "stop", "stop"),
        ("(STOP)", "stop", "stop"),
        ("'stop'", "stop", "stop"),
        ("Opt out", "stop", "optout"),
        ("OPT-OUT", "stop", "optout"),
        ("stop   all", "stop", "stopall"),
        ("STOP\nALL", "stop", "stopall"),
        ("STOP STOP", "stop", "stop"),
        ("Stop! Stop!! STOP", "stop", "stop"),
        ("stop stop please", "stop", "stop"),
        ("STOP,PLEASE", "stop", "stop"),
        ("Stop.Thanks", "stop", "stop"),
        ("stop/stop", "stop", "stop"),
        ("cancel cancel", "stop", "cancel"),
        # As an invitation names them: "Responda STOP/PARAR".
        ("STOP/PARAR", "stop", "stop"),
        ("Parar, stop, por favor", "stop", "parar"),
        ("unsubscribe stop", "stop", "unsubscribe"),
        ("Descadastrar.", "stop", "descadastrar"),
        ("Desinscrever, por favor", "stop", "desinscrever"),
        ("Stop promotions", "stop", "stop"),  # the button of WhatsApp's marketing templates
        ("Parar promoções", "stop", "parar"),
        ("Arrêter les promotions", "stop", "arreter"),
        ("Interromper promoções", "stop", "interromper"),
        ("Parar as promoções, por favor", "stop", "parar"),
        ("Parar las promociones", "stop", "parar"),
        ("Detener promociones", "stop", "detener"),
        ("Detener", "stop", "detener"),
        ("Désabonner des promotions", "stop", "desabonner"),
        ("Werbung stoppen", "stop", "stoppen"),
        ("Hentikan promosi", "stop", "hentikan"),
        ("Simamisha matangazo", "stop", "simamisha"),
        ("إيقاف العروض الترويجية", "stop", "ايقاف"),
        ("प्रचार रोकें", "stop", "रोकें"),
        ("СТОП!", "stop", "стоп"),
        ("Отписаться", "stop", "отписаться"),
        ("відписатися", "stop", "відписатися"),
        ("退订", "stop", "退订"),
        ("退訂。", "stop", "退訂"),
        ("ΣΤΟΠ", "stop", "στοπ"),
        ("Διακοπή", "stop", "διακοπη"),
        ("ΒΟΗΘΕΙΑ", "help", "βοηθεια"),
        ("DURDUR", "stop", "durdur"),
        ("Yardım", "help", "yardım"),
        ("YARDIM", "help", "yardim"),
        ("הסר", "stop", "הסר"),
        ("Stop promotion", "stop", "stop"),
        ("Stop the promotional messages", "stop", "stop"),
        ("Stop sending me messages!", "stop", "stop"),
        ("stop messaging me", "stop", "stop"),
        ("STOP les SMS", "stop", "stop"),
        ("stop les messages", "stop", "stop"),
        ("HELP HELP", "help", "help"),
    ],
)
def test_forms_of_a_word(text: str, kind: str, word: str) -> None:
    assert find(text) == (kind, word)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "   ",
        "!?",
        "👍",
        "stop start",
        "stop/start",
        "stop cancel",
        "stop.by",
        "start please",
        "stop the stop",
        "non-stop",
        "stopped",
        "s t o p",
        "STOP1",
        "the end",
        "Don't stop",
        "please stop by tomorrow",
        "stop please please please please",
        "please end it",
        "promotions",
        "cancel promotions",
        "Stop promotions at 5",
        "promotions the",
        "stop the",
        "parar as",
        "Parar as obras",
        "Non-stop promotions",
        "baja la música",
        "SIM",
        "Yes please",
        "st op all",
        "STOP " * 100,
    ],
)
def test_what_is_no_word(text: str) -> None:
    assert find(text) is None


@pytest.mark.parametrize(
    ("own", "text"),
    [
        *(
            ("ARRÊT", "Arrêt !"),
            ("ARRÊT", "arre\u0302t"),
            ("SAIR", "sair"),
            ("no more", "No  more."),
            ("BAJA", "¡BAJA!"),
        ),
        *(("bye bye", "Bye bye!"), ("byebye", "bye bye"), ("bye", "bye bye bye")),
    ],
)
def test_an_organizations_own_words_stop_too(own: str, text: str) -> None:
    assert find(text, additions={fold(own)}) == ("stop", fold(own))


def test_a_name_comes_before_advertising_but_not_before_courtesy() -> None:
    assert find("STOP Marketing", names={"marketing"}, others={"acme"}) == ("stop", "stop")
    assert find("STOP Marketing", names={"acme"}, others={"marketing"}) is None
    assert find("STOP Marketing", names={"acme"}, others={"beta"}) == ("stop", "stop")
    assert find("STOP SMS", names={"acme"}, others={"sms"}) == ("stop", "stop")
    assert find("STOP Ads Express please", names={"adsexpress"}, others={"acme"}) == ("stop", "stop")
    assert find("STOP Ads Express please", names={"express"}, others={"acme"}) == ("stop", "stop")


def test_a_standard_word_cannot_be_taken_for_another() -> None:
    assert find("START", additions={"start", "help"}) == ("start", "start")
    assert find("help", additions={"start", "help"}) == ("help", "help")


def test_the_groups_are_apart() -> None:
    groups = [keywords.STOP, keywords.START, keywords.HELP]
    assert len(frozenset().union(*groups)) == sum(map(len, groups))
    assert keywords.ONLY_OPTED_OUT <= keywords.START
    assert all(fold(word) == word for group in groups for word in group)


@given(st.text(max_size=120))
def test_folding_is_stable_and_never_fails(text: str) -> None:
    once = fold(text)
    assert fold(once) == once
    assert find(text) in (None, *[(kind, word) for kind, word in [find(once) or ("", "")] if word])


@pytest.mark.parametrize(
    ("text", "country", "kind"),
    [
        ("Stop.", "MZ", "stop"),
        ("ARRÊT", "FR", "stop"),
        ("arrêter svp", "SN", "stop"),
        ("stop please", "US", "stop"),
        ("Por favor parar", "MZ", "stop"),
        ("Parar, por favor!", "MZ", "stop"),
        ("PARE!", "BR", "stop"),
        ("Simamisha", "TZ", "stop"),
        ("ACHA", "KE", "stop"),
        ("ACHA", "IN", None),
        ("CANCELAR", "BR", "doubtful"),
        ("SAIR", "MZ", "doubtful"),
        ("SAIR", "TZ", None),
        ("BAJA", "ES", "doubtful"),
        ("BAJA", "MZ", None),
        ("بند", "EG", None),
        ("توقّف", "EG", "stop"),
        ("أوقف", "MA", "stop"),
        ("اوقف", "MA", "stop"),
        ("إلغاء", "EG", "doubtful"),
        ("إيقاف", "EG", "stop"),
        ("ايقاف", "SA", "stop"),
        ("إيقاف الرسائل من فضلك", "MA", "stop"),
        ("إلغاء الاشتراك", "AE", "stop"),
        ("إلغاء الطلب", "AE", None),  # an order
        ("बंद", "IN", "doubtful"),
        ("रोको", "IN", "stop"),
        ("TD", "CN", "stop"),
        ("TD", "FR", "doubtful"),
        ("TD", "US", None),
        ("停止", "HK", "doubtful"),
        ("停止", "JP", None),
        ("RET", "TR", "stop"),
        ("Dur!", "TR", "stop"),
        ("dur", "FR", None),
        ("İPTAL", "TR", "doubtful"),
        ("Отмена", "KZ", "doubtful"),
        ("ΔΙΑΓΡΑΦΗ", "GR", "doubtful"),
        ("AJUDA", "AO", "help"),
        ("Aide ?", "CI", "help"),
        ("AYUDA", "CO", "help"),
        ("msaada", "KE", "help"),
        ("SIM", "MZ", None),
        ("Iniciar", "MZ", "start"),
        ("démarrer", "FR", "start"),
        ("anza", "TZ", "start"),
    ],
)
def test_the_languages_of_the_places_we_serve(text: str, country: str, kind: str | None) -> None:
    found = find(text, countries=(country,))
    assert (found[0] if found else None) == kind


def test_a_clear_word_counts_everywhere_and_a_word_of_one_language_only_where_it_is_spoken() -> None:
    for language in keywords.LANGUAGES.values():
        for word in language.stop:
            assert find(word) == ("stop", word)
        for word in language.stop_here | language.doubtful:
            assert find(word) is None
            assert find(word, countries=language.countries) is not None


def test_no_word_means_two_things_in_one_country() -> None:
    countries = {one for language in keywords.LANGUAGES.values() for one in language.countries}
    for country in countries:
        spoken = [language for language in keywords.LANGUAGES.values() if country in language.countries]
        stop = keywords.STOP.union(*(one.stop | one.stop_here for one in spoken))
        start = keywords.START.union(*(one.start for one in spoken))
        helps = keywords.HELP.union(*(one.help for one in spoken))
        assert not stop & start
        assert not stop & helps
        assert not start & helps
