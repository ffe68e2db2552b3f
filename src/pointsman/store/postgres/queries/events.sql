-- name: list_transitions
-- Writers overlap: only what is settled is read, so nothing can appear behind a reader's back.
SELECT * FROM transition
 WHERE position > %(after)s AND position <= %(end)s AND tenant = %(tenant)s
 ORDER BY position LIMIT %(limit)s

-- name: list_run_transitions
SELECT * FROM transition
 WHERE entity_id = ANY(ARRAY(SELECT id FROM task WHERE run_id = %(run_id)s UNION ALL SELECT %(run_id)s))
   AND position > %(after)s AND position <= %(end)s AND tenant = %(tenant)s
 ORDER BY position LIMIT %(limit)s

-- name: list_history
SELECT * FROM transition WHERE entity_id = %(entity_id)s AND tenant = %(tenant)s ORDER BY revision

-- name: last_position
SELECT max(position) FROM transition WHERE position <= %(end)s

-- name: measure_transitions
-- What has just begun comes first, as in SQLite, where NULL is the smallest.
SELECT machine.name, from_state, to_state, count(*), coalesce(avg(seconds_in_state), 0.0)
  FROM transition JOIN machine ON machine.id = transition.machine_id
 WHERE tenant = %(tenant)s
 GROUP BY machine.name, from_state, to_state
 ORDER BY machine.name, from_state NULLS FIRST, to_state

-- name: insert_notices
INSERT INTO notice (tenant, kind, entity_id, run_id, subject, message, at)
SELECT tenant, kind, entity_id, run_id, subject, message, at
  FROM json_to_recordset(%(rows)s) AS new (
       tenant text, kind text, entity_id text, run_id text, subject text, message text, at timestamptz)

-- name: list_notices
SELECT tenant, kind, entity_id, run_id, subject, message, at FROM notice
 WHERE tenant = %(tenant)s ORDER BY position DESC LIMIT %(limit)s
