"""The SMSC simulator, tested over raw sockets and with smpplib, neither of which shares code with it."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import smpplib.client
import smpplib.consts
import smpplib.exceptions
import uvloop

from heliograph.base.network.tls import client_context
from heliograph.base.phones import REGIONS
from heliograph.simulators.smsc.options import fates
from heliograph.simulators.smsc.simulator import Smsc, SmscOptions, run
from tests.certificates import Authority
from tests.ports import held_port

HEADER = struct.Struct(">IIII")
TRANSCEIVER, TRANSMITTER, RECEIVER = 9, 2, 1
SUBMIT, SUBMIT_RESP, DELIVER, DATA = 0x04, 0x80000004, 0x05, 0x103
RECIPIENT = "258841234567"


@asynccontextmanager
async def simulator(**options: Any) -> AsyncIterator[Smsc]:
    with held_port() as port:  # while it is stopped, too
        smsc = Smsc(SmscOptions(port=port, **options))
        await smsc.start()
        try:
            yield smsc
        finally:
            await smsc.stop()


class Client:
    """A minimal ESME, which answers nothing by itself."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.sequence = 0

    def send(self, command: int, body: bytes = b"", *, status: int = 0, sequence: int | None = None) -> int:
        if sequence is None:
            self.sequence += 1
            sequence = self.sequence
        self.writer.write(HEADER.pack(16 + len(body), command, status, sequence) + body)
        return sequence

    async def read(self) -> tuple[int, int, int, bytes]:
        async with asyncio.timeout(120):
            length, command, status, sequence = HEADER.unpack(await self.reader.readexactly(16))
            return command, status, sequence, await self.reader.readexactly(length - 16)

    async def bind(self, kind: int = TRANSCEIVER, password: str = "secret", system_id: str = "heliograph") -> int:
        self.send(kind, system_id.encode() + b"\0" + password.encode() + b"\0\0\x34\0\0\0")
        command, status, _, body = await self.read()
        assert command == kind | 0x80000000
        assert status or body.endswith(b"\x02\x10\0\x01\x34")
        return status

    def submit(
        self,
        to: str = RECIPIENT,
        message: bytes = b"Hello",
        *,
        registered: int = 1,
        esm_class: int = 3,
        data_coding: int = 0,
        tlvs: bytes = b"",
        source: bytes = b"\x05\0HELIO\0",
    ) -> int:
        body = b"\0" + source + b"\x01\x01" + to.encode() + b"\0" + bytes((esm_class, 0, 0)) + b"\0\0"
        body += bytes((registered, 0, data_coding, 0, len(message))) + message + tlvs
        return self.send(SUBMIT, body)

    async def answer(self) -> tuple[int, str]:
        """Status and message id of the next PDU, which must be a submit_sm_resp."""
        command, status, _, body = await self.read()
        assert command == SUBMIT_RESP
        return status, body.rstrip(b"\0").decode()

    async def receipt(self, *, acknowledge: int | None = 0) -> bytes:
        """Body of the next PDU, which must be a deliver_sm or data_sm."""
        command, _, sequence, body = await self.read()
        assert command in (DELIVER, DATA)
        if acknowledge is not None:
            self.send(command | 0x80000000, b"\0", status=acknowledge, sequence=sequence)
        return body

    async def nothing(self) -> None:
        """Nothing more has come for earlier requests: the next PDU answers the enquire_link sent now."""
        self.send(0x15)
        assert (await self.read())[0] == 0x80000015

    async def closed(self) -> bytes:
        async with asyncio.timeout(120):
            try:
                return await self.reader.read(-1)
            except ConnectionResetError:
                return b""


@asynccontextmanager
async def client(smsc: Smsc, *, bind: int | None = TRANSCEIVER, **options: Any) -> AsyncIterator[Client]:
    one = Client(*await asyncio.open_connection("127.0.0.1", smsc.port, **options))
    try:
        if bind is not None:
            assert await one.bind(bind) == 0
        yield one
    finally:
        one.writer.close()


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not true():  # noqa: ASYNC110
            await asyncio.sleep(0.005)


