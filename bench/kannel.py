"""The whole way through Kannel, if Debian's package is installed: with the same SMSC, generator, limit of messages in
flight and server for receipts. Its `file` store is written every few seconds, so an accepted message may be lost, and
it reports receipts by a plain unsigned GET.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import time

from bench.accept import Lengths
from bench.control import Control
from bench.figures import Report
from bench.load import Options
from bench.stage import BenchError, Stage, free_port
from bench.way import IN_FLIGHT, WARM_UP
from heliograph.demo.seeding import WINDOW

#: Where Debian installs them, which is not in every user's PATH.
PATH = f"{os.environ.get('PATH', os.defpath)}:/usr/sbin"
NAMES = ("bearerbox", "smsbox")
#: Time allowed for the last receipts, seconds.
SETTLED = 30.0
CONFIGURATION = """
group = core
admin-port = {admin}
admin-password = {password}
smsbox-port = {boxes}
box-allow-ip = 127.0.0.1
log-file = {place}/bearerbox.txt
log-level = 4
store-type = file
store-location = {place}/store
dlr-storage = internal

group = smsc
smsc = smpp
smsc-id = bench
host = 127.0.0.1
port = {smsc}
transceiver-mode = true
smsc-username = bench
smsc-password = {smsc_password}
system-type = ""
max-pending-submits = {window}
throughput = 0

group = smsbox
bearerbox-host = 127.0.0.1
sendsms-port = {port}
log-file = {place}/smsbox.txt
log-level = 4
http-request-retry = 3

group = sendsms-user
username = bench
password = {password}
max-messages = 9
"""


async def kannel(stage: Stage, report: Report, lengths: Lengths) -> None:
    """Messages that Kannel accepts, sends and reports per second, and their cost; nothing if it is not installed."""
    programs = {name: shutil.which(name, path=PATH) for name in NAMES}
    if None in programs.values():
        stage.say("  not measured: Kannel is not installed (Debian's package `kannel`)")
        return
    rates, accepted = [], 0
    smsc = await stage.start_smsc()
    visits = await stage.start_visits()
    place = stage.place / "kannel"
    place.mkdir()
    password = secrets.token_hex(8)
    ports = {"admin": free_port(), "boxes": free_port(), "port": free_port(), "smsc": stage.smsc_port}
    configuration = place / "kannel.conf"
    configuration.write_text(
        CONFIGURATION.format(**ports, place=place, password=password, smsc_password=stage.smsc_password, window=WINDOW)
    )
    for name, program in programs.items():
        assert program is not None
        await stage.start_program(name, program, str(configuration))
        port = ports["boxes" if name == "bearerbox" else "port"]
        await stage.until_listening(name, port)
    try:
        for number in range(lengths.rounds):
            processes = {name: part.pid for name, part in stage.parts.items()}
            options = Options(
                port=ports["port"],
                key=f"bench:{password}",
                connections=64,
                warm_up=WARM_UP,
                seconds=lengths.way,
                in_flight=IN_FLIGHT,
                receipts_to=f"http://127.0.0.1:{stage.receiver_port}/?status=%d",
                processes=processes,
            )
            result = await stage.generate(options)
            stage.others.append(result.others)
            rates.append(result.received / result.seconds)
            accepted += result.statuses["202"]
            await _settle(smsc, visits, accepted)
            stage.say(f"  round {number + 1}: {rates[-1]:,.0f} receipts told/s at {result.rate:,.0f} accepted/s")
    finally:
        for name in (*reversed(NAMES), "visits", "smsc"):
            await stage.stop(name)
        smsc.close()
        visits.close()
        await asyncio.to_thread(shutil.rmtree, place, ignore_errors=True)
    report.add("kannel", "Kannel, file store: receipts told, 64 connections", rates, "/s")
    report.ratio("way_kannel", "whole way ÷ Kannel's", "way", "kannel")
    report.costs["Kannel"] = result.costs(result.received)


async def _settle(smsc: Control, visits: Control, accepted: int) -> None:
    """Wait until everything accepted is sent and reported. BenchError if that takes too long."""
    deadline = time.monotonic() + SETTLED
    while True:
        came: int = (await visits.ask("counters"))["received"]
        acknowledged: int = (await smsc.ask("counters"))["receipts_acked"]
        if came == acknowledged == accepted:
            return
        if time.monotonic() > deadline:
            raise BenchError(f"Kannel accepted {accepted}, acknowledged {acknowledged} receipts and told of {came}")
        await asyncio.sleep(0.1)
