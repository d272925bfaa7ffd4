"""What each process imports: nothing that it never uses (decision 229), and nothing that counts as garbage."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest

from tests.house.project import ROOT

#: Everything that a web process and a worker load, and then what the command line shows its progress with.
LOADED = """
import sys
import heliograph.cli.running.api, heliograph.cli.running.worker
assert not {"rich", "pygments", "attr"} & sys.modules.keys(), "loaded for nothing"
import rich.progress
"""


def test_a_process_loads_nothing_to_colour_tracebacks_with() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


#: Runs a command, and says at the end what was collected before it was loaded, whether anything is since, and how many
#: objects are left for the collection at exit.
COLLECTED = """
import atexit, gc, sys
from heliograph.cli import main

def collected(phase, info):
    if not gc.get_freeze_count():
        early.append(info["generation"])

early = []
gc.callbacks.append(collected)
atexit.register(lambda: print(early, gc.isenabled(), len(gc.get_objects()) < 100))
sys.argv = ["heliograph", "api", "--help"]
main()
"""


def test_a_command_does_not_look_for_garbage_in_what_it_imports() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECTED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[] True True"


#: The command is interrupted while a module that it needs is being loaded.
INTERRUPTED = """
import runpy, sys

class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise KeyboardInterrupt

sys.meta_path.insert(0, Interrupts())
runpy.run_module("heliograph", run_name="__main__")
"""


@pytest.mark.parametrize("module", ["structlog", "heliograph.cli", "heliograph.cli.terminal.console", "typer"])
def test_ctrl_c_while_a_command_is_loaded_ends_it_without_a_traceback(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED.format(module=module)], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_the_installed_command_is_the_module() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert scripts == {"heliograph": "heliograph.__main__:main"}
