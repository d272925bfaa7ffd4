"""Images where none can be fetched: one to build upon, made of Debian's packages, and an engine that runs what is
built."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

#: No more than a machine lets root have that is itself a container. The engines' own defaults are a million.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
#: What the Containerfile builds upon: Debian's release, and its Python.
RELEASE, PYTHON = "trixie", "3.13"
#: Where the image to build upon looks for what is installed: see `without_network`.
WHEELS = "/wheels"
#: What the base lacks of an official image: `python`, and a pip that can be removed.
FINISH = """
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
export PYTHONPATH="$(ls /opt/pip-*.whl)"
python3 -m pip install -q --no-index --no-deps --root-user-action ignore /opt/pip-*.whl
rm /opt/pip-*.whl
ln -s /usr/bin/python3 /usr/local/bin/python
"""


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[:3]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def make_base(place: Path, tag: str) -> None:
    """A small Debian with Python as an image of podman's, by `debootstrap`, whose pip asks no index; as root."""
    root, wheels = place / "root", place / "pip"
    _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "pip")
    _run("debootstrap", "--variant=minbase", "--include=python3,libpython3-stdlib", RELEASE, root)
    for wheel in wheels.iterdir():
        shutil.copy(wheel, root / "opt")
    _run("chroot", root, "sh", "-ec", FINISH)
    packed = place / "base.tar"
    _run("tar", "-C", root, "-cf", packed, ".")
    alone = ("--change", "ENV PIP_NO_INDEX=1", "--change", f"ENV PIP_FIND_LINKS={WHEELS}")
    _run("podman", "import", "-q", *alone, packed, tag)


def without_network(dist: Path, place: Path) -> list[str]:
    """Options of `podman build` by which a release is installed from what is downloaded here: how this machine reaches
    an index is nothing that an image knows."""
    pinned = [word for file in dist.glob("*-requirements*.txt") for word in ("-r", str(file))]
    _run(
        *(sys.executable, "-m", "pip", "download", "-q", "--only-binary", ":all:", "--require-hashes", "--no-deps"),
        *("--python-version", PYTHON, "-d", place),
        *pinned,
    )
    # Without layers nothing of the first stage is left behind.
    apart = ["--layers=false", "--isolation", "chroot", "--network", "host"]
    return [*apart, "--volume", f"{place}:{WHEELS}:ro"]


def engine(options: Sequence[str], tag: str) -> list[str] | str:
    """podman with the first runtime that runs an image here, or why none does."""
    said = ""
    for runtime in ("crun", "runc"):
        if shutil.which(runtime) is None:
            continue
        podman = ["podman", "--runtime", runtime]
        done = subprocess.run([*podman, "run", "--rm", *options, tag, "--version"], capture_output=True, text=True)
        if done.returncode == 0:
            return podman
        said = done.stderr.strip()
    return said or "neither crun nor runc is here"
