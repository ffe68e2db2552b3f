-- name: set_timers
INSERT INTO timer (entity_id, purpose, kind, tenant, run_id, revision, due_at)
SELECT entity_id, purpose, kind, tenant, run_id, revision, due_at
  FROM json_to_recordset(%(rows)s) AS new (
       entity_id text, purpose text, kind text, tenant text, run_id text, revision integer, due_at timestamptz)
    ON CONFLICT (entity_id, purpose) DO UPDATE SET revision = excluded.revision, due_at = excluded.due_at

-- name: drop_timers
DELETE FROM timer WHERE entity_id = ANY(%(ids)s)

-- name: find_due_timers
SELECT * FROM timer WHERE due_at <= %(now)s ORDER BY due_at, entity_id, purpose LIMIT %(limit)s

-- name: take_timers
-- Whoever comes second waits for the first, and then finds nothing.
DELETE FROM timer
 USING json_to_recordset(%(rows)s) AS new (entity_id text, purpose text, revision integer, due_at timestamptz)
 WHERE timer.entity_id = new.entity_id AND timer.purpose = new.purpose AND timer.revision = new.revision AND timer.due_at = new.due_at
RETURNING timer.entity_id, timer.purpose

-- name: next_due
SELECT min(due_at) FROM timer

-- name: list_timers
SELECT * FROM timer WHERE tenant = %(tenant)s ORDER BY due_at, entity_id, purpose
