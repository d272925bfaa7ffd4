"""Phone numbers: E.164 in, E.164 out.

There are two parsers. `parse` is for the request path: a pattern and the set of calling codes, because a full parse
costs 30 times as much and its metadata lags behind new ranges. `normalize` is for pasted numbers (imports, contacts,
staging) and uses phonenumbers. The rule nobody may break: everything stored or logged as a phone number has passed
through one of them, and logs contain only `masked` numbers.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Sequence
from functools import cache
from typing import TypeVar
from weakref import WeakKeyDictionary

import phonenumbers

# Calling code : main region (ISO 3166-1, XK for Kosovo). 001 marks shared codes that belong to no country. The codes
# are prefix-free. A test compares them with phonenumbers, so it fails if an upgrade adds codes.
_CALLING_CODES = """
1:US 7:RU 20:EG 211:SS 212:MA 213:DZ 216:TN 218:LY 220:GM 221:SN 222:MR 223:ML 224:GN 225:CI 226:BF 227:NE 228:TG
229:BJ 230:MU 231:LR 232:SL 233:GH 234:NG 235:TD 236:CF 237:CM 238:CV 239:ST 240:GQ 241:GA 242:CG 243:CD 244:AO
245:GW 246:IO 247:AC 248:SC 249:SD 250:RW 251:ET 252:SO 253:DJ 254:KE 255:TZ 256:UG 257:BI 258:MZ 260:ZM 261:MG
262:RE 263:ZW 264:NA 265:MW 266:LS 267:BW 268:SZ 269:KM 27:ZA 290:SH 291:ER 297:AW 298:FO 299:GL
30:GR 31:NL 32:BE 33:FR 34:ES 350:GI 351:PT 352:LU 353:IE 354:IS 355:AL 356:MT 357:CY 358:FI 359:BG 36:HU 370:LT
371:LV 372:EE 373:MD 374:AM 375:BY 376:AD 377:MC 378:SM 380:UA 381:RS 382:ME 383:XK 385:HR 386:SI 387:BA 389:MK
39:IT 40:RO 41:CH 420:CZ 421:SK 423:LI 43:AT 44:GB 45:DK 46:SE 47:NO 48:PL 49:DE
500:FK 501:BZ 502:GT 503:SV 504:HN 505:NI 506:CR 507:PA 508:PM 509:HT 51:PE 52:MX 53:CU 54:AR 55:BR 56:CL 57:CO
58:VE 590:GP 591:BO 592:GY 593:EC 594:GF 595:PY 596:MQ 597:SR 598:UY 599:CW
60:MY 61:AU 62:ID 63:PH 64:NZ 65:SG 66:TH 670:TL 672:NF 673:BN 674:NR 675:PG 676:TO 677:SB 678:VU 679:FJ 680:PW
681:WF 682:CK 683:NU 685:WS 686:KI 687:NC 688:TV 689:PF 690:TK 691:FM 692:MH
800:001 808:001 81:JP 82:KR 84:VN 850:KP 852:HK 853:MO 855:KH 856:LA 86:CN 870:001 878:001 880:BD 881:001 882:001
883:001 886:TW 888:001 90:TR 91:IN 92:PK 93:AF 94:LK 95:MM 960:MV 961:LB 962:JO 963:SY 964:IQ 965:KW 966:SA 967:YE
968:OM 970:PS 971:AE 972:IL 973:BH 974:QA 975:BT 976:MN 977:NP 979:001 98:IR 992:TJ 993:TM 994:AZ 995:GE 996:KG
998:UZ
"""
#: An example that shows how numbers are written.
EXAMPLE = "+258841234567"
REGIONS: dict[str, str] = dict(pair.split(":") for pair in _CALLING_CODES.split())
#: Calling codes by the first four characters of a number, so that one look-up finds them, whatever their length.
_CODES = {f"+{n}": str(n)[:end] for n in range(1, 1000) for end in (1, 2, 3) if str(n)[:end] in REGIONS}

_match = re.compile(r"\+?[1-9][0-9]{6,14}").fullmatch
_PASTED = re.compile(r"[+0-9 \t\xa0\u202f.()\u2010-\u2013-]{7,40}")
_NOT_DIGIT = re.compile(r"[^0-9]")
#: Invisible characters that address books, messengers and web pages put around numbers and into them.
_INVISIBLE = re.compile("[\u00ad\u061c\u200b-\u200f\u202a-\u202e\u2060\u2066-\u2069\ufeff]")
#: In Germany, Belgium and elsewhere a slash follows the area code. Few digits after it are an alternative ending, as in
#: 0151 2345678/9, and many before it another number.
_with_area_code = re.compile(r"((?:[^0-9/]*[0-9]){2,8}[^0-9/]*)/((?:[^0-9/]*[0-9]){5,}[^0-9/]*)").fullmatch
#: A whole number as spreadsheets and programs write it that have it as a decimal: 841234567.0, 1701234567.00.
_with_decimals = re.compile(r"(\+?[0-9]{7,})[.,]0+").fullmatch
_BRAZIL_8 = re.compile(r"^(\+55[0-9]{2})([689][0-9]{7})$")
_MEXICO_1 = re.compile(r"^\+521([0-9]{10})$")
#: Countries whose numbers had eight digits before two were put in front, and their calling codes: see `_SPELLINGS`.
_LENGTHENED = {"BJ": "229", "CI": "225"}
_MEXICO_TRUNK = re.compile(r"^(?:01|044|045|1)([0-9]{10})$")


def parse(text: str) -> str | None:
    """E.164 with `+`. None unless it is an optional `+` and 7 to 15 ASCII digits with a known calling code."""
    if _match(text) is None:
        return None
    number = text if text[0] == "+" else "+" + text
    return number if number[:4] in _CODES else None


def calling_code(e164: str) -> str:
    """Calling code without `+`, such as "258". Raises ValueError for anything that `parse` would not return."""
    code = _CODES.get(e164[:4])
    if code is None:
        raise ValueError("not a number in E.164 form")
    return code


def country(address: str) -> str:
    """Main region of the number's calling code, such as "MZ"; "001" for codes that belong to no country, and for those
    that we do not know, which WhatsApp's addresses may have.

    If countries share a code (+1, +7), it is the largest of them: only the calling code matters. Anything else is an
    id that begins with its country, such as "MZ.1349".
    """
    return REGIONS.get(_CODES.get(address[:4], ""), "001") if address.startswith("+") else address[:2]


def no_country(code: str) -> str | None:
    """Why no number belongs to the country with this code; None: some do."""
    return None if code in REGIONS.values() else f"{code!r} is not a country with a calling code of its own"


def is_region(text: str) -> bool:
    """Whether `country` may return it: an ISO country, since an id may begin with any of them, or "001"."""
    return text in phonenumbers.SUPPORTED_REGIONS or text in REGIONS.values()


#: Calling codes whose countries are distinguished by area code.
_BY_AREA = (1, 7)


def is_told_apart(region: str) -> bool:
    """Whether a number shows that it belongs to this country: by its calling code, or by its area code after +1 or +7.
    Numbers of a country that shares another calling code, such as GG, do not."""
    return region in REGIONS.values() or any(
        region in phonenumbers.COUNTRY_CODE_TO_REGION_CODE[code] for code in _BY_AREA
    )


#: Types of number that cost the caller or the person called extra.
_COSTLY = ("premium_rate", "shared_cost")
_TYPES = (
    *("fixed_line", "mobile", "toll_free", *_COSTLY),
    *("personal_number", "voip", "pager", "uan", "voicemail"),
)


@cache
def _pattern(code: str, types: tuple[str, ...]) -> re.Pattern[str] | None:
    """The pattern of a calling code's numbers of these types. Cached: reading a code takes 0.5 ms, all of them 70."""
    patterns = set()
    for region in phonenumbers.COUNTRY_CODE_TO_REGION_CODE.get(int(code), ()):
        if region == "001":
            metadata = phonenumbers.PhoneMetadata.metadata_for_nongeo_region(int(code), None)
        else:
            metadata = phonenumbers.PhoneMetadata.metadata_for_region(region, None)
        for kind in types:
            described = getattr(metadata, kind, None)
            if described is not None and described.national_number_pattern:
                patterns.add(described.national_number_pattern)
    return re.compile("|".join(f"(?:{one})" for one in sorted(patterns))) if patterns else None


