"""`heliograph simulate`: the other side of the wire. A supplier's SMSC, and a customer's webhook receiver."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import uvloop

from heliograph.cli.console import Json, Problem, as_plain, group, say, show
from heliograph.cli.options import options_of
from heliograph.cli.process import stopping
from heliograph.simulators import receiver
from heliograph.simulators.smsc import Smsc, SmscOptions

app = group("Simulate the other side: a supplier's SMSC, or a customer's webhook receiver.")


@app.command("smsc")
@options_of(
    SmscOptions,
    names={"systems": "--system", "error_mix": "--error", "receipt_mix": "--receipt"},
    without=frozenset({"keep", "count_destinations"}),
)
def smsc(
    given: dict[str, Any],
    quiet: Annotated[bool, typer.Option("--quiet", help="Say nothing.")] = False,
    json: Json = False,
) -> None:
    """Run an SMSC that speaks SMPP 3.4, as well or as badly as told. Ctrl-C ends it.

    The last four digits of a recipient choose what becomes of a message: 0000 delivered, 0001 undelivered, 0002
    rejected, 0003 expired, 0004 no receipt, 0005 receipt after 60 s, 0006 receipt twice, 0007 receipt before the
    answer, 0008 refused, 0009 throttled, 0010 system error, 0011 receipt but no answer, 0012 neither, 0013 connection
    lost before the answer.

    \b
    Examples:
      heliograph simulate smsc
      heliograph simulate smsc --port 0 --json
      heliograph simulate smsc --system acme:secret --latency 0.05 --throughput 100
      heliograph simulate smsc --error 0x58=0.1 --receipt EXPIRED=0.05 --missing 0.01 --dlr-base hex
    """
    uvloop.run(_smsc(SmscOptions(**given), json, quiet))


async def _smsc(options: SmscOptions, json: bool, quiet: bool) -> None:
    try:
        simulator = Smsc(options)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    with stopping() as stop:
        await _started(simulator, options.host, options.port)
        try:
            if json:
                show({"host": options.host, "port": simulator.port, "systems": list(options.systems)}, json)
            elif not quiet:
                say(f"SMSC on {options.host}:{simulator.port} for {', '.join(options.systems)}. Ctrl-C ends it.")
            await stop.wait()
        finally:
            await simulator.stop()
    if quiet:
        return
    counts = {name: value for name, value in as_plain(simulator.counters).items() if value}
    say("  ".join(f"{name}: {value}" for name, value in counts.items()) or "Nothing came.")


@app.command("receiver")
def receive(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0: any free one.")] = 0,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            envvar="HELIOGRAPH_SIGNING_SECRET",
            show_default=False,
            metavar="SECRET",
            help="Callbacks must be signed with it; may be repeated. Without one, signatures are not looked at.",
        ),
    ] = None,
    status: Annotated[int, typer.Option(min=200, max=599, help="Status of answers.")] = 200,
    latency: Annotated[float, typer.Option(min=0, help="Seconds before each answer.")] = 0.0,
    fail_share: Annotated[float, typer.Option(min=0, max=1, help="Share answered with --fail-status instead.")] = 0.0,
    fail_status: Annotated[int, typer.Option(min=200, max=599, help="Status of those.")] = 500,
    retry_after: Annotated[int | None, typer.Option(min=0, help="Retry-After of answers that are not 2xx.")] = None,
    hang: Annotated[bool, typer.Option("--hang", help="Read everything, answer nothing.")] = False,
    byte_interval: Annotated[float, typer.Option(min=0, help="Seconds between two bytes of an answer.")] = 0.0,
    remember: Annotated[int, typer.Option(min=1, help="Event ids remembered, to tell duplicates.")] = 1_000_000,
    ledger: Annotated[Path | None, typer.Option(help="File that gets a line for each received event.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of what is left to chance.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print a line for each callback.")] = False,
    json: Json = False,
) -> None:
    """Take webhook callbacks, check their signatures and print a line for each. Ctrl-C ends it.

    GET on any path answers the counters. With --json the address is printed as one JSON line, and callbacks go to
    stderr.

    \b
    Examples:
      heliograph simulate receiver --port 9000
      heliograph simulate receiver --port 9000 --secret whsec_... --fail-share 0.2
      heliograph simulate receiver --port 0 --json --ledger events.txt
    """
    options = receiver.Options(
        host=host,
        port=port,
        secrets=tuple(secret or ()),
        status=status,
        latency=latency,
        fail_share=fail_share,
        fail_status=fail_status,
        retry_after=retry_after,
        hang=hang,
        byte_interval=byte_interval,
        keep=0,
        remember=remember,
        ledger=str(ledger or ""),
        seed=seed,
    )
    uvloop.run(_receive(options, json, quiet))


async def _receive(options: receiver.Options, json: bool, quiet: bool) -> None:
    sink = receiver.Receiver(options, said=None if quiet else say if json else _print)
    with stopping() as stop:
        await _started(sink, options.host, options.port)
        try:
            if json:
                show({"url": sink.url, "port": sink.port}, json)
            else:
                say(f"Listening on {sink.url}. Ctrl-C ends it.")
            await stop.wait()
        finally:
            await sink.stop()
    say("  ".join(f"{name}: {value}" for name, value in msgspec.to_builtins(sink.counters).items()))


async def _started(simulator: Smsc | receiver.Receiver, host: str, port: int) -> None:
    try:
        await simulator.start()
    except OSError as error:
        raise Problem(f"cannot start on {host}:{port}: {error.strerror or error}") from None


def _print(line: str) -> None:
    print(line, flush=True)  # a reader at the other end of a pipe wants it now
