-- As in 0017: a number, and a template, is looked up by (organization_id, id), and must not be searched for among all of
-- the organization's, of which there may be thousands, because the plan was made before there were any.
DROP INDEX whatsapp_numbers_by_account;
CREATE INDEX whatsapp_numbers_by_account ON whatsapp_numbers (organization_id, account_id)
    WHERE account_id IS NOT NULL;
DROP INDEX whatsapp_templates_name;
CREATE UNIQUE INDEX whatsapp_templates_name ON whatsapp_templates (organization_id, account_id, name, language)
    WHERE name IS NOT NULL;
