// Uses the types that openapi-typescript made of the OpenAPI document, as a stranger would. It must compile strictly.
//
// Arguments: base URL below which /v1 is, API key. Prints what the answers were, as JSON.

import createClient from "openapi-fetch";
import type { components, paths, webhooks } from "./heliograph.js";

declare const process: { argv: string[] };

type Body<Kind extends keyof webhooks> = webhooks[Kind]["post"]["requestBody"]["content"]["application/json"];
type Received = Body<"message.delivered"> | Body<"message.failed"> | Body<"message.received"> | Body<"campaign.completed">;

// What a receiver does: the kind decides what the data is.
function told(event: Received): string {
  switch (event.type) {
    case "message.delivered":
    case "message.failed":
      return event.data.message.failure?.code ?? event.data.message.status;
    case "message.received":
      return event.data.message.text ?? "";
    case "campaign.completed":
      return `${event.data.campaign.counts.delivered} of ${event.data.campaign.counts.total}`;
  }
}

// Whatever may be left out is left out: a field that is required here by mistake does not compile.
const send: components["schemas"]["SendSms"] = { to: "+258841234567", message: "Hello" };
const campaign: components["schemas"]["CreateCampaign"] = {
  name: "Sale",
  message_template: "Hello",
  recipients: ["+258841234567"],
  scheduled_at: new Date(Date.now() + 3_600_000).toISOString(),
};
const person: components["schemas"]["CreateContact"] = { name: "Ana Silva", phone: "+258841234567" };
const reply: components["schemas"]["SendWhatsAppText"] = {
  type: "text",
  to: "+258841234567",
  phoneNumberId: "019c8f64-1f0a-7d52-8c3b-5a9e2d7f6b10",
  text: { body: "Hello" },
};
const key: components["schemas"]["CreateApiKey"] = { name: "shop", profile: "sms_only" };

const [, , base, secret] = process.argv;
const client = createClient<paths>({ baseUrl: `${base}/v1`, headers: { authorization: `Bearer ${secret}` } });

const sent = await client.POST("/sms/send", { params: { header: { "Idempotency-Key": "ts-1" } }, body: send });
const again = await client.POST("/sms/send", { params: { header: { "Idempotency-Key": "ts-1" } }, body: send });
const refused = await client.POST("/campaigns", { body: campaign });
const made = await client.POST("/contacts", { body: person });
const listed = await client.GET("/contacts", { params: { query: { limit: 1 } } });
const answered = await client.POST("/whatsapp/messages", { body: reply });
const shop = await client.POST("/api-keys", { body: key });
const example: Received = {
  id: "019c8f60-11d2-7b61-a7c4-6f2f0f6f7b10",
  type: "message.failed",
  timestamp: "2026-03-01T12:00:00.000Z",
  requestId: "1",
  apiVersion: "v1",
  data: {
    message: {
      id: "019c8f60-11d2-7b61-a7c4-6f2f0f6f7b10",
      clientReference: null,
      channel: "sms",
      to: "+258841234567",
      status: "undelivered",
      segments: 1,
      acceptedAt: "2026-03-01T12:00:00.000Z",
      sentAt: null,
      deliveredAt: null,
      failedAt: null,
      failure: { code: "undelivered", message: "The network could not deliver it." },
    },
  },
};

// What an error says in detail depends on its code.
const wrong = answered.error?.error.details["fields"];

console.log(
  JSON.stringify({
    sent: [sent.data?.status, sent.data?.message.clientReference, sent.data?.provider.messageId],
    replayed: [again.response.headers.get("x-idempotency-status"), again.data?.message.id === sent.data?.message.id],
    campaign: refused.error?.error.code ?? null,
    contact: made.data?.contact.first_name ?? null,
    contacts: listed.data?.items.map((one) => one.name),
    refused: [answered.error?.error.code, Array.isArray(wrong) ? wrong.length : null],
    key: shop.data?.apiKey.scopes,
    told: told(example),
  }),
);