def stat(receipt: bytes) -> str:
    return receipt.split(b"stat:")[1].split()[0].decode()


async def test_submit_answer_receipt() -> None:
    async with simulator(keep=10, count_destinations=True) as smsc, client(smsc) as esme:
        sequence = esme.submit(tlvs=struct.pack(">HHH", 0x0204, 2, 0x1234))
        command, status, answered, body = await esme.read()
        assert (command, status, answered) == (SUBMIT_RESP, 0, sequence)
        id = body.rstrip(b"\0")

        receipt = await esme.receipt()
        assert receipt.startswith(b"\0\x01\x01" + RECIPIENT.encode() + b"\0\x05\0HELIO\0\x04")  # the other way round
        assert b"id:" + id + b" sub:001 dlvrd:001 submit date:" in receipt
        assert b" stat:DELIVRD err:000 text:Hello" in receipt
        assert receipt.endswith(b"\0\x1e" + struct.pack(">H", len(id) + 1) + id + b"\0" + b"\x04\x27\0\x01\x02")

        await until(lambda: smsc.counters.receipts_acked == 1)
        assert smsc.waiting == 0
        (received,) = smsc.received
        assert (received.destination, received.source, received.text) == (RECIPIENT, "HELIO", "Hello")
        assert (received.reference, received.message_id, received.system_id) == (0x1234, id.decode(), "heliograph")
        assert received.tlvs == {0x0204: b"\x12\x34"}
        assert smsc.destinations == {RECIPIENT: 1}


async def test_smpplib_as_client() -> None:
    async with simulator(latency=0.01) as smsc:
        ids: list[str] = []
        receipts: list[str] = []

        def talk() -> None:
            esme = smpplib.client.Client("127.0.0.1", smsc.port, timeout=120, allow_unknown_opt_params=True)
            esme.set_message_sent_handler(lambda pdu: ids.append(pdu.message_id.decode()))

            def received(pdu: Any) -> int:
                receipts.append(pdu.receipted_message_id.decode())
                assert pdu.esm_class == 4
                assert pdu.message_state == 2
                assert b"stat:DELIVRD" in pdu.short_message
                return 0

            esme.set_message_received_handler(received)
            esme.connect()
            with pytest.raises(smpplib.exceptions.PDUError):
                esme.bind_transceiver(system_id="heliograph", password="wrong")
            esme.disconnect()
            esme.connect()
            esme.bind_transceiver(system_id="heliograph", password="secret")
            for number in range(20):
                esme.send_message(
                    source_addr_ton=smpplib.consts.SMPP_TON_ALNUM,
                    source_addr="HELIO",
                    dest_addr_ton=smpplib.consts.SMPP_TON_INTL,
                    dest_addr_npi=smpplib.consts.SMPP_NPI_ISDN,
                    destination_addr=f"25884125{number + 5000}",
                    short_message=b"Hello",
                    registered_delivery=True,
                )
            while len(receipts) < 20:
                esme.read_once()
            esme.unbind()
            esme.disconnect()

        await asyncio.to_thread(talk)
        assert sorted(ids) == sorted(receipts)
        assert len(set(ids)) == 20
        await until(lambda: smsc.bound == 0)
        assert smsc.counters.receipts_acked == 20


@pytest.mark.parametrize(
    ("system_id", "password", "status"), [("heliograph", "wrong", 0x0E), ("nobody", "secret", 0x0F)]
)
async def test_bind_refused(system_id: str, password: str, status: int) -> None:
    async with simulator() as smsc, client(smsc, bind=None) as esme:
        assert await esme.bind(password=password, system_id=system_id) == status
        assert await esme.closed() == b""


async def test_too_many_binds() -> None:
    async with simulator(max_binds=1) as smsc, client(smsc) as first:
        async with client(smsc, bind=None) as second:
            assert await second.bind() == 0x05
        first.send(0x06)
        assert (await first.read())[0] == 0x80000006
        await until(lambda: smsc.bound == 0)
        async with client(smsc):
            assert smsc.bound == 1


