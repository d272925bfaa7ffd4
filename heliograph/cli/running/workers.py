"""`heliograph workers`: lists and drains workers. `heliograph worker` runs one."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from heliograph.base.database.pool import Connection
from heliograph.cli.terminal.console import DataDir, on_database, settings_of, shell
from heliograph.cli.terminal.printing import Json, as_plain, group, is_for_programs, say, show
from heliograph.overview.installation import now
from heliograph.queue import workers

app = group("List workers, drain and resume them.")

COLUMNS = ("name", "state", "version", "sessions", "memory", "started_at", "seen_at")
Name = Annotated[str, typer.Argument(metavar="NAME", help="Name or id of a worker, from `workers list`.")]


@app.command("list")
def list_(json: Json = False, data_dir: DataDir = None) -> None:
    """List the workers seen within a minute: works, draining, drained, or gone.

    \b
    Example:
      heliograph workers list
    """
    show([_shown(one) for one in on_database(now.workers, settings_of(data_dir))], json, COLUMNS)


@app.command("drain")
def drain(
    name: Name,
    stay: Annotated[
        bool, typer.Option("--stay", help="Stay without work until `workers resume`, instead of ending.")
    ] = False,
    json: Json = False,
    data_dir: DataDir = None,
) -> None:
    """Have a worker finish what it holds and take nothing more. Then it ends, and its supervisor starts it again.

    It begins within five seconds and takes as long as SIGTERM would. Other workers carry on; without any, work waits.

    \b
    Examples:
      heliograph workers drain host-1:4711
      heliograph workers drain host-1:4711 --stay
    """
    then: workers.Drain = "stay" if stay else "end"

    async def work(conn: Connection) -> str:
        return await workers.drain(conn, name, then=then, by=shell())

    done = on_database(work, settings_of(data_dir))
    if is_for_programs(json):
        show({"name": done, "drain": then}, json)
    said = "stays without work until `heliograph workers resume`" if stay else "ends; its supervisor starts it again"
    say(f"{done} finishes what it holds, then {said}.")


@app.command("resume")
def resume(name: Name, json: Json = False, data_dir: DataDir = None) -> None:
    """Have a drained worker that stayed take work again.

    \b
    Example:
      heliograph workers resume host-1:4711
    """
    done = on_database(lambda conn: workers.resume(conn, name, by=shell()), settings_of(data_dir))
    if is_for_programs(json):
        show({"name": done, "drain": None}, json)
    say(f"{done} takes work again.")


def _shown(one: now.Worker) -> dict[str, Any]:
    return {**as_plain(one), "state": one.state}
