-- name: find_response
SELECT * FROM idempotency_key WHERE tenant = %(tenant)s AND endpoint = %(endpoint)s AND key = %(key)s

-- name: insert_response
-- An expired answer gives way; a valid one of a twin stays.
INSERT INTO idempotency_key (tenant, endpoint, key, request_hash, status, body, created_at, expires_at)
VALUES (%(tenant)s, %(endpoint)s, %(key)s, %(request_hash)s, %(status)s, %(body)s, %(created_at)s, %(expires_at)s)
    ON CONFLICT (tenant, endpoint, key) DO UPDATE
   SET request_hash = excluded.request_hash, status = excluded.status, body = excluded.body, created_at = excluded.created_at,
       expires_at = excluded.expires_at
 WHERE idempotency_key.expires_at <= excluded.created_at
RETURNING key

-- name: purge_responses
-- The rows are chosen once, before anything is deleted, and never by a join; two who purge do not wait for each other.
DELETE FROM idempotency_key
 WHERE ctid = ANY(ARRAY(SELECT ctid FROM idempotency_key WHERE expires_at <= %(now)s ORDER BY expires_at LIMIT %(limit)s
                           FOR UPDATE SKIP LOCKED))
RETURNING key