async def test_bind_status_and_second_bind() -> None:
    async with simulator(bind_status=0x0D) as smsc:
        async with client(smsc, bind=None) as esme:
            assert await esme.bind() == 0x0D
        smsc.configure(bind_status=0)
        async with client(smsc) as esme:
            assert await esme.bind() == 0x05
            esme.submit()
            assert (await esme.answer())[0] == 0  # still the first session


async def test_submits_need_a_bind_that_allows_them() -> None:
    async with simulator() as smsc, client(smsc, bind=None) as unbound, client(smsc, bind=RECEIVER) as receiver:
        for esme in (unbound, receiver):
            esme.submit()
            assert (await esme.answer())[0] == 0x04


async def test_receipts_go_to_a_receiver() -> None:
    async with simulator() as smsc, client(smsc, bind=TRANSMITTER) as sender:
        sender.submit()
        assert (await sender.answer())[0] == 0
        await sender.nothing()
        assert smsc.waiting == 1
        async with client(smsc, bind=RECEIVER) as receiver:
            assert stat(await receiver.receipt()) == "DELIVRD"


@pytest.mark.parametrize(
    ("digits", "stats"),
    [
        ("0000", ["DELIVRD"]),
        ("0001", ["UNDELIV"]),
        ("0002", ["REJECTD"]),
        ("0003", ["EXPIRED"]),
        ("0004", []),
        ("0005", []),
        ("0006", ["DELIVRD", "DELIVRD"]),
    ],
)
async def test_magic_recipients(digits: str, stats: list[str]) -> None:
    async with simulator() as smsc, client(smsc) as esme:
        esme.submit("88810000" + digits)
        assert (await esme.answer())[0] == 0
        assert [stat(await esme.receipt()) for _ in stats] == stats
        await esme.nothing()


@pytest.mark.parametrize(("digits", "status"), [("0008", 0x0B), ("0009", 0x58), ("0010", 0x08)])
async def test_magic_refusals(digits: str, status: int) -> None:
    async with simulator() as smsc, client(smsc) as esme:
        esme.submit("88810000" + digits)
        assert await esme.answer() == (status, "")
        await esme.nothing()


async def test_magic_without_an_answer() -> None:
    async with simulator() as smsc, client(smsc) as esme:
        esme.submit("888100000012")
        await esme.nothing()
        esme.submit("888100000011")
        assert stat(await esme.receipt()) == "DELIVRD"
        esme.submit("888100000013")
        assert await esme.closed() == b""
        async with client(smsc) as again:
            assert b"888100000013" in await again.receipt()


async def test_magic_can_be_switched_off() -> None:
    async with simulator(magic="") as smsc, client(smsc) as esme:
        esme.submit("888100000001")
        await esme.answer()
        assert stat(await esme.receipt()) == "DELIVRD"


@pytest.mark.parametrize("digits", ["0001", "0008", "0012", "0013"])
async def test_no_number_of_a_country_has_a_fate_by_itself(digits: str) -> None:
    assert REGIONS["888"] == "001"
    async with simulator() as smsc, client(smsc) as esme:
        esme.submit("25884123" + digits)
        assert (await esme.answer())[0] == 0
        assert stat(await esme.receipt()) == "DELIVRD"
    async with (
        simulator(magic="25884", missing=0.0, interim=0.0, receipt_mix={"EXPIRED": 1.0}) as smsc,
        client(smsc) as esme,
    ):
        esme.submit("258841230001")
        await esme.answer()
        assert stat(await esme.receipt()) == "UNDELIV"
        esme.submit("351912340001")
        await esme.answer()
        assert stat(await esme.receipt()) == "EXPIRED"


async def test_early_receipt() -> None:
    async with simulator(latency=0.02, early=1.0) as smsc, client(smsc) as esme:
        for _ in range(3):
            esme.submit()
        receipts = [await esme.receipt() for _ in range(3)]
        ids = [(await esme.answer())[1] for _ in range(3)]
        assert all(id.encode() in receipt for id, receipt in zip(ids, receipts, strict=True))


