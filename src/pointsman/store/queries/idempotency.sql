-- name: find_response
SELECT {idempotency_key} FROM idempotency_key WHERE tenant = :tenant AND endpoint = :endpoint AND key = :key

-- name: insert_response
-- Replaces an expired answer, and keeps a valid one.
INSERT INTO {new idempotency_key}
    ON CONFLICT (tenant, endpoint, key) DO UPDATE
   SET request_hash = excluded.request_hash, status = excluded.status, body = excluded.body, created_at = excluded.created_at,
       expires_at = excluded.expires_at
 WHERE idempotency_key.expires_at <= excluded.created_at
RETURNING key
