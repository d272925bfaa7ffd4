"""Encoding and segmentation: the vectors, then what must hold for any text."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heliograph.base import naming
from heliograph.sms.accepting import encoding
from heliograph.sms.accepting.encoding import count, encode
from heliograph.suppliers.alphabets import segments
from heliograph.suppliers.alphabets.gsm7 import BASIC, EXTENSION
from heliograph.suppliers.smpp.codec.texts import decode

QUOTED = "“Hi” — it’s 5…"
ODD_BASICS = "@£$¥èéùìòÇØøÅåΔ_ΦΓΛΩΠΨΣΘΞÆæßÉ¤¡ÄÖÑÜ§¿äöñüà"
ZHE = "ж"

# (number, text, smart, encoding, units, units of each segment, octets of the only segment)
VECTORS = [
    (1, "", False, "gsm7", 0, [0], ""),
    (2, "Hello", False, "gsm7", 5, [5], "48656c6c6f"),
    (3, "a" * 160, False, "gsm7", 160, [160], None),
    (4, "a" * 161, False, "gsm7", 161, [153, 8], None),
    (5, "a" * 306, False, "gsm7", 306, [153, 153], None),
    (6, "a" * 307, False, "gsm7", 307, [153, 153, 1], None),
    (7, "a" * 459, False, "gsm7", 459, [153, 153, 153], None),
    (8, "a" * 460, False, "gsm7", 460, [153, 153, 153, 1], None),
    (9, "€", False, "gsm7", 2, [2], "1b65"),
    (10, "a" * 159 + "€", False, "gsm7", 161, [153, 8], None),
    (11, "a" * 158 + "€", False, "gsm7", 160, [160], None),
    (12, "a" * 152 + "€" + "b" * 152, False, "gsm7", 306, [152, 153, 1], None),
    (13, "a" * 152 + "€" + "b" * 151, False, "gsm7", 305, [152, 153], None),
    (14, "[" * 80, False, "gsm7", 160, [160], None),
    (15, "[" * 81, False, "gsm7", 162, [152, 10], None),
    (16, "[" * 152, False, "gsm7", 304, [152, 152], None),
    (17, "[" * 153, False, "gsm7", 306, [152, 152, 2], None),
    (18, "ç", False, "ucs2", 1, [1], "00e7"),
    (19, "Ç", False, "gsm7", 1, [1], "09"),
    (20, "`", False, "ucs2", 1, [1], "0060"),
    (21, "§", False, "gsm7", 1, [1], "5f"),
    (22, ODD_BASICS, False, "gsm7", 42, [42], None),
    (23, "\u0391", False, "ucs2", 1, [1], "0391"),
    (24, "Olá, São João", False, "ucs2", 13, [13], None),
    (25, ZHE * 70, False, "ucs2", 70, [70], None),
    (26, ZHE * 71, False, "ucs2", 71, [67, 4], None),
    (27, ZHE * 134, False, "ucs2", 134, [67, 67], None),
    (28, ZHE * 135, False, "ucs2", 135, [67, 67, 1], None),
    (29, "😀" * 35, False, "ucs2", 70, [70], None),
    (30, "😀" * 36, False, "ucs2", 72, [66, 6], None),
    (31, ZHE * 66 + "😀" + ZHE * 67, False, "ucs2", 135, [66, 67, 2], None),
    (32, ZHE * 66 + "😀" + ZHE * 66, False, "ucs2", 134, [66, 67, 1], None),
    (33, QUOTED, False, "ucs2", 14, [14], None),
    (34, QUOTED, True, "gsm7", 16, [16], "22486922202d206974277320352e2e2e"),
    (35, "“Hi” 😀", True, "ucs2", 7, [7], "201c00480069201d0020d83dde00"),
    (36, "e\u0301", False, "gsm7", 1, [1], "05"),
    (37, "a\tb", False, "ucs2", 3, [3], "006100090062"),
    (38, "a\tb", True, "gsm7", 3, [3], "612062"),
    (39, "👨\u200d👩\u200d👧", False, "ucs2", 8, [8], None),
    (40, "line1\r\nline2", False, "gsm7", 12, [12], "6c696e65310d0a6c696e6532"),
    (41, "a\xa0b", True, "gsm7", 3, [3], "612062"),
    (42, "\x1b", False, "ucs2", 1, [1], "001b"),
    (43, "1234567890" * 30 + "123456{", False, "gsm7", 308, [153, 153, 2], None),
]
WIDE = [("a" * 304, 2), ("a" * 305, 3), (ZHE * 132, 2), (ZHE * 133, 3)]  # number 44, with a 16-bit reference


def sizes(encoded: encoding.Encoded) -> list[int]:
    width = 1 if encoded.encoding == "gsm7" else 2
    return [len(segment) // width for segment in encoded.segments]


@pytest.mark.parametrize(
    ("text", "smart", "expected", "units", "segments", "octets"),
    [pytest.param(*vector[1:], id=str(vector[0])) for vector in VECTORS],
)
def test_vectors(text: str, smart: bool, expected: str, units: int, segments: list[int], octets: str | None) -> None:
    encoded = encode(text, smart=smart)
    assert (encoded.encoding, encoded.units, sizes(encoded)) == (expected, units, segments)
    assert count(text, smart=smart) == (expected, len(segments))
    if octets is not None:
        assert encoded.segments == (bytes.fromhex(octets),)


@pytest.mark.parametrize(("text", "segments"), WIDE)
def test_vector_44_sixteen_bit_reference(text: str, segments: int) -> None:
    assert len(encode(text, header=7).segments) == segments


def test_each_character_of_the_alphabet_has_its_own_code() -> None:
    for code, character in enumerate(BASIC):
        if code != 0x1B:
            assert encode(character).segments == (bytes((code,)),)
            assert decode(bytes((code,)), 0) == character
    for character, code in EXTENSION.items():
        assert encode(character).segments == (bytes((0x1B, code)),)
        assert decode(bytes((0x1B, code)), 0) == character


def test_nothing_else_is_in_the_alphabet() -> None:
    known = set(BASIC) - {"\x1b"} | set(EXTENSION)
    for point in range(0x3000):
        character = unicodedata.normalize("NFC", chr(point))
        allowed = all(one in known for one in character)
        assert (count(chr(point))[0] == "gsm7") is allowed, hex(point)


def test_text_says_what_is_sent() -> None:
    assert encode("e\u0301").text == "é"
    assert encode(QUOTED, smart=True).text == '"Hi" - it\'s 5...'
    assert encode("“Hi” 😀", smart=True).text == "“Hi” 😀"
    assert encode("\u200b", smart=True).text == "\u200b"  # nothing would be left


def test_smart_encoding_keeps_accents() -> None:
    assert encode("“São”", smart=True).text == "“São”"
    assert encode("“à la carte”", smart=True).encoding == "gsm7"


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Olá, São João", "Ola, Sao Joao"),
        ("“Não” é à toa…", '"Nao" é à toa...'),  # characters of GSM-7 stay as they are
        ("çÇãÕêÍú", "cÇaOeIu"),
        ("Łódź, Đorđe, cœur, ŞİŞLİ", "Lodz, Dorde, coeur, SISLI"),
        ("Thế giới x\u0302", "The gioi x"),
        ("1º nº 5", "1o no 5"),
    ],
)
def test_accents_are_left_out_where_that_makes_it_gsm7(text: str, plain: str) -> None:
    encoded = encode(text, accents=True)
    assert (encoded.encoding, encoded.text) == ("gsm7", plain)
    assert encode(text, smart=True, accents=True) == encoded
    assert count(text, accents=True) == ("gsm7", 1)


@pytest.mark.parametrize("text", ["Olá 😀", "Привет, João", "\u0301\u0302", "γλώσσα"])
def test_accents_stay_where_leaving_them_out_does_not_suffice(text: str) -> None:
    encoded = encode(text, accents=True)
    assert (encoded.encoding, encoded.text) == ("ucs2", unicodedata.normalize("NFC", text))


def test_what_look_alikes_suffice_for_keeps_its_accents() -> None:
    text = "“Àé” é"
    assert encode(text, accents=True).text == '"Aé" é'
    assert encode("“é”", accents=True) == encode("“é”", smart=True)


def test_a_portuguese_bill_is_halved() -> None:
    text = "Olá João, a sua encomenda chega amanhã às 9 horas. " * 3
    assert count(text, smart=True) == ("ucs2", 3)
    assert count(text, smart=True, accents=True) == ("gsm7", 1)


def test_emoji_sequences_stay_whole_where_it_costs_no_segment() -> None:
    family = "👨\u200d👩\u200d👧"
    encoded = encode(ZHE * 63 + family + ZHE * 20)
    assert [segment.decode("utf-16-be") for segment in encoded.segments] == [ZHE * 63, family + ZHE * 20]
    # 64 + 8 + 62 units fill two segments, but only if the sequence is split.
    assert sizes(encode(ZHE * 64 + family + ZHE * 62)) == [67, 67]
    assert sizes(encode(ZHE * 64 + family + ZHE * 63)) == [64, 67, 4]


@pytest.mark.parametrize("smart", [False, True])
def test_a_heap_of_marks_is_counted_as_it_is_sent(smart: bool) -> None:
    text = "x" + "\u0301\u0327" * 300
    sent = encode(text, smart=smart)
    assert (sent.encoding, len(sent.segments)) == count(text, smart=smart) == ("ucs2", 9)
    assert sent.text == text == encoding.repeated(text, "ucs2")
    assert count(text, smart=smart, accents=True) == ("gsm7", 1), "without its accents"


def test_lone_surrogate_is_an_error() -> None:
    with pytest.raises(UnicodeEncodeError):
        encode("a\ud83d")


CHARACTERS = st.one_of(
    st.sampled_from(list(BASIC.replace("\x1b", "") + "".join(EXTENSION))),
    st.sampled_from(["ж", "😀", "👨", "\u200d", "\u0301", "e", "’", "…", "\xa0", "\u200b", "\x1b", "\x01"]),
    st.characters(exclude_categories=["Cs"]),
)
GSM = st.sampled_from(list(BASIC.replace("\x1b", "") + "".join(EXTENSION)))


def texts(alphabet: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """Texts near the limits, which a simple strategy of this size would rarely reach."""
    return st.builds(
        lambda head, filler, times, tail: "".join(head) + filler * times + "".join(tail),
        st.lists(alphabet, max_size=20),
        alphabet,
        st.sampled_from([0, 1, 10, 30, 60, 64, 66, 67, 130, 150, 152, 153, 158, 300, 305]),
        st.lists(alphabet, max_size=20),
    )


@settings(max_examples=300, deadline=None)
@given(text=texts(CHARACTERS) | texts(GSM), smart=st.booleans(), accents=st.booleans(), header=st.sampled_from([6, 7]))
def test_properties(text: str, smart: bool, accents: bool, header: int) -> None:
    encoded = encode(text, smart=smart, accents=accents, header=header)
    whole = b"".join(encoded.segments)
    limit, part = (160, 159 - header) if encoded.encoding == "gsm7" else (70, 73 - header)

    # Within capacity, and no unnecessary segment.
    assert all(size <= (limit if len(encoded.segments) == 1 else part) for size in sizes(encoded))
    assert (len(encoded.segments) == 1) is (encoded.units <= limit)
    assert encoded.units == sum(sizes(encoded))

    # Nothing lost, nothing added; and NFC, unless smart encoding replaced something.
    if encoded.encoding == "gsm7":
        assert decode(whole, 0) == encoded.text
    else:
        assert whole.decode("utf-16-be") == encoded.text
    if not (smart or accents) or encoded.encoding == "ucs2":
        assert encoded.text == naming.in_nfc(text)

    # No pair is split: each segment is a text of its own.
    for segment in encoded.segments:
        if encoded.encoding == "gsm7":
            assert not segment.endswith(b"\x1b")
        else:
            segment.decode("utf-16-be")

    # Dispatch, which only knows the encoding, gets the same result.
    replaced = encoded.encoding == "gsm7"
    assert encode(text, smart=replaced, accents=replaced, header=header) == encoded

    # The fast path agrees.
    if header == 6:
        assert count(text, smart=smart, accents=accents) == (encoded.encoding, len(encoded.segments))


@settings(max_examples=200, deadline=None)
@given(text=texts(CHARACTERS))
def test_greedy_cut_equals_the_reference(text: str) -> None:
    """Character by character, slow but simple."""
    encoded = encode(text)
    if encoded.encoding == "gsm7":
        codes = {character: bytes((code,)) for code, character in enumerate(BASIC)}
        codes |= {character: bytes((0x1B, code)) for character, code in EXTENSION.items()}
        groups, single, part = [codes[one] for one in encoded.text], 160, 153
    else:
        groups, single, part = [one.encode("utf-16-be") for one in encoded.text], 140, 134
    parts = [b""]
    for group in groups:
        if len(parts[-1]) + len(group) > part:
            parts.append(b"")
        parts[-1] += group
    assert len(encoded.segments) == (1 if sum(map(len, groups)) <= single else len(parts))
    if len(encoded.segments) > 1 and encoded.encoding == "gsm7" and "\r\n" not in text:
        assert list(encoded.segments) == parts


@pytest.mark.parametrize(
    ("body", "data_coding", "text"),
    [
        (b"\x00\x01", 0x00, "@£"),
        (b"a\x1b\x1bb", 0x00, "a b"),  # reserved for a second extension table: shown as a space
        (b"a\x1bzb", 0x00, "azb"),
        (b"a\x1b", 0x00, "a"),
        (b"a\x05\x80", 0x00, "aé\ufffd"),
        (b"A`", 0x01, "A`"),
        ("Olá, João".encode("latin-1"), 0x01, "Olá, João"),
        ("Olá, João".encode(), 0x01, "Olá, João"),
        (b"5 \x80 \x93quoted\x94", 0x01, "5 € “quoted”"),
        (b"\x81\xe7", 0x01, "\x81ç"),
        (b"\xe7a", 0x03, "ça"),
        ("日本".encode("shift_jis"), 0x05, "日本"),
        ("Привет".encode("iso8859-5"), 0x06, "Привет"),
        ("שלום".encode("iso8859-8"), 0x07, "שלום"),
        ("ж😀".encode("utf-16-be"), 0x08, "ж😀"),
        (b"\x00a\xd8\x3d", 0x08, "a\ufffd"),
        (b"\x00a\x00\x00", 0x08, "a"),
        (b"\x00a\x00\x00\x00b", 0x08, "a\ufffdb"),
        ("日本".encode("iso2022_jp"), 0x0A, "日本"),
        ("日本".encode("euc_jp"), 0x0D, "日本"),
        ("한국".encode("euc_kr"), 0x0E, "한국"),
        (b"\x00", 0x10, "@"),
        ("ж".encode("utf-16-be"), 0x18, "ж"),
        (b"\x00", 0xC8, "@"),
        ("ж".encode("utf-16-be"), 0xE0, "ж"),
        (b"\x00", 0xF0, "@"),
        (b"\x00", 0x02, None),
        (b"\x00", 0x04, None),
        (b"\x00", 0x09, None),
        (b"a", 0x09, "a"),
        (b"\x00", 0x14, None),
        (b"\x00", 0x20, None),
        (b"\x00", 0x80, None),
        (b"\x00", 0xF5, None),
    ],
)
def test_decode(body: bytes, data_coding: int, text: str | None) -> None:
    assert decode(body, data_coding) == text


def test_decode_with_the_suppliers_default_alphabet() -> None:
    assert decode(b"@\xe7", 0, default_alphabet="latin1") == decode(b"@\xe7", 3) == "@ç"
    assert decode(b"5\x80", 0, default_alphabet="latin1") == decode(b"5\x80", 3) == "5€"
    assert decode(b"5\x81", 3) == "5\x81"
    assert decode(b"@\xe7", 0, default_alphabet="ascii") == "@ç"


def test_national_tables_are_for_the_gsm_alphabet_alone() -> None:
    assert decode(b"Amanh\x1b{ \x1b\x09\x1b\x0f", 0, single=3) == "Amanhã çá"
    assert decode(b"\x0f\x09\x0b", 0, locking=3) == "áçÔ"
    assert decode(b"\x0f\x09", 0x10, locking=3) == "áç"
    assert decode(b"\x00a", 0x08, locking=3, single=3) == "a"
    # An unknown language has no table, and an unassigned code shows its basic character.
    assert decode(b"\x0f\x1be", 0, locking=99, single=99) == "å€"
    assert decode(b"a\x1bz", 0, single=3) == "az"


@given(body=st.binary(max_size=200), data_coding=st.integers(0, 255))
def test_decoded_text_can_always_be_stored(body: bytes, data_coding: int) -> None:
    text = decode(body, data_coding)
    if text is not None:
        assert "\0" not in text
        text.encode()


@given(text=st.text(max_size=400), smart=st.booleans())
def test_what_is_cut_later_is_what_was_cut_at_accept(text: str, smart: bool) -> None:
    try:
        encoded = encode(text, smart=smart, accents=smart)
    except UnicodeEncodeError:
        return
    assert segments.of(encoded.text, encoded.encoding) == encoded.segments
    if smart or encoded.encoding == "ucs2":
        assert encoding.repeated(text, encoded.encoding) == encoded.text


def test_a_text_that_its_alphabet_lacks_is_not_cut() -> None:
    with pytest.raises(ValueError, match="GSM"):
        segments.of("ж", "gsm7")


@pytest.mark.parametrize(
    ("text", "written", "segments_before", "segments_after"),
    [
        (
            "Olá João, a sua marcação está confirmada para amanhã às 9h30."
            " Não se esqueça do cartão de saúde. Obrigado!",
            "Ola Joao, a sua marcacao esta confirmada para amanha às 9h30."
            " Nao se esqueca do cartao de saude. Obrigado!",
            2,
            1,
        ),
        (
            "Estimado señor Núñez: su envío llegará mañana entre las 9 y las 12."
            " Si no está en casa, elija otro día aquí.",
            "Estimado señor Nuñez: su envio llegara mañana entre las 9 y las 12."
            " Si no esta en casa, elija otro dia aqui.",
            2,
            1,
        ),
        (
            "Votre commande est prête à être récupérée. N’oubliez pas votre pièce d’identité — à bientôt !",
            "Votre commande est prete à etre récupérée. N'oubliez pas votre pièce d'identité - à bientot !",
            2,
            1,
        ),
        (
            "Le cœur de l’été : –20 % sur tout le magasin… Offre valable jusqu’au 31 août.",
            "Le coeur de l'été : -20 % sur tout le magasin... Offre valable jusqu'au 31 aout.",
            2,
            1,
        ),
        (
            "Sayın müşterimiz, siparişiniz yarın öğleden sonra teslim edilecektir. İyi günler dileriz."
            " Sorularınız için bizi arayın.",
            "Sayin müsterimiz, siparisiniz yarin ögleden sonra teslim edilecektir. Iyi günler dileriz."
            " Sorulariniz icin bizi arayin.",
            2,
            1,
        ),
        ("Oi 😀", "Oi 😀", 1, 1),
        ("Price 10€ [promo]", "Price 10€ [promo]", 1, 1),
    ],
)
def test_texts_of_the_field_lose_what_makes_them_long(
    text: str, written: str, segments_before: int, segments_after: int
) -> None:
    assert encode(text, smart=True, accents=True).text == written
    assert (count(text)[1], count(text, smart=True, accents=True)[1]) == (segments_before, segments_after)
