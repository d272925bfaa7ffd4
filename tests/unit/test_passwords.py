"""Which passwords are refused."""

from __future__ import annotations

import hashlib
import re

import pytest

from heliograph.base.errors import Invalid
from heliograph.people import passwords
from tests.house.project import ROOT

VENDOR = ROOT / "heliograph" / "people" / "vendor"


def test_the_list_is_as_it_was_published() -> None:
    listed = {
        name: digest
        for digest, name in re.findall(r"^([0-9a-f]{64})  (\S+)$", (VENDOR / "README.md").read_text(), re.M)
    }
    assert set(listed) == {path.name for path in VENDOR.iterdir()} - {"README.md"}
    for name, digest in listed.items():
        assert hashlib.sha256((VENDOR / name).read_bytes()).hexdigest() == digest, name
    assert len((VENDOR / "common_passwords.txt").read_text().splitlines()) == 10_000


@pytest.mark.parametrize(
    "password",
    [
        "1qaz2wsx3edc",  # literally in the list
        "QAZWSXEDCRFV",  # in other letters
        "c0unter5trike",  # with digits for letters
        "sunshine12345",  # a common one with digits
        "!!!Butterfly99!!!",
        "Jessica.1999.!!",
        "Senha123456789",
        "abcabcabcabc",
        "ana.silva12345",  # of the address
        "short",
        "x" * 1_001,
    ],
)
def test_what_somebody_would_guess_is_refused(password: str) -> None:
    with pytest.raises(Invalid):
        passwords.check_strength(password, email="ana.silva@example.com")


@pytest.mark.parametrize(
    "password", ["correct horse battery staple", "chuva-mesa-rinoceronte", "7Gq!mZ2#vLp9", "the dog ate my 3 keys"]
)
def test_what_nobody_would_guess_is_taken(password: str) -> None:
    passwords.check_strength(password, email="ana.silva@example.com")
