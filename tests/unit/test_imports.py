"""What each process imports: nothing that it never uses (decision 229), and nothing that becomes garbage."""

from __future__ import annotations

import subprocess
import sys
import tomllib

import pytest
import typer

from heliograph.cli import NOUNS, app
from tests.house.project import ROOT

#: Everything that a web process and a worker load, and then what the command line uses to show progress.
LOADED = """
import sys
import heliograph.cli.running.api, heliograph.cli.running.worker
assert not {"rich", "pygments", "attr"} & sys.modules.keys(), "loaded for nothing"
import rich.progress
"""


def test_a_process_loads_nothing_to_colour_tracebacks_with() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


#: Runs a command, and finally prints what was collected before it was loaded, whether anything has been since, and how
#: many objects are left for the collection at exit.
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


#: Lists the commands, or completes a line, and finally prints which modules of commands were loaded for that.
LISTED = """
import atexit, os, sys
from heliograph.cli import main

def loaded():
    own = [name for name in sys.modules if name.startswith("heliograph.cli.")]
    print("loaded", [name for name in own if not name.startswith("heliograph.cli.terminal")])

atexit.register(loaded)
if (line := {line!r}).endswith("--help"):
    sys.argv = line.split()
else:
    os.environ |= {{"_HELIOGRAPH_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": "1"}}
main()
"""


@pytest.mark.parametrize(
    ("line", "found"),
    [("heliograph --help", "  campaign "), ("heliograph ", "campaign"), ("heliograph --v", "--version")],
)
def test_listing_the_commands_loads_none(line: str, found: str) -> None:
    """Loading all of them takes a second, too long for a Tab."""
    done = subprocess.run([sys.executable, "-c", LISTED.format(line=line)], capture_output=True, text=True)
    *lines, loaded = done.stdout.splitlines()
    assert loaded == "loaded []"
    assert any(one.startswith(found) for one in lines), done


def test_commands_are_listed_with_the_first_sentence_of_their_help() -> None:
    commands = typer.main.get_group(app)
    context = typer.Context(commands)
    for name, noun in NOUNS.items():
        command = commands.get_command(context, name)
        assert command is not None
        assert (name, command.get_short_help_str(1_000)) == (name, noun.summary)


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
