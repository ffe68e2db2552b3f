-- name: list_outbox_cursors
SELECT {outbox_cursor} FROM outbox_cursor ORDER BY origin, target

-- name: open_outbox_cursor
INSERT INTO outbox_cursor (origin, target, position) VALUES (:origin, :target, :position) ON CONFLICT (origin, target) DO NOTHING

-- name: advance_outbox_cursor
-- Nothing, if another process has advanced it first.
UPDATE outbox_cursor SET position = :position
 WHERE origin = :origin AND target = :target AND position = :after
RETURNING target

-- name: list_noteworthy_transitions
-- Ends of runs, tasks that may wait for a person, and breakers that may have opened. Reads the stream in order of its key; `state` is small.
SELECT {transition} FROM transition JOIN state ON state.machine_id = transition.machine_id AND state.name = transition.to_state
 WHERE transition.position > :after AND transition.position <= :end
   AND transition.from_state <> transition.to_state
   AND ((transition.kind = 'run' AND state.phase = 'done') OR (transition.kind IN ('task', 'breaker') AND state.phase = 'held'))
 ORDER BY transition.position LIMIT :limit

-- name: insert_outbox
INSERT INTO outbox (id, position, origin, target, method, tenant, run_id, event, subject, body, created_at, due_at, tries)
VALUES (:id, :position, :origin, :target, :method, :tenant, :run_id, :event, :subject, :body, :created_at, :due_at, 0)
    ON CONFLICT (position, origin, target) DO NOTHING

-- name: next_due_outbox
SELECT min(due_at) FROM outbox
 WHERE due_at IS NOT NULL
   AND ((origin = 'settings' AND target IN :targets)
        OR (origin = 'flow' AND tenant = :flows_of AND (method = 'webhook' OR :commands_of = '*' OR run_id = :commands_of)))

-- name: count_outbox
SELECT count(*) FROM outbox
 WHERE due_at IS NOT NULL
   AND ((origin = 'settings' AND target IN :targets)
        OR (origin = 'flow' AND tenant = :flows_of AND (method = 'webhook' OR :commands_of = '*' OR run_id = :commands_of)))

-- name: claim_outbox
UPDATE outbox SET due_at = :due_at, claimed_by = :claimed_by, tries = tries + 1 WHERE id = :id

-- name: settle_outbox
-- Nothing, if its lease has expired and another process has claimed it.
UPDATE outbox
   SET due_at = :due_at, claimed_by = NULL, error = :error, delivered_at = :delivered_at, dead_at = :dead_at
 WHERE id = :id AND claimed_by = :claimed_by AND tries = :tries
RETURNING id

-- name: list_outbox
-- Scans the table: delivered ones are deleted after some days.
SELECT {outbox} FROM outbox
 WHERE tenant = :tenant AND (created_at, id) < (:after, :after_id)
   AND CAST(:delivery AS TEXT) IN ('any', CASE WHEN due_at IS NOT NULL THEN 'due' WHEN dead_at IS NOT NULL THEN 'dead' ELSE 'delivered' END)
 ORDER BY created_at DESC, id DESC LIMIT :limit

-- name: find_outbox
SELECT {outbox} FROM outbox WHERE tenant = :tenant AND id IN :ids ORDER BY id

-- name: retry_outbox
-- Not one that a process is delivering now.
UPDATE outbox SET due_at = :now, dead_at = NULL, tries = 0
 WHERE tenant = :tenant AND id IN :ids AND delivered_at IS NULL AND claimed_by IS NULL
RETURNING id

-- name: purge_outbox
DELETE FROM outbox
 WHERE id IN (SELECT id FROM outbox WHERE delivered_at < :before ORDER BY delivered_at LIMIT :limit)