def is_premium(address: str) -> bool:
    """Whether it is a premium-rate or shared-cost number according to phonenumbers; an id such as "MZ.1349" is not.
    0.3 µs if a country has none, 0.6 otherwise."""
    code = _CODES.get(address[:4])
    return code is not None and _is_of(address, code, _COSTLY)


def is_valid(e164: str) -> bool:
    """Whether numbers like this are in use according to phonenumbers, which lags behind new ranges. About 1 µs; 40 with
    a zero after the calling code, which is part of the number in some countries only."""
    code = calling_code(e164)
    if not e164.startswith("0", 1 + len(code)):
        return _is_of(e164, code, _TYPES)
    try:
        return phonenumbers.is_valid_number(phonenumbers.parse(e164))
    except phonenumbers.NumberParseException:
        return False


def _is_of(e164: str, code: str, types: tuple[str, ...]) -> bool:
    pattern = _pattern(code, types)
    return pattern is not None and pattern.fullmatch(e164, 1 + len(code)) is not None


# Calling codes of countries where a national number is dialed with a leading 0, which is not one of its digits. It is
# omitted abroad; a number that includes it, as in +44 07911 123456, means the same subscriber. A test compares the
# codes with phonenumbers.
_TRUNK_ZERO = """
20 27 31 32 33 40 41 43 44 46 49 51 53 54 55 57 58 60 61 62 63 64 66 81 82 84 86 90 91 92 93 94 95 98 211 212 213 218
231 232 233 234 243 249 250 251 252 254 255 256 260 261 262 263 264 265 291 353 355 358 359 370 373 374 377 380 381 382
383 385 386 387 389 421 423 508 590 591 593 594 595 596 598 686 850 855 856 880 886 961 962 963 964 966 967 970 971 972
976 977 994 995 996
"""
_with_trunk_zero = re.compile(rf"\+({'|'.join(_TRUNK_ZERO.split())})0([1-9][0-9]{{6,}})").fullmatch

