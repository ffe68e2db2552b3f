-- name: list_transitions
-- Writers overlap: only what lies before every transaction that still runs is read, so nothing can appear behind a reader's back.
-- A position whose transaction is still to come is of the server that a dump was made on; there the position alone says where it is.
SELECT transaction_id || '-' || position AS position, tenant, kind, entity_id, run_id, machine_id, from_state, to_state, trigger,
       severity, reason, actor, metadata, at, seconds_in_state
  FROM transition
 WHERE (transaction_id, position) > (CASE WHEN %(after_transaction)s::xid8 < pg_snapshot_xmax(pg_current_snapshot())
                                          THEN %(after_transaction)s::xid8 ELSE '0' END, %(after_position)s::bigint)
   AND transaction_id < (SELECT stream_end(%(elsewhere)s::xid[])) AND tenant = %(tenant)s
 ORDER BY transaction_id, transition.position LIMIT %(limit)s

-- name: list_run_transitions
SELECT transaction_id || '-' || position AS position, tenant, kind, entity_id, run_id, machine_id, from_state, to_state, trigger,
       severity, reason, actor, metadata, at, seconds_in_state
  FROM transition
 WHERE entity_id = ANY(ARRAY(SELECT id FROM task WHERE run_id = %(run_id)s UNION ALL SELECT %(run_id)s))
   AND (transaction_id, position) > (CASE WHEN %(after_transaction)s::xid8 < pg_snapshot_xmax(pg_current_snapshot())
                                          THEN %(after_transaction)s::xid8 ELSE '0' END, %(after_position)s::bigint)
   AND transaction_id < (SELECT stream_end(%(elsewhere)s::xid[])) AND tenant = %(tenant)s
 ORDER BY transaction_id, transition.position LIMIT %(limit)s

-- name: list_history
SELECT transaction_id || '-' || position AS position, tenant, kind, entity_id, run_id, machine_id, from_state, to_state, trigger,
       severity, reason, actor, metadata, at, seconds_in_state
  FROM transition
 WHERE entity_id = %(entity_id)s AND tenant = %(tenant)s
 ORDER BY transition.position

-- name: last_position
SELECT (SELECT transaction_id || '-' || position FROM transition WHERE transaction_id < (SELECT stream_end(%(elsewhere)s::xid[]))
         ORDER BY transaction_id DESC, transition.position DESC LIMIT 1)

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
