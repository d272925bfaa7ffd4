"""The public contract's table of operations, compared with what is implemented. None may differ."""

from __future__ import annotations

from heliograph.api.routes import OPERATIONS, PREFIX

# Method, path, operationId, scope, success status. If the contract leaves id, scope or status open, they are ours.
CONTRACT = """
GET    /                              getApiIndex                  -                200
GET    /health                        getHealth                    -                200
GET    /openapi.json                  getOpenApiDocument           -                200
POST   /sms/send                      sendSms                      sms:send         202
GET    /whatsapp/messages             listWhatsAppMessages         whatsapp:read    200
POST   /whatsapp/messages             sendWhatsAppMessage          whatsapp:send    202
GET    /whatsapp/messages/{messageId} getWhatsAppMessage           whatsapp:read    200
GET    /whatsapp/templates            listWhatsAppTemplates        whatsapp:read    200
GET    /whatsapp/conversations        listWhatsAppConversations    whatsapp:read    200
GET    /whatsapp/phone-numbers        getWhatsAppPhoneNumberHealth whatsapp:read    200
GET    /whatsapp/campaigns/{campaignId} getWhatsAppCampaignStatus  whatsapp:read    200
GET    /whatsapp/wallet               getWhatsAppWalletSummary     whatsapp:read    200
GET    /account                       getAccountSummary            account:read     200
GET    /usage                         listUsage                    account:read     200
GET    /contacts                      listContacts                 contacts:read    200
POST   /contacts                      createContact                contacts:write   200
DELETE /contacts                      deleteContact                contacts:write   200
GET    /campaigns                     listCampaigns                campaigns:read   200
POST   /campaigns                     createCampaign               campaigns:write  201
GET    /sender-ids                    listSenderIds                sender_ids:read  200
POST   /sender-ids                    createSenderIdRequest        sender_ids:write 201
GET    /api-keys                      listApiKeys                  api_keys:read    200
POST   /api-keys                      createApiKey                 api_keys:write   201
DELETE /api-keys/{apiKeyId}           revokeApiKey                 api_keys:write   200
GET    /webhooks                      listWebhooks                 webhooks:read    200
POST   /webhooks                      createWebhook                webhooks:write   201
DELETE /webhooks/{webhookEndpointId}  disableWebhook               webhooks:write   200
"""
#: Beyond the contract, which allows it: paths with this prefix.
ADDITIONS = (
    "/sms/messages",
    "/sms/preview",
    "/sms/inbound",
    "/contacts/",
    "/opt-outs",
    "/campaigns/",
    "/webhooks/",
    "/events",
    "/api-keys/",
    "/usage/",
    "/traffic",
    "/requests",
    "/account/",
    "/notices",
    "/exports",
    "/sms/texts",
)


def table() -> dict[tuple[str, str], tuple[str, str | None, int]]:
    rows = [line.split() for line in CONTRACT.strip().splitlines()]
    return {(row[0], row[1]): (row[2], None if row[3] == "-" else row[3], int(row[4])) for row in rows}


def test_no_operation_differs_from_the_contract() -> None:
    contract = table()
    for each in OPERATIONS:
        expected = contract.get((each.method, each.path))
        if expected is not None:
            assert (each.id, each.scope, each.status) == expected
        else:
            assert each.path.startswith(ADDITIONS) or each.method == "PATCH", (
                f"{each.method} {each.path} is neither the contract's nor known"
            )
            assert each.id not in {id for id, _, _ in contract.values()}


def test_all_is_below_the_version() -> None:
    assert PREFIX == "/v1"
    assert all(each.path.startswith("/") for each in OPERATIONS)
