-- Messages of test keys are in conversations of their own, so that a test key sees nothing of a user's window, and a live
-- key nothing of tests. Their aliases begin with `test:`, which no number and no user id does.
ALTER TABLE whatsapp_conversations ADD COLUMN mode text NOT NULL DEFAULT 'live' CHECK (mode IN ('live', 'test'));
