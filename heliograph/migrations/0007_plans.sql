-- Plans renew by whole months from an anchor: the n-th period begins n × period_months after it, so that one that began
-- on the 31st comes back to the 31st after a shorter month. NULL allowance: the plan does not touch the quota.
ALTER TABLE organizations
    ADD COLUMN allowance bigint CHECK (allowance >= 0),
    ADD COLUMN period_anchor timestamptz,
    ADD COLUMN period_months smallint CHECK (period_months BETWEEN 1 AND 120);
CREATE INDEX organizations_due ON organizations (period_end) WHERE period_anchor IS NOT NULL;