async def test_latency_and_receipt_delay_keep_the_order() -> None:
    await submits_with_delays()


async def submits_with_delays() -> None:
    async with simulator(latency=0.02, receipt_delay=0.02) as smsc, client(smsc) as esme:
        sequences = [esme.submit(message=b"%d" % number) for number in range(50)]
        assert [(await esme.read())[2] for _ in sequences] == sequences
        assert [int((await esme.receipt()).split(b"text:")[1].split(b"\0")[0]) for _ in sequences] == list(range(50))


async def test_registered_delivery() -> None:
    async with simulator() as smsc, client(smsc) as esme:
        for registered, digits in [(0, "4567"), (2, "4567"), (3, "0001"), (0, "0001")]:
            esme.submit("88884123" + digits, registered=registered)
            await esme.answer()
            await esme.nothing()
        for registered, digits in [(0x11, "4567"), (2, "0001"), (3, "4567")]:
            esme.submit("88884123" + digits, registered=registered)
            await esme.answer()
            await esme.receipt()
        smsc.configure(receipts=False)
        esme.submit()
        await esme.answer()
        await esme.nothing()


async def test_throughput() -> None:
    async with simulator(throughput=10) as smsc, client(smsc) as esme:
        for _ in range(30):
            esme.submit(registered=0)
        statuses = [(await esme.answer())[0] for _ in range(30)]
        assert statuses[:10] == [0] * 10
        assert statuses.count(0x58) == smsc.counters.throttled >= 18


async def test_mixes_follow_the_seed() -> None:
    options = SmscOptions(
        seed=7, error_mix={0x08: 0.2, 0x58: 0.1}, receipt_mix={"UNDELIV": 0.5}, missing=0.25, duplicates=0.25
    )
    first, second = fates(options), fates(options)
    rolled = [first(b"4567") for _ in range(4000)]
    assert rolled == [second(b"4567") for _ in range(4000)]
    shares = {status: sum(fate.status == status for fate in rolled) / 4000 for status in (0, 0x08, 0x58)}
    assert shares == pytest.approx({0: 0.7, 0x08: 0.2, 0x58: 0.1}, abs=0.03)
    taken = [fate for fate in rolled if not fate.status]
    assert sum(not fate.stat for fate in taken) / len(taken) == pytest.approx(0.25, abs=0.03)
    assert sum(fate.stat == "UNDELIV" for fate in taken) / len(taken) == pytest.approx(0.375, abs=0.03)
    assert sum(fate.twice for fate in taken) / len(taken) == pytest.approx(0.25, abs=0.03)
    with pytest.raises(ValueError):
        fates(SmscOptions(error_mix={8: 0.7, 0x58: 0.7}))


@pytest.mark.parametrize(
    "options",
    [
        {"resp_padding": -1},
        {"dlr_padding": 65},
        {"constant_id": "n\u00famero"},
        {"receipt_mix": {"EXPIRED": -0.5}},
        {"receipt_mix": {"\u20ac": 0.5}},
        {"error_mix": {1 << 32: 0.5}},
        {"bind_status": 1 << 32},
        {"redeliver_after": float("nan")},
        {"interim": 1.5},
    ],
)
async def test_options_that_no_pdu_could_be_made_with_are_refused(options: dict[str, Any]) -> None:
    """Such a simulator would start, and cut every session at its first message."""
    with pytest.raises(ValueError):
        Smsc(SmscOptions(port=0, **options))
    async with simulator() as smsc:
        with pytest.raises(ValueError):
            smsc.configure(**options)


async def test_swallowed_answers() -> None:
    async with simulator(swallow=1.0) as smsc, client(smsc) as esme:
        esme.submit()
        assert stat(await esme.receipt()) == "DELIVRD"
        assert smsc.counters.swallowed == 1


