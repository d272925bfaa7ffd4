"""The PDUs of SMPP 3.4 that we can read and write but do not use, so that a session can distinguish them from garbage.

submit_multi loses the ids of individual recipients, query_sm is often disabled, replace_sm and cancel_sm come too late,
and outbind would make the supplier connect to us.
"""

from __future__ import annotations

from collections.abc import Mapping

from heliograph.suppliers.smpp.codec.wire import DEST, NO_TLVS, RESPONSE, SOURCE, Command, Pdu, layout


class Outbind(Pdu, gc=False):
    command = Command.OUTBIND
    layout = layout("system_id:c password:c")

    system_id: str = ""
    password: str = ""

    def __repr__(self) -> str:
        return f"Outbind(sequence={self.sequence}, system_id={self.system_id!r})"


class QuerySm(Pdu, gc=False):
    command = Command.QUERY_SM
    layout = layout("message_id:c " + SOURCE)

    message_id: str = ""
    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""


class QuerySmResp(Pdu, gc=False):
    command = Command.QUERY_SM | RESPONSE
    layout = layout("message_id:c final_date:c message_state:B error_code:B")

    message_id: str = ""
    final_date: str = ""
    message_state: int = 0
    error_code: int = 0


class ReplaceSm(Pdu, gc=False):
    command = Command.REPLACE_SM
    layout = layout(
        "message_id:c "
        + SOURCE
        + "schedule_delivery_time:c validity_period:c registered_delivery:B sm_default_msg_id:B short_message:s"
    )

    message_id: str = ""
    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""
    schedule_delivery_time: str = ""
    validity_period: str = ""
    registered_delivery: int = 0
    sm_default_msg_id: int = 0
    short_message: bytes = b""


class ReplaceSmResp(Pdu, gc=False):
    command = Command.REPLACE_SM | RESPONSE


class CancelSm(Pdu, gc=False):
    command = Command.CANCEL_SM
    layout = layout("service_type:c message_id:c " + SOURCE + DEST)

    service_type: str = ""
    message_id: str = ""
    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""
    dest_addr_ton: int = 0
    dest_addr_npi: int = 0
    destination_addr: str = ""


class CancelSmResp(Pdu, gc=False):
    command = Command.CANCEL_SM | RESPONSE


class SubmitMulti(Pdu, gc=False):
    """submit_multi (SMPP 3.4 §4.5.1). A destination is (ton, npi, address) or the name of a distribution list."""

    command = Command.SUBMIT_MULTI
    layout = layout(
        "service_type:c "
        + SOURCE
        + "destinations:d esm_class:B protocol_id:B priority_flag:B schedule_delivery_time:c validity_period:c "
        "registered_delivery:B replace_if_present_flag:B data_coding:B sm_default_msg_id:B short_message:s tlvs:t"
    )

    service_type: str = ""
    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""
    destinations: tuple[tuple[int, int, str] | str, ...] = ()
    esm_class: int = 0
    protocol_id: int = 0
    priority_flag: int = 0
    schedule_delivery_time: str = ""
    validity_period: str = ""
    registered_delivery: int = 0
    replace_if_present_flag: int = 0
    data_coding: int = 0
    sm_default_msg_id: int = 0
    short_message: bytes = b""
    tlvs: Mapping[int, bytes] = NO_TLVS


class SubmitMultiResp(Pdu, gc=False):
    """`unsuccessful`: (ton, npi, address, command_status) of each destination that was refused."""

    command = Command.SUBMIT_MULTI | RESPONSE
    layout = layout("message_id:c unsuccessful:u tlvs:t")

    message_id: str = ""
    unsuccessful: tuple[tuple[int, int, str, int], ...] = ()
    tlvs: Mapping[int, bytes] = NO_TLVS


class AlertNotification(Pdu, gc=False):
    command = Command.ALERT_NOTIFICATION
    layout = layout(SOURCE + "esme_addr_ton:B esme_addr_npi:B esme_addr:c tlvs:t")

    source_addr_ton: int = 0
    source_addr_npi: int = 0
    source_addr: str = ""
    esme_addr_ton: int = 0
    esme_addr_npi: int = 0
    esme_addr: str = ""
    tlvs: Mapping[int, bytes] = NO_TLVS
