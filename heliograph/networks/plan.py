"""The numbering plan: the network that a number's range was assigned to, from two data files.

`networks.csv` lists main networks (MCC-MNC from the public list pbakondy/mcc-mnc-list of April 2023, brands as of
November 2026) with the names that the carrier data of `phonenumbers` uses for them. `plan.txt` is that data with
MCC-MNC in place of names: a line per calling code, `25884=643-04`; a range of an unlisted network inside a listed one
has no code after `=`. `python -m tests.house.plan` regenerates it when either changes.

A range says which network a number was originally assigned by. That is conclusive only without number portability.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

import msgspec
import phonenumbers

from heliograph.base import phones
from heliograph.base.sentences import Sentence, quoted, said

_HERE = files("heliograph.networks")
#: Calling codes that several countries share, and how many digits after the + distinguish them.
SHARED = {"1": 4, "7": 2}
# Mobile country code : ISO region, as assigned by the ITU (Recommendation E.212), from the same public list. Of regions
# with one calling code, the main one. Left out is 340, since the French regions in the Caribbean have a code each.
_MOBILE_COUNTRY_CODES = """
202:GR 204:NL 206:BE 208:FR 212:MC 213:AD 214:ES 216:HU 218:BA 219:HR 220:RS 221:XK 222:IT 226:RO 228:CH 230:CZ 231:SK
232:AT 234:GB 235:GB 238:DK 240:SE 242:NO 244:FI 246:LT 247:LV 248:EE 250:RU 255:UA 257:BY 259:MD 260:PL 262:DE 266:GI
268:PT 270:LU 272:IE 274:IS 276:AL 278:MT 280:CY 282:GE 283:AM 284:BG 286:TR 288:FO 290:GL 292:SM 293:SI 294:MK 295:LI
297:ME
302:CA 308:PM 310:US 311:US 312:US 313:US 314:US 315:US 316:US 330:PR 332:VI 334:MX 338:JM 342:BB 344:AG 346:KY 348:VG
350:BM 352:GD 354:MS 356:KN 358:LC 360:VC 362:CW 363:AW 364:BS 365:AI 366:DM 368:CU 370:DO 372:HT 374:TT 376:TC
400:AZ 401:KZ 402:BT 404:IN 405:IN 406:IN 410:PK 412:AF 413:LK 414:MM 415:LB 416:JO 417:SY 418:IQ 419:KW 420:SA 421:YE
422:OM 424:AE 425:IL 426:BH 427:QA 428:MN 429:NP 432:IR 434:UZ 436:TJ 437:KG 438:TM 440:JP 441:JP 450:KR 452:VN 454:HK
455:MO 456:KH 457:LA 460:CN 461:CN 466:TW 467:KP 470:BD 472:MV
502:MY 505:AU 510:ID 514:TL 515:PH 520:TH 525:SG 528:BN 530:NZ 534:MP 535:GU 536:NR 537:PG 539:TO 540:SB 541:VU 542:FJ
543:WF 544:AS 545:KI 546:NC 547:PF 548:CK 549:WS 550:FM 551:MH 552:PW 553:TV 554:TK 555:NU
602:EG 603:DZ 604:MA 605:TN 606:LY 607:GM 608:SN 609:MR 610:ML 611:GN 612:CI 613:BF 614:NE 615:TG 616:BJ 617:MU 618:LR
619:SL 620:GH 621:NG 622:TD 623:CF 624:CM 625:CV 626:ST 627:GQ 628:GA 629:CG 630:CD 631:AO 632:GW 633:SC 634:SD 635:RW
636:ET 637:SO 638:DJ 639:KE 640:TZ 641:UG 642:BI 643:MZ 645:ZM 646:MG 647:RE 648:ZW 649:NA 650:MW 651:LS 652:BW 653:SZ
654:KM 655:ZA 657:ER 658:SH 659:SS
702:BZ 704:GT 706:SV 708:HN 710:NI 712:CR 714:PA 716:PE 722:AR 724:BR 730:CL 732:CO 734:VE 736:BO 738:GY 740:EC 742:GF
744:PY 746:SR 748:UY 750:FK
"""
#: Networks whose MCC is that of another region.
ELSEWHERE = {"425-05": "PS", "425-06": "PS"}
#: Maximum number of networks that a warning names.
MOST_NAMED = 10


_is_network = re.compile(r"[0-9]{3}-[0-9]{2,3}").fullmatch


class Network(msgspec.Struct, frozen=True):
    """A main network of a country."""

    #: ISO region, and its calling code.
    country: str
    code: str
    mcc: str
    mnc: str
    name: str
    #: Its names in the numbering plan's data, separated by |.
    range_names: str
    #: "yes" or "no": whether numbers of the country can be ported.
    portable: str

    @property
    def key(self) -> str:
        """ "643-04"."""
        return f"{self.mcc}-{self.mnc}"


@cache
def networks() -> dict[str, Network]:
    """All of networks.csv, keyed by MCC-MNC ("643-04")."""
    lines = _HERE.joinpath("networks.csv").read_text(encoding="utf-8").splitlines()
    found = [Network(**row) for row in csv.DictReader(lines)]
    return {one.key: one for one in found}


def meant(network: str) -> str | None:
    """The listed network whose spelling differs from this one only in zeros: "643-04" for "643-4" and "643-004",
    "334-020" for "334-20". None: it is listed as it is, or there is no such network, or more than one."""
    mcc, _, mnc = network.partition("-")
    if network in networks() or not (mnc.isascii() and mnc.isdigit() and len(mnc) <= 3):
        return None
    alike = _by_number().get((mcc, int(mnc)), [])
    return alike[0] if len(alike) == 1 else None


def no_network(text: str) -> str:
    """Why a text is not MCC-MNC; empty: it is, listed or not."""
    if known := meant(text):
        return f"{text!r} is not a network; did you mean {known}? A spreadsheet may have changed its zeros"
    return "" if _is_network(text) else f"a network is MCC-MNC, such as 643-04, not {text!r}"


def unlisted(given: Iterable[str]) -> Sentence:
    """A warning for an operator that names those of these networks that are not listed, since their zeros cannot be
    checked; empty: all are listed."""
    found = sorted({one for one in given if one} - networks().keys())
    if not found:
        return quoted("")
    named, more = quoted(", ".join(found[:MOST_NAMED])), len(found) - MOST_NAMED
    return said(
        "The zeros of %(networks)s cannot be checked, because only the main networks of some countries are listed here:"
        " compare them with your supplier's list.",
        networks=said("%(networks)s and %(more)s more", networks=named, more=more) if more > 0 else named,
    )


@cache
def _by_number() -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    for one in networks().values():
        found.setdefault((one.mcc, int(one.mnc)), []).append(one.key)
    return found


def country_of(network: str) -> str | None:
    """ISO region of a network ("643-04"), whether it is listed or not; None if its MCC is not that of one region."""
    return ELSEWHERE.get(network) or _countries().get(network.partition("-")[0])


@cache
def _countries() -> dict[str, str]:
    return dict(pair.split(":") for pair in _MOBILE_COUNTRY_CODES.split())


@cache
def listed() -> frozenset[str]:
    """ISO regions with an MCC."""
    return frozenset(_countries().values())


@cache
def unportable() -> frozenset[str]:
    """ISO regions whose numbers cannot be ported."""
    return frozenset(one.country for one in networks().values() if one.portable == "no")


class Ranges(msgspec.Struct, frozen=True, gc=False):
    """The ranges of one calling code."""

    #: Lengths of prefixes, longest first.
    lengths: tuple[int, ...]
    #: Prefix (digits with the calling code) → "643-04", or empty.
    prefixes: dict[str, str]

    def network(self, digits: str) -> str:
        """The network of the longest matching prefix; empty if there is none."""
        for length in self.lengths:
            found = self.prefixes.get(digits[:length])
            if found is not None:
                return found
        return ""


@cache
def ranges(code: str) -> Ranges:
    """The ranges of a calling code, read on first use."""
    prefixes: dict[str, str] = {}
    for line in _HERE.joinpath("plan.txt").read_text(encoding="ascii").splitlines():
        name, _, listed = line.partition(":")
        if name == code:
            for pair in listed.split():
                prefix, _, network = pair.partition("=")
                prefixes[prefix] = network
    return Ranges(tuple(sorted({len(one) for one in prefixes}, reverse=True)), prefixes)


def country(number: str) -> str:
    """ISO region of a number: by area code for +1 and +7, otherwise as in `phones.country`."""
    code = phones.calling_code(number)
    return _area(number[1 : 1 + SHARED[code]]) if code in SHARED else phones.REGIONS[code]


@cache
def countries(prefix: str) -> frozenset[str]:
    """ISO regions of the numbers that begin with these digits, which may be fewer than a calling code has. The first
    call for a whole shared code takes 25 ms."""
    found: set[str] = set()
    for code, region in phones.REGIONS.items():
        if not prefix.startswith(code) and not code.startswith(prefix):
            continue
        head = max(prefix, code, key=len)
        missing = SHARED.get(code, 0) - len(head)
        if missing > 0:
            found |= {country(f"+{head}{rest:0{missing}}") for rest in range(10**missing)}
        else:
            found.add(country(f"+{head}") if code in SHARED else region)
    return frozenset(found)


@cache
def _area(digits: str) -> str:
    """The region of an area code, determined from a number in it; there are at most nine hundred."""
    try:
        parsed = phonenumbers.parse("+" + digits.ljust(4, "0") + "2345678"[: 11 - max(4, len(digits))])
    except phonenumbers.NumberParseException:
        return phones.REGIONS[digits[0]]
    return phonenumbers.region_code_for_number(parsed) or phones.REGIONS[digits[0]]


@cache
def calling_codes(region: str) -> tuple[str, ...]:
    """The calling codes of a region's numbers, shared ones included; empty if numbers do not show the region."""
    return tuple(code for code in phones.REGIONS if region in countries(code))


def counted_as(region: str) -> str:
    """The ISO region under which messages to a region are counted: where countries share a calling code, the largest of
    them (`phones.country`)."""
    return next((phones.REGIONS[code] for code in calling_codes(region)), region)
