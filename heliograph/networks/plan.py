"""The numbering plan: the network that a number's range was assigned to, from two data files.

`networks.csv` lists main networks (MCC-MNC from the public list pbakondy/mcc-mnc-list of April 2023, brands as of
November 2026) with the names that the carrier data of `phonenumbers` uses for them. `plan.txt` is that data with
MCC-MNC in place of names: a line per calling code, `25884=643-04`; a range of an unlisted network inside a listed one
has no code after `=`. `python -m tests.house.plan` regenerates it when either changes.

A range says which network a number was originally assigned by. That is conclusive only without number portability.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib.resources import files

import msgspec
import phonenumbers

from heliograph.base import phones

_HERE = files("heliograph.networks")
#: Calling codes that several countries share, and how many digits after the + distinguish them.
SHARED = {"1": 4, "7": 3}


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


def country_of(network: str) -> str | None:
    """ISO region of a network ("643-04"), even if it is not listed itself but others of its country are."""
    return _countries().get(network.partition("-")[0])


@cache
def _countries() -> dict[str, str]:
    return {one.mcc: one.country for one in networks().values()}


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
def _area(digits: str) -> str:
    """The region of an area code, determined from a number in it; there are at most nine hundred."""
    try:
        parsed = phonenumbers.parse("+" + digits.ljust(4, "0") + "2345678"[: 11 - max(4, len(digits))])
    except phonenumbers.NumberParseException:
        return phones.REGIONS[digits[0]]
    return phonenumbers.region_code_for_number(parsed) or phones.REGIONS[digits[0]]
