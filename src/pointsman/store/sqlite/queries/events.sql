-- name: list_transitions
-- The writers take turns, so positions are given out in the order of the commits.
SELECT * FROM transition
 WHERE position > :after AND tenant = :tenant
 ORDER BY position LIMIT :limit

-- name: list_run_transitions
SELECT * FROM transition
 WHERE entity_id IN (SELECT id FROM task WHERE run_id = :run_id UNION ALL SELECT :run_id)
   AND position > :after AND tenant = :tenant
 ORDER BY position LIMIT :limit

-- name: list_history
SELECT * FROM transition WHERE entity_id = :entity_id AND tenant = :tenant ORDER BY revision

-- name: last_position
SELECT max(position) FROM transition

-- name: measure_transitions
SELECT machine.name, from_state, to_state, count(*), coalesce(avg(seconds_in_state), 0.0)
  FROM transition JOIN machine ON machine.id = transition.machine_id
 WHERE tenant = :tenant
 GROUP BY machine.name, from_state, to_state
 ORDER BY machine.name, from_state, to_state

-- name: insert_notices
INSERT INTO notice (tenant, kind, entity_id, run_id, subject, message, at)
VALUES (:tenant, :kind, :entity_id, :run_id, :subject, :message, :at)

-- name: list_notices
SELECT tenant, kind, entity_id, run_id, subject, message, at FROM notice WHERE tenant = :tenant ORDER BY position DESC LIMIT :limit
