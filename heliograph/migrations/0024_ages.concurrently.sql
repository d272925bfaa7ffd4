-- What is past is found by blocks, without a look at the rest: texts that are to be erased, and whether a month that is
-- to be dropped holds a row that is younger than its id says. Rows come in the order of time, so a few pages tell it.
CREATE INDEX CONCURRENTLY message_texts_age ON message_texts USING brin (message_id) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY whatsapp_contents_age ON whatsapp_contents USING brin (message_id) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY messages_age ON messages USING brin (accepted_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY sms_attempts_age ON sms_attempts USING brin (started_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY events_age ON events USING brin (created_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY webhook_attempts_age ON webhook_attempts USING brin (started_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY receipts_age ON receipts USING brin (received_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY received_messages_age ON received_messages USING brin (received_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY whatsapp_messages_age ON whatsapp_messages USING brin (accepted_at) WITH (autosummarize = on);
CREATE INDEX CONCURRENTLY whatsapp_attempts_age ON whatsapp_attempts USING brin (started_at) WITH (autosummarize = on);
