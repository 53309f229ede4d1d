-- Records, then reservations, then letters, up to `p_limit` in all. What somebody works on is left for the next time.
-- An ARRAY is made once; a join with a LIMIT inside may be evaluated again for every row, and remove more.
CREATE FUNCTION {schema}.expire(p_now bigint, p_limit bigint, OUT o_removed bigint) LANGUAGE plpgsql AS $body$
DECLARE
    v_now bigint := coalesce(p_now, {schema}.clock());
    v_count bigint;
BEGIN
    DELETE FROM {schema}.records WHERE store_key = ANY (ARRAY(
        SELECT r.store_key FROM {schema}.records r WHERE r.expires_at <= v_now
         ORDER BY r.expires_at LIMIT p_limit FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS o_removed = ROW_COUNT;

    DELETE FROM {schema}.reservations WHERE store_key = ANY (ARRAY(
        SELECT s.store_key FROM {schema}.reservations s WHERE s.expires_at <= v_now
         ORDER BY s.expires_at LIMIT p_limit - o_removed FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    o_removed := o_removed + v_count;

    DELETE FROM {schema}.letters WHERE id = ANY (ARRAY(
        SELECT l.id FROM {schema}.letters l WHERE l.expires_at <= v_now
         ORDER BY l.expires_at LIMIT p_limit - o_removed FOR UPDATE SKIP LOCKED));
    GET DIAGNOSTICS v_count = ROW_COUNT;
    o_removed := o_removed + v_count;

    PERFORM {schema}.fold();
END
$body$;
