"""The simulator's default objects: an app, an account, a number and four approved templates."""

from __future__ import annotations

from pathlib import Path

import msgspec

from heliograph.simulators.graph.objects import App, Number, Setup, SimulatedAccount, Template, Token
from heliograph.simulators.graph.options import GraphOptions

ORDER_SHIPPED = Template(
    id="1200000000000017",
    name="order_shipped",
    language="fr",
    components=[
        {"type": "HEADER", "format": "TEXT", "text": "Commande {{1}}", "example": {"header_text": ["CMD-1"]}},
        {
            "type": "BODY",
            "text": "Bonjour {{1}}, votre commande est en route. Livraison {{2}} environ.",
            "example": {"body_text": [["Amal", "jeudi"]]},
        },
        {"type": "FOOTER", "text": "Service client"},
        {
            "type": "BUTTONS",
            "buttons": [
                {
                    "type": "URL",
                    "text": "Suivre",
                    "url": "https://shop.example/{{1}}",
                    "example": ["https://shop.example/t/1"],
                }
            ],
        },
    ],
)
APPOINTMENT_REMINDER = Template(
    id="1200000000000018",
    name="appointment_reminder",
    language="en",
    components=[
        {
            "type": "BODY",
            "text": "Hello {{1}}, we see you on {{2}}. Answer this message to change it.",
            "example": {"body_text": [["Amal", "Thursday at 2 pm"]]},
        }
    ],
)
DELIVERY_UPDATE = Template(
    id="1200000000000019",
    name="delivery_update",
    language="en",
    parameter_format="NAMED",
    components=[
        {
            "type": "BODY",
            "text": "Hi {{customer_name}}, parcel {{parcel}} comes on {{day}}. Please be at home.",
            "example": {
                "body_text_named_params": [
                    {"param_name": "customer_name", "example": "Amal"},
                    {"param_name": "parcel", "example": "P-1"},
                    {"param_name": "day", "example": "Thursday"},
                ]
            },
        }
    ],
)
LOGIN_CODE = Template(
    id="1200000000000020",
    name="login_code",
    language="en",
    category="AUTHENTICATION",
    message_send_ttl_seconds=600,
    components=[
        {
            "type": "BODY",
            "text": "*{{1}}* is your verification code. For your security, do not share this code.",
            "add_security_recommendation": True,
            "example": {"body_text": [["123456"]]},
        },
        {"type": "FOOTER", "text": "This code expires in 10 minutes.", "code_expiration_minutes": 10},
        {
            "type": "BUTTONS",
            "buttons": [
                {
                    "type": "URL",
                    "text": "Copy code",
                    "url": "https://www.whatsapp.com/otp/code/?otp_type=COPY_CODE&code=otp{{1}}",
                    "otp_type": "COPY_CODE",
                    "example": ["https://www.whatsapp.com/otp/code/?otp_type=COPY_CODE&code=otp123456"],
                }
            ],
        },
    ],
)
TEMPLATES = [ORDER_SHIPPED, APPOINTMENT_REMINDER, DELIVERY_UPDATE, LOGIN_CODE]


def setup(options: GraphOptions) -> Setup:
    """The objects described by the options. Raises OSError or msgspec.MsgspecError for a bad template file."""
    templates = TEMPLATES
    if options.templates:
        templates = msgspec.json.decode(Path(options.templates).read_bytes(), type=list[Template])
    return Setup(
        apps=[
            App(
                id=options.app_id,
                secret=options.app_secret,
                verify_token=options.verify_token,
                webhook_url=options.webhook_url,
            )
        ],
        accounts=[SimulatedAccount(id=options.waba, business=options.business, subscribed=[options.app_id])],
        numbers=[Number(id=options.number_id, account=options.waba, digits=options.number.lstrip("+"))],
        templates=[msgspec.structs.replace(one, account=one.account or options.waba) for one in templates],
        tokens=[Token(token=options.token, app=options.app_id)],
    )