#: The rules of `person` for countries where a subscriber's number has several forms, in order.
_SPELLINGS = {
    # Mobile numbers got a 9 before their eight digits; many people, and WhatsApp, still omit it.
    "+55": [(re.compile(r"(\+55[0-9]{2})9([6-9][0-9]{7})"), r"\1\2")],
    # Calls from abroad to a mobile used to need a 1.
    "+52": [(re.compile(r"\+521([0-9]{10})"), r"+52\1")],
    # A mobile number has a 9 before its area code from abroad, and a 15 after it at home.
    "+54": [
        (re.compile(r"\+549([0-9]{10})"), r"+54\1"),
        (re.compile(r"\+541115([0-9]{8})"), r"+5411\1"),
        (re.compile(r"\+54([0-9]{3})15([0-9]{7})"), r"+54\1\2"),
        (re.compile(r"\+54([0-9]{4})15([0-9]{6})"), r"+54\1\2"),
    ],
    # Benin put 01 before its eight digits in 2024, Côte d'Ivoire the prefix of the network in 2021, which the second
    # digit had shown; WhatsApp keeps the shorter number of whoever had one then.
    "+22": [
        (re.compile(r"\+229([0-9]{8})"), r"+22901\1"),
        (re.compile(r"\+225([0457][0-3][0-9]{6})"), r"+22501\1"),
        (re.compile(r"\+225([04-9][4-6][0-9]{6})"), r"+22505\1"),
        (re.compile(r"\+225([04-9][7-9][0-9]{6})"), r"+22507\1"),
    ],
}


