-- A number without a calling code is some country's. Which one, somebody has to have said: the organization for what its
-- people paste, the supplier's account for what its handsets write. What kind of number it is, the supplier may say.
ALTER TABLE organizations ADD COLUMN country text CHECK (country ~ '^[A-Z]{2}$');
COMMENT ON COLUMN organizations.country IS 'ISO region as which national numbers in files and on the command line are read; NULL: they are refused';

ALTER TABLE inbound_messages
    ADD COLUMN sender_ton    smallint NOT NULL DEFAULT 0,
    ADD COLUMN recipient_ton smallint NOT NULL DEFAULT 0;
COMMENT ON COLUMN inbound_messages.sender_ton IS 'type of number (SMPP 3.4 5.2.5): 0 unknown, 1 international, 2 national';
