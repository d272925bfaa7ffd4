-- A text that an accent alone keeps from GSM-7 costs more than twice as many segments. What is left out changes the
-- language, so it is a choice of its own beside smart_encoding.
ALTER TABLE organizations ADD COLUMN replace_accents boolean NOT NULL DEFAULT false;
COMMENT ON COLUMN organizations.replace_accents IS 'letters with accents that GSM-7 lacks are sent without them, if that makes the text fit it; smart_encoding is then on as well';