def person(address: str) -> str:
    """The common form of all spellings of a phone number (E.164): the key of consent, never to be dialed.

    Without the 0 of national numbers after the calling code, if there is one; Brazil without the ninth digit, Mexico
    without 1, Argentina without 9 and 15; Benin and mobiles of Côte d'Ivoire with the digits that they got in front.
    Other numbers, and user ids, are unchanged. `person_of` in SQL is the same function.
    """
    if "0" in address[3:5] and (match := _with_trunk_zero(address)) is not None:
        address = f"+{match[1]}{match[2]}"
    for pattern, common in _SPELLINGS.get(address[:3], ()):
        match = pattern.fullmatch(address)
        if match is not None:
            address = match.expand(common)
    return address


def masked(number: str) -> str:
    """The part of a number that logs may show: its last four digits."""
    return "…" + number[-4:]


def normalize(text: str, *, region: str | None = None) -> str | None:
    """E.164 from text that a person typed, or None if no number of that length can exist there.

    Spaces, dashes, dots, parentheses (also around the country code) and a slash after the area code are accepted, as
    are a missing `+`, an international prefix `00`, a national `(0)` after the calling code, and invisible characters;
    letters, extensions and digits other than ASCII are not. `region` (ISO, one of `REGIONS`): a number without `+` or
    `00` is interpreted as people there write it, with or without their calling code. Obsolete forms are converted to
    the dialed one: a Brazilian mobile gets its ninth digit, a Mexican one loses the 1, an Argentine one gets a 9 for
    the 15, and those of Benin and Côte d'Ivoire get the digits that were put in front. About 20 µs; 1 µs for
    international numbers, whose length alone is checked.
    """
    known = parse(text) if region is None or text.startswith("+") else None
    if known is not None:
        code = calling_code(known)
        # A zero after the calling code is usually a mistake, but not in Italy and a few others: ask phonenumbers.
        if known[len(code) + 1] != "0" and _is_possible(code, len(known) - len(code) - 1):
            return _dialed(known)
    text = _cleaned(text)
    if not _PASTED.fullmatch(text) or "+" in text[1:]:
        return None
    digits = _NOT_DIGIT.sub("", text.replace("(0)", ""))
    if text.startswith("+") or digits.startswith("00") or region is None:
        digits, region = "+" + (digits if text.startswith("+") else digits.removeprefix("00")), None
        digits = _MEXICO_1.sub(r"+52\1", digits)
    elif region == "MX":
        digits = _MEXICO_TRUNK.sub(r"\1", digits)
    elif region in _LENGTHENED and len(national := digits.removeprefix(_LENGTHENED[region])) == 8:
        digits = f"+{_LENGTHENED[region]}{national}"
    if digits.startswith("+22"):
        digits = person(digits)
    try:
        number = phonenumbers.parse(digits, region)
    except phonenumbers.NumberParseException:
        return None
    if not phonenumbers.is_possible_number(number):
        return None
    found = parse(phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164))
    return found and _dialed(found)


def _cleaned(text: str) -> str:
    """Trimmed, without invisible characters and decimals, with a space for the slash after an area code, and without
    the parenthesis that many people put before the country code: (+258) 84 123 4567."""
    text = (text if text.isascii() else _INVISIBLE.sub("", text)).strip()
    if text.endswith("0") and (match := _with_decimals(text)) is not None:
        return match[1]
    if "/" in text and (match := _with_area_code(text)) is not None:
        text = f"{match[1]} {match[2]}"
    return text[1:] if text.startswith(("(+", "(00")) else text


def _dialed(number: str) -> str:
    """Add the ninth digit in Brazil: eight digits beginning with 6, 8 or 9 were a mobile; with 7, possibly another
    service."""
    return _BRAZIL_8.sub(r"\g<1>9\2", number) if number.startswith("+55") else number


def read(text: str, *, region: str | None) -> str | None:
    """Like `normalize`, but never guesses: without a region, only international numbers with `+` or `00`.

    In Mozambique 84 123 4567 is a national number, but it begins like a Vietnamese one.
    """
    if region is None and not is_international(text):
        return None
    return normalize(text, region=region)


def international(text: str) -> str | None:
    """E.164 from a number that a person typed with `+` or `00` and its country code; None for any other.

    For look-ups that are explained or charged at once: 84 123 4567 is meant as a Mozambican number, but is read as a
    Vietnamese one.
    """
    return parse("+" + digits(text).removeprefix("00")) if is_international(text) else None


