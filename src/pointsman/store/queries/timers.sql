-- name: set_timers
INSERT INTO {new timer}
    ON CONFLICT (entity_id, purpose) DO UPDATE SET revision = excluded.revision, due_at = excluded.due_at

-- name: drop_timers
DELETE FROM timer WHERE entity_id IN :ids

-- name: find_due_timers
SELECT {timer} FROM timer WHERE due_at <= :now ORDER BY due_at, entity_id, purpose LIMIT :limit

-- name: next_due
SELECT min(due_at) FROM timer

-- name: list_timers
SELECT {timer} FROM timer WHERE tenant = :tenant ORDER BY due_at, entity_id, purpose

-- name: end_usage_limit
-- Of the timers that are not due, of which there are few: each finds its task by the primary key.
UPDATE timer SET due_at = :now
 WHERE due_at > :now AND purpose = 'retry' AND tenant = :tenant
   AND EXISTS (SELECT 1 FROM task JOIN lane ON lane.id = task.lane_id
                WHERE task.id = timer.entity_id AND lane.tool = :tool AND task.metadata LIKE :pattern)
RETURNING entity_id