async def test_interim_receipt() -> None:
    async with simulator(interim=1.0) as smsc, client(smsc) as esme:
        esme.submit()
        await esme.answer()
        interim, final = await esme.receipt(), await esme.receipt()
        assert (stat(interim), stat(final)) == ("ACCEPTD", "DELIVRD")
        assert b"HELIO\0\x20" in interim


@pytest.mark.parametrize(
    ("options", "same"),
    [
        ({"resp_base": "hex", "dlr_base": "dec"}, lambda resp, dlr: int(resp, 16) == int(dlr)),
        ({"resp_base": "dec", "dlr_base": "hex"}, lambda resp, dlr: int(resp) == int(dlr, 16)),
        ({"dlr_padding": 20}, lambda resp, dlr: len(dlr) == 20 and dlr.lstrip("0") == resp),
        ({"resp_padding": 20}, lambda resp, dlr: len(resp) == 20 and resp.lstrip("0") == dlr),
        (
            {"resp_base": "hex", "dlr_base": "hex", "dlr_upper": True},
            lambda resp, dlr: resp != dlr and resp.upper() == dlr,
        ),
        ({"resp_base": "text", "dlr_base": "text"}, lambda resp, dlr: resp == dlr and resp.startswith("hg-")),
        ({"constant_id": "123456789"}, lambda resp, dlr: resp == dlr == "123456789"),
        ({"empty_id": True}, lambda resp, dlr: resp == dlr == ""),
    ],
)
async def test_ids(options: dict[str, Any], same: Callable[[str, str], bool]) -> None:
    async with simulator(form="text", **options) as smsc, client(smsc) as esme:
        esme.submit()
        _, answered = await esme.answer()
        receipt = await esme.receipt()
        assert same(answered, receipt.split(b"id:")[1].split()[0].decode() if b"id:" in receipt else "")


async def test_receipt_forms() -> None:
    async with simulator(form="tlv", echo_reference=True) as smsc, client(smsc) as esme:
        reference = struct.pack(">HHH", 0x0204, 2, 7)
        esme.submit(tlvs=reference)
        _, id = await esme.answer()
        octets = id.encode() + b"\0"
        tlvs = struct.pack(">HH", 0x1E, len(octets)) + octets + b"\x04\x27\0\x01\x02" + reference
        assert (await esme.receipt()).endswith(b"\x04" + b"\0" * 9 + tlvs)

        smsc.configure(by="data_sm", form="both")
        esme.submit()
        await esme.answer()
        command, _, sequence, body = await esme.read()
        assert command == DATA
        assert b"\x05\0HELIO\0\x04\0\0" in body  # esm_class, registered_delivery, data_coding
        assert b"stat:DELIVRD" in body.split(b"\x04\x24")[1]
        esme.send(0x80000103, b"\0", sequence=sequence)
        await until(lambda: smsc.counters.receipts_acked == 2)


