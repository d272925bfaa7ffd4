-- Opt-outs are looked up by organization and recipient with every message. An index that begins with the organization
-- and has both columns somewhere looked as good to the planner, and would have read all of an organization's opt-outs
-- for each message. Lists of opt-outs are sorted instead.
DROP INDEX opt_outs_newest;
