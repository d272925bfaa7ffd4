"""Writes `heliograph/networks/plan.txt` from the carrier data of phonenumbers and `networks.csv`: `python -m
tests.house.plan`. A test compares, so an upgrade of phonenumbers that knows more ranges shows."""

from __future__ import annotations

from collections.abc import Mapping

from phonenumbers.carrierdata import CARRIER_DATA

from heliograph.networks.plan import networks
from tests.house.project import ROOT

FILE = ROOT / "heliograph" / "networks" / "plan.txt"


def made() -> str:
    """The file's text."""
    codes = sorted({one.code for one in networks().values()}, key=int)
    lines = []
    for code in codes:
        known = {
            name: one.key for one in networks().values() if one.code == code for name in one.range_names.split("|")
        }
        every = {prefix: said for prefix, said in CARRIER_DATA.items() if prefix.startswith(code)}
        found = {prefix: known.get(_name(said), "") for prefix, said in every.items()}
        kept = " ".join(f"{prefix}={network}" for prefix, network in sorted(_short(found).items()))
        lines.append(f"{code}:{kept}\n")
    return "".join(lines)


def _name(said: Mapping[str, str]) -> str:
    return said.get("en") or next(iter(said.values()))


def _short(found: Mapping[str, str]) -> dict[str, str]:
    """The same with fewer prefixes: ten with the same network become one, and one that its shorter prefix already
    implies is left out."""
    kept = dict(found)
    for length in range(max(map(len, kept), default=0), 1, -1):
        for parent in {one[:-1] for one in kept if len(one) == length}:
            children = [kept.get(f"{parent}{digit}") for digit in range(10)]
            if None not in children and len(set(children)) == 1:
                kept[parent] = children[0] or ""
    return {prefix: network for prefix, network in kept.items() if network != _around(kept, prefix)}


def _around(kept: Mapping[str, str], prefix: str) -> str:
    return next((kept[prefix[:end]] for end in range(len(prefix) - 1, 0, -1) if prefix[:end] in kept), "")


if __name__ == "__main__":
    FILE.write_text(made(), encoding="ascii")
