"""Container images on machines without a registry: a base image made of Debian's packages, and an engine that runs what
is built."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

from heliograph import __version__

#: No more than the limit of a root that is itself in a container. The engines' own default is a million.
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096")
#: As in the compose files: only the volume and /tmp are writable, and root has no capabilities.
CLOSED = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--network", "host", *LIMITS)  # noqa: S108
#: The Containerfile's base image: Debian's release, and its Python.
RELEASE, PYTHON = "trixie", "3.13"
#: Where the base image looks for packages: see `without_network`.
WHEELS = "/wheels"
#: What the base lacks compared with the official image: `python`, and a pip that can be removed.
FINISH = """
rm -f /usr/lib/python3*/EXTERNALLY-MANAGED
export PYTHONPATH="$(ls /opt/pip-*.whl)"
python3 -m pip install -q --no-index --no-deps --root-user-action ignore /opt/pip-*.whl
rm /opt/pip-*.whl
ln -s /usr/bin/python3 /usr/local/bin/python
"""


class Image(NamedTuple):
    """A built image, and the command prefix of the program that built it and runs it."""

    engine: list[str]
    tag: str


@contextlib.contextmanager
def built(containerfile: Path, dist: Path, place: Path, *, allow_slow: bool) -> Iterator[Image]:
    """The image of a release, removed afterwards. Skips the test if none can be built or run, or, unless `allow_slow`,
    if the base image would have to be made."""
    build = _builder()
    if build is None:
        pytest.skip("neither podman, docker nor buildah works here")
    tag = f"localhost/heliograph-test-{secrets.token_hex(4)}:{__version__}"
    command = [*build, "-f", str(containerfile), "-t", tag, str(dist)]
    done = subprocess.run(command, capture_output=True, text=True)
    tags, runs = [tag], [build[0]]
    try:
        if done.returncode != 0 and re.search(r"pinging|lookup|registry|dial tcp|i/o timeout", done.stderr):
            if build[0] != "podman" or shutil.which("debootstrap") is None or os.geteuid() != 0:
                pytest.skip(
                    "the image to build upon cannot be fetched, nor made: that needs podman, debootstrap and root"
                )
            if not allow_slow:
                pytest.skip("making the image to build upon takes a minute: HELIOGRAPH_FAULTS=long")
            tags.append(tag.replace("-test-", "-base-"))
            make_base(place / "base", tags[-1])
            offline = without_network(dist, place / "wheels")
            command[2:2] = [*offline, "--build-arg", f"PYTHON={tags[-1]}"]
            done = subprocess.run(command, capture_output=True, text=True)
            found = engine(CLOSED, tag) if done.returncode == 0 else runs
            if isinstance(found, str):
                pytest.skip(f"the image was built, and no container can be started here: {found}")
            runs = found
        assert done.returncode == 0, done.stderr
        yield Image(runs, tag)
    finally:
        subprocess.run([build[0], "rmi", "--force", *tags], capture_output=True)


def _builder() -> list[str] | None:
    """A program that can build images here, or None."""
    for name in ("podman", "docker", "buildah"):
        if shutil.which(name) is not None:
            command = [name, "info"]
            if subprocess.run(command, capture_output=True, timeout=60).returncode == 0:
                return [name, "bud" if name == "buildah" else "build"]
    return None


def _run(*command: str | Path) -> str:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{command[:3]}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
    return done.stdout


def make_base(place: Path, tag: str) -> None:
    """Make a small Debian with Python as an image for podman, with `debootstrap`, whose pip uses no index; needs
    root."""
    root, wheels = place / "root", place / "pip"
    _run(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", wheels, "pip")
    _run("debootstrap", "--variant=minbase", "--include=python3,libpython3-stdlib", RELEASE, root)
    for wheel in wheels.glob("*.whl"):  # pip may leave notes about downloads beside them
        shutil.copy(wheel, root / "opt")
    _run("chroot", root, "sh", "-ec", FINISH)
    packed = place / "base.tar"
    _run("tar", "-C", root, "-cf", packed, ".")
    alone = ("--change", "ENV PIP_NO_INDEX=1", "--change", f"ENV PIP_FIND_LINKS={WHEELS}")
    _run("podman", "import", "-q", *alone, packed, tag)


def without_network(dist: Path, place: Path) -> list[str]:
    """Options of `podman build` to install a release from packages downloaded here: an image does not know how this
    machine reaches an index."""
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
    """podman with the first runtime that can run an image here, or why none can."""
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
