"""`python -m release.audit`: checks locked dependencies against local advisories. Run by `make check`, offline.

The advisories are OSV's export for PyPI (`all.zip`, or a folder with its JSON files), at the path in ADVISORIES, or at
`.advisories.zip`. No package ships them, so without the file it reports that nothing was audited, and succeeds.
Schema: https://ossf.github.io/osv-schema/
"""

from __future__ import annotations

import json
import os
import re
import sys
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
LOCKS = ("requirements.lock", "requirements-traces.lock", "requirements-dev.lock", "requirements-peers.lock")
WHERE = ".advisories.zip"


def locked(root: Path) -> dict[tuple[str, str], list[str]]:
    """Every pinned distribution (name, version), with the lock files that name it."""
    found: dict[tuple[str, str], list[str]] = {}
    for lock in LOCKS:
        text = (root / lock).read_text()
        for name, version in re.findall(r"^([a-z0-9][a-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", text, re.MULTILINE):
            found.setdefault((canonicalize_name(name), version), []).append(lock)
    return found


def advisories(place: Path) -> Iterator[dict[str, Any]]:
    """The records in a folder or an archive. Raises ValueError if there are none."""
    if place.is_dir():
        texts: Iterable[bytes] = (path.read_bytes() for path in sorted(place.rglob("*.json")))
    elif zipfile.is_zipfile(place):
        archive = zipfile.ZipFile(place)
        texts = (archive.read(name) for name in sorted(archive.namelist()) if name.endswith(".json"))
    else:
        raise ValueError(f"{place} is neither a folder nor a zip archive")
    count = 0
    for text in texts:
        count += 1
        yield json.loads(text)
    if not count:
        raise ValueError(f"{place} has no advisories")


def hits(
    pinned: Mapping[tuple[str, str], list[str]], known: Iterable[dict[str, Any]]
) -> list[tuple[str, str, str, list[str]]]:
    """Affected distributions: name, version, the advisory with its aliases, and the lock files."""
    by_name: dict[str, list[str]] = {}
    for name, version in pinned:
        by_name.setdefault(name, []).append(version)
    found: dict[tuple[str, str, str], list[str]] = {}
    for record in known:
        if record.get("withdrawn"):
            continue
        for affected in record.get("affected", ()):
            package = affected.get("package", {})
            if package.get("ecosystem") != "PyPI":
                continue
            name = canonicalize_name(package["name"])
            for version in by_name.get(name, ()):
                if _is_affected(version, affected):
                    said = ", ".join([record["id"], *record.get("aliases", ())])
                    found[name, version, said] = pinned[name, version]
    return [(*key, locks) for key, locks in sorted(found.items())]


def _is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    if version in affected.get("versions", ()):
        return True
    ranges = [one for one in affected.get("ranges", ()) if one.get("type") == "ECOSYSTEM"]
    return any(_is_within(Version(version), one.get("events", ())) for one in ranges)


def _is_within(version: Version, events: Iterable[Mapping[str, str]]) -> bool:
    """Evaluates a range as the schema describes: with events in order, the last one before the version decides."""
    inside = False
    for event in sorted(events, key=lambda one: _at(next(iter(one.values())))):
        (kind, at), *_ = event.items()
        if kind == "introduced" and version >= _at(at):
            inside = True
        elif (kind == "fixed" and version >= _at(at)) or (kind == "last_affected" and version > _at(at)):
            inside = False
    return inside


def _at(text: str) -> Version:
    try:
        return Version(text)
    except InvalidVersion:
        return Version("0")


def main(root: Path = ROOT, environment: Mapping[str, str] = os.environ) -> int:
    """The command; returns its exit status."""
    place = Path(environment.get("ADVISORIES") or root / WHERE)
    if not place.exists():
        print(f"Dependencies were not audited: no advisories at {WHERE} (OSV's export for PyPI), nor in ADVISORIES.")
        return 0
    pinned = locked(root)
    try:
        found = hits(pinned, advisories(place))
    except (ValueError, KeyError) as error:
        print(f"Dependencies were not audited: {error}", file=sys.stderr)
        return 1
    for name, version, said, locks in found:
        print(f"{name} {version} ({', '.join(locks)}): {said}", file=sys.stderr)
    print(f"{len(pinned)} locked distributions, {len(found)} affected by an advisory.")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
