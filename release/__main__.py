"""`python -m release --to dist`: builds the files that are published for a version.

    heliograph-V-py3-none-any.whl   requires exactly what was tested: every dependency is pinned
    heliograph-V.tar.gz             builds the same wheel
    heliograph-V-requirements.txt   these versions with the digests of their files, for `pip --require-hashes`
    heliograph-V-requirements-traces.txt   likewise for what the extra `traces` adds
    heliograph-V.cdx.json           bill of materials (CycloneDX 1.6)
    SHA256SUMS

The same commit gives the same bytes: times are the commit's. The rule nobody may break: a wheel contains every file of
the package, or it is not built.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

from build import ProjectBuilder
from pyproject_hooks import quiet_subprocess_runner

from heliograph import __version__
from release.materials import bill_of_materials

ROOT = Path(__file__).resolve().parents[1]
#: Requirements files of the project, and the lock file with the versions of each.
PINNED = {"requirements.in": "requirements.lock", "requirements-traces.in": "requirements-traces.lock"}


class ReleaseError(Exception):
    """The release could not be built; the message says why."""


def pins(lock: str) -> list[str]:
    """The requirements in a lock file without their digests: `anyio==4.16.0`, with the marker if there is one."""
    return [found.strip() for found in re.findall(r"^([a-z0-9][^\\\n]*==[^\\\n]*?)\s*\\?$", lock, re.MULTILINE)]


def release(root: Path, to: Path, *, uncommitted: bool = False) -> list[Path]:
    """Build a release from the work tree `root` into the empty directory `to`; returns its files.

    `uncommitted`: allow a tree with uncommitted changes. Raises ReleaseError.
    """
    if _git(root, "status", "--porcelain").strip() and not uncommitted:
        raise ReleaseError("the tree is not what was committed: commit, or add --uncommitted")
    if f'version = "{__version__}"' not in (root / "pyproject.toml").read_text():
        raise ReleaseError(f"pyproject.toml has another version than heliograph/__init__.py ({__version__})")
    to.mkdir(parents=True, exist_ok=True)
    if any(to.iterdir()):
        raise ReleaseError(f"{to} is not empty")
    at = int(_git(root, "log", "-1", "--format=%ct"))
    also = ["--others", "--exclude-standard"] if uncommitted else []
    listed = _git(root, "ls-files", "-z", "--cached", *also).split("\0")
    tracked = sorted({name for name in listed if name and (root / name).is_file()})
    with tempfile.TemporaryDirectory(prefix="heliograph-release-") as name:
        place = Path(name) / "source"
        for file in tracked:
            (place / file).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(root / file, place / file)
        for file, lock in PINNED.items():
            (place / file).write_text("\n".join(pins((root / lock).read_text())) + "\n")
        os.environ["SOURCE_DATE_EPOCH"] = str(at)
        source = Path(ProjectBuilder(place, runner=quiet_subprocess_runner).build("sdist", str(to)))
        _settle(source, at)
        # Built from the source distribution, which proves that it is complete. The archive is our own, so it needs no
        # filter; Python 3.11.2 does not have them.
        shutil.unpack_archive(source, Path(name) / "unpacked")
        (unpacked,) = (Path(name) / "unpacked").iterdir()
        wheel = Path(ProjectBuilder(unpacked, runner=quiet_subprocess_runner).build("wheel", str(to)))
    _demand_every_file(wheel, [file for file in tracked if file.startswith("heliograph/")])
    locks = []
    for lock in PINNED.values():
        locks.append(to / f"heliograph-{__version__}-{Path(lock).stem}.txt")
        shutil.copyfile(root / lock, locks[-1])
    materials = to / f"heliograph-{__version__}.cdx.json"
    materials.write_text(bill_of_materials(root, at=at, version=__version__))
    made = [wheel, source, *locks, materials]
    sums = to / "SHA256SUMS"
    sums.write_text("".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in sorted(made)))
    return [*made, sums]


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise ReleaseError(f"git {arguments[0]}: {done.stderr.strip()}")
    return done.stdout


def _settle(source: Path, at: int) -> None:
    """Repack a source distribution reproducibly: sorted by name, with a single time, no owner, and modes that do not
    depend on the umask of whoever builds it. What is a program stays one."""
    with tarfile.open(source) as old:
        kept = [
            (entry, file.read())
            for entry in sorted(old.getmembers(), key=lambda one: one.name)
            if (file := old.extractfile(entry)) is not None
        ]
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for entry, content in kept:
            written = tarfile.TarInfo(entry.name)
            mode = 0o755 if entry.mode & 0o100 else 0o644
            written.size, written.mode, written.mtime = len(content), mode, at
            new.addfile(written, io.BytesIO(content))
    source.write_bytes(gzip.compress(packed.getvalue(), mtime=at))


def _demand_every_file(wheel: Path, tracked: list[str]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        missing = sorted(set(tracked) - set(archive.namelist()))
    if missing:
        wheel.unlink()
        raise ReleaseError(f"the wheel would lack {', '.join(missing)}: see package-data in pyproject.toml")


def main(arguments: list[str]) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Build a release.")
    parser.add_argument("--to", type=Path, default=ROOT / "dist", help="an empty directory")
    parser.add_argument("--uncommitted", action="store_true", help="also of a tree that is not what was committed")
    options = parser.parse_args(arguments)
    try:
        for made in release(ROOT, options.to, uncommitted=options.uncommitted):
            print(made)
    except ReleaseError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
