-- A portfolio's messaging limit is counted in one row, which whoever adds a user to it has locked: it holds for any
-- number of workers.
CREATE TABLE whatsapp_portfolios (
    portfolio text PRIMARY KEY,
    users     integer NOT NULL,
    frees_at  timestamptz NOT NULL
) WITH (fillfactor = 50);
COMMENT ON TABLE whatsapp_portfolios IS 'control: how many users of whatsapp_reached count against a portfolio''s messaging limit';
COMMENT ON COLUMN whatsapp_portfolios.users IS 'never too few: who was written to more than 24 hours ago is taken off when the limit is met';
COMMENT ON COLUMN whatsapp_portfolios.frees_at IS 'no user stops counting before this';
