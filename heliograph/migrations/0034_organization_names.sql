-- An operator names an organization by its name, so no two may have the same one, however it is spelt. Those that have
-- it already keep it with their id behind it.
UPDATE organizations o SET name = left(o.name, 160) || ' (' || o.id || ')'
 WHERE EXISTS (SELECT FROM organizations older WHERE lower(older.name) = lower(o.name) AND older.id < o.id);
CREATE UNIQUE INDEX organizations_name ON organizations (lower(name));
