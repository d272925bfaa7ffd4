"""An SMSC made of smpp.twisted3, run by the peers' own interpreter: `python twisted_smsc.py <system_id> <password>`.

It prints the port it listens on, answers each submit with an id of its own and sends a receipt for it, and ends when
its standard input does.
"""

import itertools
import sys

from smpp.pdu.operations import DeliverSM
from smpp.pdu.pdu_types import (
    AddrNpi,
    AddrTon,
    CommandStatus,
    EsmClass,
    EsmClassMode,
    EsmClassType,
    MessageState,
)
from smpp.twisted.config import SMPPServerConfig
from smpp.twisted.protocol import DataHandlerResponse
from smpp.twisted.server import IAuthenticatedSMPP, SMPPServerFactory
from twisted.cred import error
from twisted.cred.checkers import ICredentialsChecker
from twisted.cred.credentials import IUsernamePassword
from twisted.cred.portal import IRealm, Portal
from twisted.internet import defer, reactor, stdio
from twisted.internet.protocol import Protocol
from zope.interface import implementer

SYSTEM_ID, PASSWORD = sys.argv[1], sys.argv[2]
ids = itertools.count(1)


@implementer(IRealm)
class Realm:
    def requestAvatar(self, avatar_id, mind, *interfaces):
        return IAuthenticatedSMPP, avatar_id, lambda: None


@implementer(ICredentialsChecker)
class Checker:
    credentialInterfaces = (IUsernamePassword,)

    def requestAvatarId(self, credentials):
        def text(value):
            return value.decode() if isinstance(value, bytes) else value

        if (text(credentials.username), text(credentials.password)) == (SYSTEM_ID, PASSWORD):
            return defer.succeed(credentials.username)
        return defer.fail(error.UnauthorizedLogin())


def handle(system_id, smpp, pdu):
    message_id = b"%08X" % (0xB8BE19 + next(ids))
    reactor.callLater(0.01, send_receipt, smpp, pdu, message_id)
    return DataHandlerResponse(status=CommandStatus.ESME_ROK, message_id=message_id)


def send_receipt(smpp, pdu, message_id):
    text = (
        b"id:%s sub:001 dlvrd:001 submit date:2601010000 done date:2601010000 stat:DELIVRD err:000 text:" % message_id
    )
    smpp.sendDataRequest(
        DeliverSM(
            source_addr_ton=AddrTon.INTERNATIONAL,
            source_addr_npi=AddrNpi.ISDN,
            source_addr=pdu.params["destination_addr"],
            destination_addr=pdu.params["source_addr"],
            esm_class=EsmClass(EsmClassMode.DEFAULT, EsmClassType.SMSC_DELIVERY_RECEIPT),
            short_message=text,
            receipted_message_id=message_id,
            message_state=MessageState.DELIVERED,
        )
    )


class EndWithInput(Protocol):
    def connectionLost(self, reason):
        if reactor.running:
            reactor.stop()


factory = SMPPServerFactory(
    SMPPServerConfig(msgHandler=handle, systems={SYSTEM_ID: {"max_bindings": 2}}), Portal(Realm(), [Checker()])
)
port = reactor.listenTCP(0, factory, interface="127.0.0.1")
stdio.StandardIO(EndWithInput())
print(port.getHost().port, flush=True)
reactor.run()