@pytest.mark.parametrize(("policy", "parts"), [("all", [1, 2, 3]), ("first", [1]), ("last", [3]), ("summary", [3])])
@pytest.mark.parametrize("transport", ["udh8", "udh16", "sar"])
async def test_receipts_of_a_long_message(policy: str, parts: list[int], transport: str) -> None:
    async with simulator(parts=policy, keep=3) as smsc, client(smsc) as esme:
        ids = []
        for part in (1, 2, 3):
            if transport == "udh8":
                esme.submit(message=bytes((5, 0, 3, 9, 3, part)) + b"a" * 153, esm_class=0x43)
            elif transport == "udh16":
                esme.submit(message=bytes((6, 8, 4, 0, 9, 3, part)) + b"a" * 152, esm_class=0x43)
            else:
                tlvs = struct.pack(">HHHHHBHHB", 0x20C, 2, 9, 0x20E, 1, 3, 0x20F, 1, part)
                esme.submit(message=b"a" * 153, tlvs=tlvs)
        receipts = []
        while len(ids) < 3 or len(receipts) < len(parts):
            command, status, sequence, body = await esme.read()
            assert status == 0
            if command == SUBMIT_RESP:
                ids.append(body.rstrip(b"\0"))
            else:
                receipts.append(body)
                esme.send(0x80000005, b"\0", sequence=sequence)
        await esme.nothing()
        assert [[ids[part - 1] in receipt for receipt in receipts].count(True) for part in parts] == [1] * len(parts)
        assert (b"sub:003 dlvrd:003" in receipts[0]) is (policy == "summary")
        assert [(one.part, one.parts) for one in smsc.received] == [(1, 3), (2, 3), (3, 3)]


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"message": b"a" * 161}, 0x01),
        ({"message": b"a" * 160}, 0),
        ({"message": b"\0a" * 70, "data_coding": 8}, 0),
        ({"message": b"\0a" * 71, "data_coding": 8}, 0x01),
        ({"message": b"\x05\0\x03\x01\x02\x01" + b"a" * 153, "esm_class": 0x40}, 0),
        ({"message": b"\x05\0\x03\x01\x02\x01" + b"a" * 154, "esm_class": 0x40}, 0x01),
        ({"message": b"\x05\0\x03\x01\x02\x01" + b"\0a" * 67, "esm_class": 0x40, "data_coding": 8}, 0),
        ({"message": b"\x05\0\x03\x01\x02\x01" + b"\0a" * 68, "esm_class": 0x40, "data_coding": 8}, 0x01),
        ({"message": b"\xffHello", "esm_class": 0x40}, 0x01),
        ({"message": b"", "esm_class": 0x40}, 0x01),
        ({"message": b"", "tlvs": struct.pack(">HH", 0x424, 400) + b"a" * 400}, 0),
        ({"message": b"a", "tlvs": struct.pack(">HH", 0x424, 1) + b"a"}, 0xC1),
        ({"tlvs": b"\x02\x04\0\xff\0"}, 0xC0),
        ({"tlvs": b"\x02\x04"}, 0xC0),
        ({"tlvs": b"\x14\x00\0\x03abc"}, 0),
        ({"to": "+258841234567"}, 0x0B),
        ({"to": ""}, 0x0B),
        ({"source": b"\x05\0TwelveLetter\0"}, 0x0A),
        ({"source": b"\x05\0Eleven Char\0"}, 0),
    ],
)
async def test_submits_are_checked(fields: dict[str, Any], status: int) -> None:
    async with simulator(keep=1, ledger="") as smsc, client(smsc) as esme:
        esme.submit(registered=0, **fields)
        assert (await esme.answer())[0] == status
        assert smsc.received[0].status == status


async def test_submits_that_end_too_soon() -> None:
    async with simulator(keep=1) as smsc, client(smsc) as esme:
        esme.submit()
        await esme.answer()
        await esme.receipt()
        for body, status in [
            (b"", 0x02),
            (b"\0\x05\0HELIO", 0x02),
            (b"\0\0\0\0\0\0" + b"1\0" + b"\0" * 9 + b"\x09a", 1),
        ]:
            esme.send(SUBMIT, body)
            assert (await esme.answer())[0] == status


async def test_bytes_arrive_one_by_one_or_all_at_once() -> None:
    async with simulator() as smsc, client(smsc) as esme:
        whole = HEADER.pack(16, 0x15, 0, 77) * 3
        for octet in whole:
            esme.writer.write(bytes((octet,)))
            await esme.writer.drain()
            await asyncio.sleep(0)
        esme.writer.write(whole)
        assert [(await esme.read())[:3] for _ in range(6)] == [(0x80000015, 0, 77)] * 6


async def test_garbage() -> None:
    async with simulator() as smsc, client(smsc) as esme:
        esme.send(0x77)
        assert (await esme.read())[:2] == (0x80000000, 0x03)
        esme.writer.write(b"GET / HTTP/1.1\r\n\r\n")
        assert (await esme.read())[:3] == (0x80000000, 0x02, 0)
        assert await esme.closed() == b""


