"""The measured machine, and its usage by processes."""

from __future__ import annotations

import contextlib
import os
import platform
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import heliograph

_TICKS = os.sysconf("SC_CLK_TCK")
_SHOWN = ("uvloop", "asyncpg", "msgspec", "httptools")


def facts(place: Path) -> list[tuple[str, str]]:
    """(name, value) of everything that figures depend on. `place`: where the database will be."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    load = " ".join(f"{one:.2f}" for one in os.getloadavg())
    return [
        ("Machine", f"{_processor()}, {os.cpu_count()} cores, {memory:.0f} GB RAM, Linux {platform.release()}"),
        ("Disk", f"{file_system(place)}, write and fdatasync of 8 kB {fsync_ms(place):.2f} ms (median)"),
        ("Load before", load),
        ("Python", f"{_python()}, " + ", ".join(f"{name} {version(name)}" for name in _SHOWN)),
        ("Heliograph", f"{getattr(heliograph, '__version__', '')} on {sys.platform}".strip()),
    ]


def _python() -> str:
    """Its version, and whether it was built without the optimizations that most distributions enable.

    Distributions optimize in a separate build, and record the arguments of another: Debian's does not mention it, and
    runs a fifth faster than the same version built without.
    """
    arguments = sysconfig.get_config_var("CONFIG_ARGS") or "--enable-optimizations"
    plain = "--enable-optimizations" not in arguments and sys.base_prefix != "/usr"
    return platform.python_version() + (" built without profile-guided optimization" if plain else "")


def fsync_ms(place: Path, *, times: int = 200) -> float:
    """Median time in ms of an in-place write of 8 kB with fdatasync, like a commit."""
    path = place / "fsync-probe"
    took = []
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        os.write(descriptor, bytes(times * 8192))
        os.fsync(descriptor)
        for number in range(times):
            began = time.perf_counter()
            os.pwrite(descriptor, os.urandom(8192), number * 8192)
            os.fdatasync(descriptor)
            took.append(time.perf_counter() - began)
    finally:
        os.close(descriptor)
        path.unlink()
    return statistics.median(took) * 1000


def file_system(place: Path) -> str:
    """The type of the file system that `place` is on, such as "ext4"."""
    found, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, name, *_ = line.split()
        if len(mount) >= len(found) and place.absolute().is_relative_to(mount):
            found, kind = mount, name
    return kind


def processor_seconds(pid: int) -> float:
    """Processor time of a process and its children, including ended ones, since their start."""
    return sum(_times(one) for one in _family(pid))


def clock_seconds(pid: int) -> float:
    """Processor time of one process and all of its threads, without children, to the nanosecond: `processor_seconds`
    counts in ticks of 10 ms, of which a window of two seconds has too few."""
    # CPUCLOCK_SCHED of a process, as glibc's clock_getcpuclockid(3) makes it.
    return time.clock_gettime((~pid << 3) | 2)


def busy_seconds() -> float:
    """Processor time that the whole machine has spent on anything, all cores, since its start."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    # All but idle and iowait (proc(5)); guests are included in user and nice.
    return sum(int(field) for number, field in enumerate(fields[:8]) if number not in (3, 4)) / _TICKS


def resident_mb(pid: int) -> float:
    """Resident memory of one process, MB."""
    return int(_status(pid, "VmRSS")) / 1024


def free_gb(place: Path) -> float:
    """Free space on the disk of `place`, GB."""
    found = os.statvfs(place)
    return found.f_bavail * found.f_frsize / 2**30


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _status(pid: int, name: str) -> str:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return line.split()[1]
    raise RuntimeError(f"process {pid} has no {name}")


def _family(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in (task / "children").read_text().split():
                yield from _family(int(child))


def _times(pid: int) -> float:
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    # utime, stime, and those of children that ended (proc(5), fields 14 to 17).
    return sum(int(field) for field in fields[11:15]) / _TICKS
