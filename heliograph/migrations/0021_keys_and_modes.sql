-- Accepting has taken over idempotency keys past their time since: the functions before that are gone.
DROP FUNCTION IF EXISTS sms_accept_1;
DROP FUNCTION IF EXISTS whatsapp_accept_1;
COMMENT ON COLUMN idempotency.key_hash IS 'first 16 bytes of SHA-256 over the API key''s mode, method, path and key';