async def test_redelivery_on_the_next_bind() -> None:
    async with simulator() as smsc:
        async with client(smsc) as esme:
            for number in range(3):
                esme.submit(message=b"%d" % number)
            for _ in range(3):
                await esme.read()
            first = [await esme.receipt(acknowledge=0 if number == 0 else None) for number in range(3)]
            await until(lambda: smsc.counters.receipts_acked == 1)
            esme.writer.transport.abort()
        await until(lambda: smsc.bound == 0)
        assert smsc.waiting == 2
        async with client(smsc) as again:
            assert [await again.receipt() for _ in range(2)] == first[1:]
            await until(lambda: smsc.waiting == 0)
            assert (smsc.counters.redelivered, smsc.counters.receipts_acked) == (2, 3)


async def test_redelivery_of_what_is_not_answered_with_zero() -> None:
    async with simulator(redeliver_after=0.3) as smsc, client(smsc) as esme:
        esme.submit()
        await esme.answer()
        first = await esme.receipt(acknowledge=None)
        assert await esme.receipt(acknowledge=0x64) == first
        assert await esme.receipt(acknowledge=0) == first
        esme.submit()
        await esme.answer()
        await esme.receipt(acknowledge=0x66)
        await until(lambda: smsc.counters.discarded == 1)
        assert smsc.waiting == 0


async def test_receipts_on_another_bind() -> None:
    async with simulator(other_bind=True) as smsc, client(smsc) as first:
        first.submit()
        await first.answer()
        assert stat(await first.receipt()) == "DELIVRD"  # there is no other
        async with client(smsc) as second:
            first.submit()
            await first.answer()
            assert stat(await second.receipt()) == "DELIVRD"
            await first.nothing()


async def test_window_of_receipts() -> None:
    async with simulator(window=2) as smsc, client(smsc) as esme:
        for _ in range(5):
            esme.submit()
        commands = [(await esme.read())[:3:2] for _ in range(7)]
        receipts = [sequence for command, sequence in commands if command == DELIVER]
        assert len(receipts) == 2
        await esme.nothing()
        esme.send(0x80000005, b"\0", sequence=receipts[0])
        await esme.receipt()


async def test_drop_after() -> None:
    async with simulator(drop_after=3) as smsc, client(smsc, bind=TRANSMITTER) as esme:
        for _ in range(3):
            esme.submit()
        assert [(await esme.answer())[0] for _ in range(2)] == [0, 0]
        assert await esme.closed() == b""
        assert smsc.counters.accepted == 3
        async with client(smsc, bind=RECEIVER) as receiver:
            for _ in range(3):
                await receiver.receipt()


async def test_unbind_after_and_unbind() -> None:
    async with simulator(unbind_after=1) as smsc:
        async with client(smsc) as esme:
            esme.submit(registered=0)
            assert (await esme.answer())[0] == 0
            command, _, sequence, _ = await esme.read()
            assert command == 0x06
            esme.submit(registered=0)
            assert (await esme.answer())[0] == 0  # until the client has gone
            esme.send(0x80000006, sequence=sequence)
            assert await esme.closed() == b""
        async with client(smsc) as esme:
            smsc.unbind()
            assert (await esme.read())[0] == 0x06


async def test_deaf() -> None:
    async with simulator(deaf=True) as smsc, client(smsc) as esme:
        esme.submit()
        esme.send(0x15)
        await until(lambda: smsc.counters.enquire_links == 1)
        smsc.configure(deaf=False)
        esme.send(0x15, sequence=99)
        assert (await esme.read())[2] == 99
        assert (smsc.counters.submits, smsc.counters.accepted) == (1, 0)


async def test_enquire_link_of_its_own() -> None:
    async with simulator(enquire=0.01) as smsc, client(smsc) as esme:
        assert (await esme.read())[0] == 0x15
        assert smsc.bound == 1


