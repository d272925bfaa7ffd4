-- Campaigns of two channels in one table: what moves them is the same, what they say is not.
--
-- `channel` keeps its default, so that a process of the version before can go on making SMS campaigns.
ALTER TABLE campaigns
    ADD COLUMN channel           text NOT NULL DEFAULT 'sms' CHECK (channel IN ('sms', 'whatsapp')),
    ADD COLUMN number_id         uuid,
    ADD COLUMN template_id       uuid,
    ADD COLUMN template_name     text,
    ADD COLUMN template_language text,
    ADD COLUMN parameters        jsonb,
    ADD COLUMN with_names        boolean NOT NULL DEFAULT true,
    ADD COLUMN read              integer NOT NULL DEFAULT 0 CHECK (read >= 0),
    ALTER COLUMN message_template DROP NOT NULL,
    ALTER COLUMN sender_id DROP NOT NULL,
    DROP CONSTRAINT campaigns_check,
    ADD CONSTRAINT campaigns_total CHECK (
        total = pending + queued + sent + delivered + read + failed + unknown + canceled + opted_out + invalid),
    ADD CONSTRAINT campaigns_content CHECK (
        CASE channel
            WHEN 'sms' THEN num_nonnulls(message_template, sender_id) = 2
                 AND num_nulls(number_id, template_id, template_name, template_language, parameters) = 5
            ELSE num_nulls(message_template, sender_id) = 2
                 AND num_nonnulls(number_id, template_id, template_name, template_language, parameters) = 5
        END);
CREATE INDEX campaigns_by_channel ON campaigns (organization_id, channel, id);
COMMENT ON TABLE campaigns IS 'tenant: one text or template for many recipients, with maintained counts';
COMMENT ON COLUMN campaigns.parameters IS 'for each parameter of the template, where its value comes from';
COMMENT ON COLUMN campaigns.with_names IS 'its messages say something of the recipient beyond the number';
COMMENT ON COLUMN campaigns.read IS 'delivered, and the recipient has looked at it; delivered counts the others';

ALTER TABLE campaign_chunks ADD COLUMN read integer NOT NULL DEFAULT 0;
