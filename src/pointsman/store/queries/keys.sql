-- name: find_tenant
SELECT {tenant} FROM tenant WHERE id = :id

-- name: list_tenants
SELECT {tenant} FROM tenant ORDER BY id

-- name: find_key
SELECT {api_key_in_brief} FROM api_key WHERE tenant = :tenant AND id = :id

-- name: find_key_by_name
-- One that is not revoked: by api_key_name.
SELECT {api_key_in_brief} FROM api_key WHERE tenant = :tenant AND name = :name AND revoked_at IS NULL

-- name: find_stored_key
-- For authentication, which finds out the tenant.
SELECT {api_key} FROM api_key WHERE id = :id

-- name: list_keys
-- Scans the table: keys are few.
SELECT {api_key_in_brief} FROM api_key WHERE tenant = :tenant ORDER BY name, created_at, id

-- name: list_all_keys
SELECT {api_key_in_brief} FROM api_key ORDER BY tenant, name, created_at, id

-- name: insert_keys
INSERT INTO {new api_key}
    ON CONFLICT (tenant, name) WHERE revoked_at IS NULL DO NOTHING
RETURNING id

-- name: rotate_key
-- Nothing, if another process has revoked it first.
UPDATE api_key
   SET previous_hash = CASE WHEN :keeps_previous THEN secret_hash END, previous_expires_at = :previous_expires_at,
       secret_hash = :secret_hash, expires_at = :expires_at
 WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL
RETURNING id

-- name: revoke_key
UPDATE api_key SET revoked_at = :now WHERE tenant = :tenant AND id = :id AND revoked_at IS NULL

-- name: note_key_use
-- Nothing, if another process has noted a use since `before`.
UPDATE api_key SET last_used_at = :now
 WHERE id = :id AND created_at <= :now AND (last_used_at IS NULL OR last_used_at <= :before)