async def test_inbound() -> None:
    async with simulator() as smsc, client(smsc) as esme:
        assert smsc.send_inbound("+258841234567", "12345", "STOP") == 1
        body = await esme.receipt()
        assert body == b"\0\x01\x01258841234567\0\x01\x0112345\0" + b"\0" * 9 + b"\x04STOP"
        await until(lambda: smsc.counters.inbound_acked == 1)

        assert smsc.send_inbound("258841234567", "12345", "ж" * 100, system_id="heliograph") == 2
        parts = [(await esme.receipt()).split(b"\x05\0\x03")[1] for _ in range(2)]
        assert [part[1:3] for part in parts] == [b"\x02\x01", b"\x02\x02"]
        assert parts[0][0] == parts[1][0]
        assert (parts[0][3:] + parts[1][3:]).decode("utf-16-be") == "ж" * 100

        smsc.send_inbound("258841234567", "12345", body=b"\xe7", data_coding=3)
        assert (await esme.receipt()).endswith(b"\x03\0\x01\xe7")


async def test_raw_bytes_and_drop() -> None:
    async with simulator() as smsc, client(smsc) as esme:
        smsc.send_raw(b"\xff" * 16)
        async with asyncio.timeout(120):
            assert await esme.reader.readexactly(16) == b"\xff" * 16
        smsc.drop()
        assert await esme.closed() == b""


async def test_stopped_and_started_again() -> None:
    async with simulator() as smsc:
        port = smsc.port
        async with client(smsc) as esme:
            esme.submit()
            await esme.answer()
            await esme.receipt(acknowledge=None)
            await smsc.stop()
            assert await esme.closed() == b""
        with pytest.raises(OSError):
            await asyncio.open_connection("127.0.0.1", port)
        await smsc.start()
        assert smsc.port == port
        async with client(smsc) as esme:
            assert stat(await esme.receipt()) == "DELIVRD"


async def test_ledger(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.tsv"
    async with simulator(ledger=str(ledger), keep=1) as smsc, client(smsc) as esme:
        for message in (b"one", b"one", b"two"):
            esme.submit(message=message, tlvs=struct.pack(">HHH", 0x0204, 2, 7), registered=0)
            await esme.answer()
        esme.submit("888841230008")
        await esme.answer()
        await until(lambda: ledger.exists() and ledger.read_text().count("\n") == 4)
    rows = [line.split("\t") for line in ledger.read_text().splitlines()]
    assert [row[1:4] for row in rows[:3]] == [["HELIO", RECIPIENT, "7"]] * 3
    assert rows[0][4] == rows[1][4] != rows[2][4]
    assert [row[6] for row in rows] == ["0x0", "0x0", "0x0", "0xb"]
    assert all(row[7] == "heliograph" for row in rows)
    assert "one" not in ledger.read_text()


async def test_slow_reader_holds_back_only_itself() -> None:
    async with simulator(window=0) as smsc, client(smsc) as slow, client(smsc) as quick:
        chunk = b"".join(HEADER.pack(16, 0x15, 0, number) for number in range(1, 4001))
        sent = 0
        # Never read, until the simulator no longer reads either.
        while slow.writer.transport.get_write_buffer_size() < 1_000_000:  # type: ignore[attr-defined]
            slow.writer.write(chunk)
            sent += 4000
            await asyncio.sleep(0)
        quick.submit()
        assert (await quick.answer())[0] == 0
        assert stat(await quick.receipt()) == "DELIVRD"
        # What was held back arrives once it reads.
        async with asyncio.timeout(120):
            answers = await slow.reader.readexactly(16 * sent)
        assert answers.count(b"\x80\0\0\x15") == sent


async def test_run_until_cancelled() -> None:
    ready: asyncio.Future[Smsc] = asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run(SmscOptions(port=0), ready=ready.set_result))
    smsc = await ready
    async with client(smsc) as esme:
        running.cancel()
        assert await esme.closed() == b""
        with pytest.raises(asyncio.CancelledError):
            await running


def test_on_uvloop() -> None:
    uvloop.run(submits_with_delays())


async def test_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    trusting = client_context(authority.file)
    async with simulator(tls_certificate=authority.issue("localhost")) as smsc:
        async with client(smsc, ssl=trusting, server_hostname="localhost") as esme:
            esme.submit()
            assert (await esme.answer())[0] == 0
            await esme.receipt()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", smsc.port, ssl=trusting, server_hostname="smsc.example")