def is_international(text: str) -> bool:
    """Whether it is written with its country code: with `+` or `00`, in parentheses or not."""
    return _cleaned(text).startswith(("+", "00"))


def readings(text: str, *, region: str | None) -> list[str]:
    """All numbers that a person may mean by this text, the likeliest first; empty: it is not a number.

    With `+` or `00` it is a single number. Otherwise it may be a national number (of `region`), if such a number
    exists, and the number whose calling code its first digits are.
    """
    text = _cleaned(text)
    typed = _NOT_DIGIT.sub("", text)
    if text.startswith("+") or typed.startswith("00"):
        if not _PASTED.fullmatch(text):
            return []
        known = normalize(text) or parse("+" + typed.removeprefix("00"))
        return [known] if known else []
    found = []
    home = None if region is None else normalize(text, region=region)
    if home is not None and is_valid(home):
        found.append(home)
    abroad = parse(typed) if _PASTED.fullmatch(text) else None
    if abroad is not None and abroad not in found:
        found.append(abroad)
    return found


def digits(text: str) -> str:
    """The digits of text written like a number, without a `+`; empty for anything else."""
    text = _cleaned(text)
    return _NOT_DIGIT.sub("", text) if _PASTED.fullmatch(text) else ""


def part(text: str) -> str | None:
    """The digits that a number may contain, written as at home or abroad; None for text that is no part of one."""
    # Without the zeros of a national or an international prefix, which a number with its country code does not have.
    found = _NOT_DIGIT.sub("", text.replace("(0)", "")).lstrip("0")
    return None if not found or any(map(str.isalpha, text)) else found


def spaced(e164: str) -> str:
    """A number in readable form: `+258 84 123 4567`."""
    try:
        return phonenumbers.format_number(phonenumbers.parse(e164), phonenumbers.PhoneNumberFormat.INTERNATIONAL)
    except phonenumbers.NumberParseException:
        return e164


def example(region: str | None) -> str:
    """A possibly fictitious mobile number of a country; a Mozambican one if the country has none."""
    kind = phonenumbers.PhoneNumberType.MOBILE
    found = phonenumbers.example_number_for_type(region, kind) if region else None
    if found is None:
        return EXAMPLE
    return str(phonenumbers.format_number(found, phonenumbers.PhoneNumberFormat.E164))


def spellings(number: str) -> list[str]:
    """All spellings of a number, in E.164: all have the same `person`. Of anything else, itself."""
    key = person(number)
    other = {
        "+55": key[:5] + "9" + key[5:],
        "+52": "+521" + key[3:],
        "+54": "+549" + key[3:],
        "+22": key[:4] + key[6:],
    }.get(key[:3], key)
    known = [number, key, other]
    if (code := _CODES.get(key[:4])) is not None:  # WhatsApp's are kept as received
        known += [f"+{code}0{one[len(code) + 1 :]}" for one in (key, other)]
    return [one for one in dict.fromkeys(known) if person(one) == key]


#: How long numbers are read (20 µs for one in a national format) before the event loop runs other tasks, seconds.
SLICE = 0.001
#: However many lists are being read, only one gets a turn per iteration of the loop: their turns in a row would block
#: other tasks like one long turn.
_READING: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()
Read = TypeVar("Read")


async def in_turns(read: Callable[[str], Read], texts: Sequence[str]) -> list[Read]:
    """The result of `read`, one of these functions, for each text; the loop's other tasks run every millisecond."""
    reading = _READING.setdefault(asyncio.get_running_loop(), asyncio.Lock())
    found: list[Read] = []
    left = iter(texts)
    while len(found) < len(texts):
        async with reading:
            until = time.perf_counter() + SLICE
            for text in left:
                found.append(read(text))
                if time.perf_counter() >= until:
                    break
            await asyncio.sleep(0)
    return found


@cache
def _is_possible(code: str, length: int) -> bool:
    """Whether numbers with this calling code can have this many digits after it."""
    return bool(
        phonenumbers.is_possible_number(
            phonenumbers.PhoneNumber(country_code=int(code), national_number=int("9" * length))
        )
    )
