"""Checking dependencies against advisories: versions and ranges as in OSV, and the message when there are none."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from release.audit import LOCKS, hits, locked, main
from tests.house.project import ROOT


def advisory(name: str = "Asyncpg", **affected: Any) -> dict[str, Any]:
    package = {"ecosystem": "PyPI", "name": name}
    return {"id": "PYSEC-1", "aliases": ["CVE-1"], "affected": [{"package": package, **affected}]}


def events(*pairs: tuple[str, str]) -> list[dict[str, Any]]:
    return [{"type": "ECOSYSTEM", "events": [{kind: version} for kind, version in pairs]}]


PINNED = {("asyncpg", "0.32.0"): ["requirements.lock"]}


@pytest.mark.parametrize(
    ("affected", "is_hit"),
    [
        ({"versions": ["0.31.0", "0.32.0"]}, True),
        ({"versions": ["0.31.0"]}, False),
        ({"ranges": events(("introduced", "0"))}, True),
        ({"ranges": events(("introduced", "0"), ("fixed", "0.32.0"))}, False),
        ({"ranges": events(("introduced", "0"), ("fixed", "0.32.1"))}, True),
        ({"ranges": events(("introduced", "0"), ("last_affected", "0.32.0"))}, True),
        ({"ranges": events(("introduced", "0"), ("last_affected", "0.31.9"))}, False),
        ({"ranges": events(("introduced", "0.33"))}, False),
        ({"ranges": events(("introduced", "0.32"), ("introduced", "0.1"), ("fixed", "0.2"))}, True),
        ({"ranges": events(("introduced", "0"), ("fixed", "0.100"))}, True),
        ({"ranges": [{"type": "GIT", "events": [{"introduced": "0"}]}]}, False),
    ],
)
def test_versions_and_ranges_are_judged_as_the_schema_says(affected: dict[str, Any], is_hit: bool) -> None:
    assert bool(hits(PINNED, [advisory(**affected)])) == is_hit


def test_what_was_withdrawn_or_is_about_something_else_counts_for_nothing() -> None:
    everything = {"ranges": events(("introduced", "0"))}
    assert hits(PINNED, [advisory(**everything) | {"withdrawn": "2026-01-01T00:00:00Z"}]) == []
    assert hits(PINNED, [advisory("asyncpg-stubs", **everything)]) == []
    elsewhere = advisory(**everything)
    elsewhere["affected"][0]["package"]["ecosystem"] = "npm"
    assert hits(PINNED, [elsewhere]) == []


def test_every_lock_is_read() -> None:
    found = locked(ROOT)
    assert len(found) > 100
    assert {lock for locks in found.values() for lock in locks} == set(LOCKS)


def test_it_fails_where_something_is_affected_and_says_where_nothing_was_audited(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for lock in LOCKS:
        (tmp_path / lock).write_text("asyncpg==0.32.0 \\\n    --hash=sha256:00\n")
    assert main(tmp_path, {}) == 0
    assert "were not audited" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / ".advisories.zip", "w") as archive:
        archive.writestr("PYSEC-1.json", json.dumps(advisory(versions=["0.32.0"])))
    assert main(tmp_path, {}) == 1
    said = capsys.readouterr().err
    assert "asyncpg 0.32.0" in said
    assert "CVE-1" in said
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "a.json").write_text(json.dumps(advisory(versions=["9"])))
    assert main(tmp_path, {"ADVISORIES": str(folder)}) == 0
    assert "0 affected" in capsys.readouterr().out
    (tmp_path / "text").write_text("no archive")
    assert main(tmp_path, {"ADVISORIES": str(tmp_path / "text")}) == 1
