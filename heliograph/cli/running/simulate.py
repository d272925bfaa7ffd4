"""`heliograph simulate`: a supplier's SMSC, Meta's Graph API, or a customer's webhook receiver."""

from __future__ import annotations

import os
import ssl
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import typer
import uvloop

from heliograph.base.network.failures import reason
from heliograph.base.process.signals import stopping
from heliograph.cli.terminal.console import Problem
from heliograph.cli.terminal.files import writable
from heliograph.cli.terminal.options import filled, options_of
from heliograph.cli.terminal.printing import JsonOnly, as_plain, group, say, show
from heliograph.http.server.server import CannotListen
from heliograph.simulators import receiver
from heliograph.simulators.graph.simulator import GraphOptions, GraphSimulator, Setup
from heliograph.simulators.options import demand_possible
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions
from heliograph.webhooks.delivery import signing

Options = TypeVar("Options", SmscOptions, GraphOptions)

app = group("Simulate a supplier's SMSC, Meta's Graph API, or a customer's webhook receiver.")


@app.command("smsc")
@options_of(
    SmscOptions,
    names={"systems": "--system", "error_mix": "--error", "receipt_mix": "--receipt"},
    without=frozenset({"keep", "count_destinations", "shared"}),
)
def smsc(
    given: dict[str, Any],
    config: Annotated[Path | None, typer.Option(help="JSON file {options: {...}}. Flags take precedence.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    json: JsonOnly = False,
) -> None:
    """Run an SMPP 3.4 SMSC with configurable faults. Ctrl-C stops it.

    For recipients that begin with 888, which is no country's code (--magic sets another prefix), the last four digits
    choose the outcome: 0000 delivered, 0001 undelivered, 0002 rejected, 0003 expired, 0004 no receipt, 0005 receipt
    after 60 s, 0006 receipt twice, 0007 receipt before the response, 0008 refused, 0009 throttled, 0010 system error,
    0011 receipt but no response, 0012 neither, 0013 connection lost before the response.

    \b
    Examples:
      heliograph simulate smsc
      heliograph simulate smsc --port 0 --json
      heliograph simulate smsc --system acme:secret --latency 0.05 --throughput 100
      heliograph simulate smsc --error 0x58=0.1 --receipt EXPIRED=0.05 --missing 0.01 --dlr-base hex
    """
    uvloop.run(_smsc(_read(config, SmscOptions(), given)[0], json, quiet))


async def _smsc(options: SmscOptions, json: bool, quiet: bool) -> None:
    if options.ledger:
        writable(Path(options.ledger))
    for path in filter(None, (options.tls_certificate, options.tls_key)):
        if not os.access(path, os.R_OK):
            raise Problem(f"{path} cannot be read")
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
                say(f"SMSC on {options.host}:{simulator.port} for {', '.join(options.systems)}. Ctrl-C stops it.")
            await stop.wait()
        finally:
            await simulator.stop()
    if quiet:
        return
    counts = {name: value for name, value in as_plain(simulator.counters).items() if value}
    say("  ".join(f"{name}: {value}" for name, value in counts.items()) or "Nothing received.")


class _Config(msgspec.Struct, forbid_unknown_fields=True):
    """The `--config` file: options by name, and the objects to start with instead of the demo's."""

    options: dict[str, Any] = {}
    setup: Setup | None = None


@app.command("graph")
@options_of(GraphOptions, names={}, without=frozenset({"shared"}))
def graph(
    given: dict[str, Any],
    config: Annotated[
        Path | None,
        typer.Option(
            help="JSON file {options, setup: {apps, accounts, numbers, templates, tokens}}. Flags take precedence."
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print nothing.")] = False,
    json: JsonOnly = False,
) -> None:
    """Run a simulation of Meta's Graph API for WhatsApp with configurable faults. Ctrl-C stops it.

    By default it has an app, an account, a number and four templates (order_shipped fr, appointment_reminder en,
    delivery_update en, login_code en). Point an account at it by using its address as the base URL. /_sim/ is its
    control plane: GET /_sim shows its state.

    For recipients that begin with 888, which is no country's code (--magic sets another prefix), the last four digits
    choose the outcome. 0000 sent, delivered, read; 0001 failed (131026); 0002 read, never delivered; 0003 sent, then
    nothing; 0004 nothing; 0005 statuses after 60 s; 0006 each status twice; 0007 a status before the response; 0008
    refused (131009); 0009 pair limit (131056); 0010 server error (131000); 0011 sent, no response; 0012 neither; 0013
    sent, connection lost before the response; 9001 failed after sent; 9002 delivered after failed; 9003 failed after
    delivered; 9004 never read; 9005 statuses in reverse order; 9006 held, then as 0000; 9007 held, then failed
    (132015); 9008 paused; 9009 131049; 9010 130472; 9011 131042; 9012 131047; 9013 price on delivered; 9014 price
    twice; 9015 no price; 9016 old status format; 9017 no contacts; 9018 HTML; 9019 empty 503; 9020 slow response; 9021
    throttled once; 9022 connection lost, not sent; 9023 refused (130403).

    \b
    Examples:
      heliograph simulate graph --webhook-url http://127.0.0.1:8080/in/whatsapp/...
      heliograph simulate graph --port 0 --latency-ms 0 --json
      heliograph simulate graph --batch 1000 --shuffle --duplicates 0.1 --seed 7
      heliograph simulate graph --templates templates.json --number +212520001234
    """
    uvloop.run(_graph(*_read(config, GraphOptions(), given), json, quiet))


def _read(config: Path | None, usual: Options, given: dict[str, Any]) -> tuple[Options, Setup | None]:
    """Merge the defaults `usual`, the file's options and the flags `given`; also return the file's setup."""
    defaults, flags = msgspec.to_builtins(usual, str_keys=True), msgspec.to_builtins(given, str_keys=True)
    try:
        read = _Config() if config is None else msgspec.json.decode(config.read_bytes(), type=_Config)
        return msgspec.convert(defaults | read.options | flags, type(usual), strict=False), read.setup
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"{config or 'options'}: {reason(error)}") from None


async def _graph(options: GraphOptions, setup: Setup | None, json: bool, quiet: bool) -> None:
    try:
        simulator = GraphSimulator(options, setup)
    except (OSError, ValueError) as error:
        raise typer.BadParameter(str(error)) from None
    with stopping() as stop:
        await _started(simulator, options.host, options.port)
        try:
            number = next(iter(simulator.world.numbers.values()), None)
            if json:
                shown = {"url": simulator.base_url, "port": simulator.port, "number": number and number.id}
                show(shown, json)
            elif not quiet:
                digits = f"+{number.digits}, phone number id {number.id}" if number is not None else "no number"
                say(f"Graph API on {simulator.base_url} for {digits}. Ctrl-C stops it.")
            await stop.wait()
        finally:
            await simulator.stop()
    if quiet:
        return
    counts = {name: value for name, value in as_plain(simulator.counters).items() if value}
    say("  ".join(f"{name}: {value}" for name, value in counts.items()) or "Nothing received.")


@app.command("receiver")
def receive(
    host: Annotated[str, typer.Option(help="Address to listen on.", callback=filled)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 0,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            envvar="HELIOGRAPH_SIGNING_SECRET",
            show_default=False,
            metavar="SECRET",
            help=("Signing secret to verify callbacks with. Repeatable. Without one, signatures are not checked."),
        ),
    ] = None,
    status: Annotated[int, typer.Option(min=200, max=599, help="Status of responses.")] = 200,
    latency: Annotated[float, typer.Option(min=0, help="Delay before each response, in seconds.")] = 0.0,
    fail_share: Annotated[
        float, typer.Option(min=0, max=1, help="Share of requests that get --fail-status instead.")
    ] = 0.0,
    fail_status: Annotated[int, typer.Option(min=200, max=599, help="Status for failed requests.")] = 500,
    retry_after: Annotated[int | None, typer.Option(min=0, help="Retry-After header of non-2xx responses.")] = None,
    hang: Annotated[bool, typer.Option("--hang", help="Read requests but never respond.")] = False,
    byte_interval: Annotated[float, typer.Option(min=0, help="Seconds between the bytes of a response.")] = 0.0,
    remember: Annotated[
        int, typer.Option(min=1, help="Number of event ids to remember for detecting duplicates.")
    ] = 1_000_000,
    ledger: Annotated[Path | None, typer.Option(help="File to append a line to for each event received.")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed for random choices.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not print a line for each callback.")] = False,
    json: JsonOnly = False,
) -> None:
    """Receive webhook callbacks, verify their signatures and print a line for each. Ctrl-C stops it.

    GET on any path returns the counters. With --json the address is printed as a JSON line, and callbacks are printed
    to stderr.

    \b
    Examples:
      heliograph simulate receiver --port 9000
      heliograph simulate receiver --port 9000 --secret whsec_... --fail-share 0.2
      heliograph simulate receiver --port 0 --json --ledger events.txt
    """
    for one in secret or ():
        try:
            signing.Signer([one])
        except ValueError as error:
            raise typer.BadParameter(f"is not a signing secret: {error}", param_hint="--secret") from None
    if ledger is not None:
        writable(ledger)
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
    try:
        demand_possible(options, shares=("fail_share",), below_zero=("seed",))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    uvloop.run(_receive(options, json, quiet))


async def _receive(options: receiver.Options, json: bool, quiet: bool) -> None:
    lost: list[OSError] = []
    with stopping() as stop:

        def printed(lines: str) -> None:
            try:
                print(lines, flush=True)  # a reader at the other end of a pipe needs it now
            except OSError as error:
                lost.append(error)
                stop.set()

        sink = receiver.Receiver(options, said=None if quiet else say if json else printed)
        await _started(sink, options.host, options.port)
        try:
            if json:
                show({"url": sink.url, "port": sink.port}, json)
            else:
                say(f"Listening on {sink.url}. Ctrl-C stops it.")
            await stop.wait()
        finally:
            await sink.stop()
    say("  ".join(f"{name}: {value}" for name, value in msgspec.to_builtins(sink.counters).items()))
    if lost:
        raise lost[0]


async def _started(simulator: Smsc | GraphSimulator | receiver.Receiver, host: str, port: int) -> None:
    try:
        await simulator.start()
    except CannotListen as error:
        raise Problem(f"cannot start: {error}") from None
    except ssl.SSLError as error:
        raise Problem(f"the certificate and its key cannot be used: {error.reason or error}") from None
    except OSError as error:
        raise Problem(f"cannot start on {host}:{port}: {error.strerror or error}") from None
