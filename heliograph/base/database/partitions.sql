-- version 1
-- Creating and dropping partitions. The application's role owns no table, so it can do neither by itself: these
-- functions run as their owner, create only partitions with our own names and the privileges of their table, and drop
-- only past ones. Those of the audit log are kept for 13 months, whatever the application requests.
CREATE OR REPLACE FUNCTION make_partition(p_table text, p_name text, p_from text, p_to text, p_fill integer)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    v_parent oid;
    v_column text;
    v_within text;
    v_begun  boolean;
    v_caught boolean;
    v_right  record;
BEGIN
    SELECT partrelid, attname INTO v_parent, v_column
      FROM pg_partitioned_table JOIN pg_class ON pg_class.oid = partrelid
           JOIN pg_attribute ON attrelid = partrelid AND attnum = partattrs[0]
     WHERE relname = p_table AND relnamespace = 'public'::regnamespace;
    IF v_parent IS NULL OR p_name !~ ('^' || p_table || '_[0-9]{4}_[0-9]{2}(_[0-9]{2})?$') THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s is not a partition of ours', p_name);
    END IF;
    -- If its time range has begun, rows may just be on their way into the default partition, into which they no longer
    -- fit once this one is attached: so their writers have to wait.
    v_begun := to_date(right(p_name, -length(p_table) - 1), 'YYYY_MM_DD') <= (now() AT TIME ZONE 'UTC')::date;
    v_within := format('%1$I >= %2$L AND %1$I < %3$L', v_column, p_from, p_to);
    EXECUTE format('CREATE TABLE %I (LIKE %I INCLUDING ALL)', p_name, p_table)
            || CASE WHEN p_fill IS NULL THEN '' ELSE format(' WITH (fillfactor = %s)', p_fill) END;
    FOR v_right IN
        SELECT DISTINCT acl.privilege_type AS what, acl.grantee
          FROM pg_class, aclexplode(pg_class.relacl) AS acl
         WHERE pg_class.oid = v_parent AND acl.grantee <> pg_class.relowner AND acl.grantee <> 0
    LOOP
        EXECUTE format('GRANT %s ON %I TO %I', v_right.what, p_name, pg_get_userbyid(v_right.grantee));
    END LOOP;
    IF v_begun THEN
        EXECUTE format('LOCK TABLE ONLY %I IN ACCESS EXCLUSIVE MODE', p_table);
    END IF;
    EXECUTE format('SELECT EXISTS (SELECT FROM %I WHERE %s)', p_table || '_rest', v_within) INTO v_caught;
    IF v_caught THEN
        EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', p_table);
        EXECUTE format('WITH caught AS (DELETE FROM %I WHERE %s RETURNING *) INSERT INTO %I SELECT * FROM caught',
                       p_table || '_rest', v_within, p_name);
    END IF;
    EXECUTE format('ALTER TABLE %I ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', p_table, p_name, p_from, p_to);
END
$$;
REVOKE ALL ON FUNCTION make_partition(text, text, text, text, integer) FROM PUBLIC;

CREATE OR REPLACE FUNCTION drop_partition(p_name text)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path = public, pg_temp AS $$
DECLARE
    v_parent text;
    v_dated  text[];
    v_ends   timestamp;
BEGIN
    SELECT parent.relname INTO v_parent
      FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid JOIN pg_class parent ON parent.oid = inhparent
     WHERE child.relname = p_name AND child.relnamespace = 'public'::regnamespace AND parent.relkind = 'p';
    v_dated := regexp_match(p_name, '^' || v_parent || '_([0-9]{4})_([0-9]{2})(?:_([0-9]{2}))?$');
    IF v_dated IS NULL THEN
        RAISE invalid_parameter_value USING MESSAGE = format('%s is not a partition of ours', p_name);
    END IF;
    v_ends := make_date(v_dated[1]::integer, v_dated[2]::integer, coalesce(v_dated[3]::integer, 1))
              + CASE WHEN v_dated[3] IS NULL THEN interval '1 month' ELSE interval '1 day' END;
    IF v_ends > now() AT TIME ZONE 'UTC' THEN
        RAISE insufficient_privilege USING MESSAGE = format('%s is not over yet', p_name);
    END IF;
    IF v_parent = 'audit_log' AND v_ends > now() AT TIME ZONE 'UTC' - interval '13 months' THEN
        RAISE insufficient_privilege USING MESSAGE = 'the audit log is kept for 13 months';
    END IF;
    EXECUTE format('DROP TABLE %I', p_name);
END
$$;
REVOKE ALL ON FUNCTION drop_partition(text) FROM PUBLIC;
