-- A long message of which a supplier has some segments is completed, under the same reference, not begun again. Such
-- attempts are a series: their segments are booked under its first one.
ALTER TABLE sms_attempts
    ADD COLUMN continues smallint,
    ADD COLUMN parts     smallint NOT NULL DEFAULT 1,
    ADD COLUMN doubtful  smallint[];
COMMENT ON COLUMN sms_attempts.continues IS 'the first attempt of the series that this one completes; NULL: it begins one';
COMMENT ON COLUMN sms_attempts.parts IS 'segments that the whole message has in this supplier''s form';
COMMENT ON COLUMN sms_attempts.doubtful IS 'of an attempt of unknown outcome, segments that were written and not answered; NULL: all it was to send';
COMMENT ON COLUMN sms_parts.attempt IS 'the first attempt of its series';
