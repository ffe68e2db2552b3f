-- name: set_timers
INSERT INTO timer (entity_id, purpose, kind, tenant, run_id, revision, due_at)
VALUES (:entity_id, :purpose, :kind, :tenant, :run_id, :revision, :due_at)
    ON CONFLICT (entity_id, purpose) DO UPDATE SET revision = excluded.revision, due_at = excluded.due_at

-- name: drop_timers
DELETE FROM timer WHERE entity_id IN (SELECT value FROM json_each(:ids))

-- name: find_due_timers
SELECT * FROM timer WHERE due_at <= :now ORDER BY due_at, entity_id, purpose LIMIT :limit

-- name: take_timers
DELETE FROM timer WHERE entity_id = :entity_id AND purpose = :purpose AND revision = :revision AND due_at = :due_at RETURNING *

-- name: next_due
SELECT min(due_at) FROM timer

-- name: list_timers
SELECT * FROM timer WHERE tenant = :tenant ORDER BY due_at, entity_id, purpose
