-- Records, then reservations, then letters, up to `p_limit` in all. What somebody works on is left for the next time.
CREATE FUNCTION {schema}.expire(p_now bigint, p_limit bigint, OUT o_removed bigint) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
    v_count bigint;
BEGIN
    WITH doomed AS MATERIALIZED (
        SELECT r.store_key FROM {schema}.records r WHERE r.expires_at <= v_now
         ORDER BY r.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED)
    DELETE FROM {schema}.records r USING doomed d WHERE r.store_key = d.store_key;
    GET DIAGNOSTICS o_removed = ROW_COUNT;

    WITH doomed AS MATERIALIZED (
        SELECT s.store_key FROM {schema}.reservations s WHERE s.expires_at <= v_now
         ORDER BY s.expires_at LIMIT p_limit - o_removed FOR UPDATE SKIP LOCKED)
    DELETE FROM {schema}.reservations s USING doomed d WHERE s.store_key = d.store_key;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    o_removed := o_removed + v_count;

    WITH doomed AS MATERIALIZED (
        SELECT l.id FROM {schema}.letters l WHERE l.expires_at <= v_now
         ORDER BY l.expires_at LIMIT p_limit - o_removed FOR UPDATE SKIP LOCKED)
    DELETE FROM {schema}.letters l USING doomed d WHERE l.id = d.id;
    GET DIAGNOSTICS v_count = ROW_COUNT;
    o_removed := o_removed + v_count;

    PERFORM {schema}.fold();
END
$body$;
