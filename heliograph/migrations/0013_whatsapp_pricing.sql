-- Meta may say the price with any status of a message, and say something else with another: the furthest one counts.
ALTER TABLE whatsapp_messages ADD COLUMN priced_by text;
COMMENT ON COLUMN whatsapp_messages.priced_by IS 'the status that said `pricing`; one of lower rank changes it no more';
