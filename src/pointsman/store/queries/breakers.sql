-- name: find_breaker
SELECT {breaker} FROM breaker WHERE tool = :tool AND tenant = :tenant

-- name: list_breakers
SELECT {breaker} FROM breaker WHERE tenant = :tenant ORDER BY tool

-- name: list_guarded_breakers
SELECT {breaker} FROM breaker
 WHERE tenant = :tenant AND (phase <> 'queued' OR max_concurrent IS NOT NULL OR rate_count IS NOT NULL)
 ORDER BY id

-- name: list_tripped_breakers
SELECT {breaker} FROM breaker WHERE phase <> 'queued' ORDER BY tenant, tool

-- name: insert_breakers
INSERT INTO {new breaker}
    ON CONFLICT (tenant, tool) DO NOTHING
RETURNING tool
