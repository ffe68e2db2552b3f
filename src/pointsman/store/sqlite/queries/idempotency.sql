-- name: find_response
SELECT * FROM idempotency_key WHERE tenant = :tenant AND endpoint = :endpoint AND key = :key

-- name: insert_response
-- An expired answer gives way; a valid one of a twin stays.
INSERT INTO idempotency_key (tenant, endpoint, key, request_hash, status, body, created_at, expires_at)
VALUES (:tenant, :endpoint, :key, :request_hash, :status, :body, :created_at, :expires_at)
    ON CONFLICT (tenant, endpoint, key) DO UPDATE
   SET request_hash = excluded.request_hash, status = excluded.status, body = excluded.body, created_at = excluded.created_at,
       expires_at = excluded.expires_at
 WHERE idempotency_key.expires_at <= excluded.created_at
RETURNING key

-- name: purge_responses
DELETE FROM idempotency_key
 WHERE (tenant, endpoint, key) IN (SELECT tenant, endpoint, key FROM idempotency_key WHERE expires_at <= :now LIMIT :limit)
RETURNING key
