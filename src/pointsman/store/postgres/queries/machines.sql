-- name: ensure_tenant
INSERT INTO tenant (id, created_at) VALUES (%(id)s, %(now)s) ON CONFLICT DO NOTHING

-- name: list_machines
SELECT * FROM machine ORDER BY id

-- name: next_machine_id
-- Whoever asks holds the lock of the table, so two never get the same.
SELECT coalesce(max(id), 0) + 1 FROM machine

-- name: insert_machine
INSERT INTO machine (id, name, version, kind, fingerprint, lifecycle, definition)
SELECT id, name, version, kind, fingerprint, lifecycle, definition
  FROM json_to_recordset(%(rows)s) AS new (
       id integer, name text, version integer, kind text, fingerprint text, lifecycle text, definition text)

-- name: insert_states
INSERT INTO state (machine_id, name, phase, outcome, initial, kind)
SELECT machine_id, name, phase, outcome, initial, kind
  FROM json_to_recordset(%(rows)s) AS new (machine_id integer, name text, phase text, outcome text, initial boolean, kind text)

-- name: insert_rules
INSERT INTO rule (machine_id, from_state, to_state, trigger, severity, to_phase, to_outcome, needs_worker, needs_session,
                  needs_dependencies)
SELECT machine_id, from_state, to_state, trigger, severity, to_phase, to_outcome, needs_worker, needs_session, needs_dependencies
  FROM json_to_recordset(%(rows)s) AS new (
       machine_id integer, from_state text, to_state text, trigger text, severity text, to_phase text, to_outcome text,
       needs_worker boolean, needs_session boolean, needs_dependencies boolean)

-- name: count_lanes
SELECT count(*) FROM lane

-- name: list_lanes
SELECT * FROM lane ORDER BY id

-- name: insert_lane
INSERT INTO lane (tenant, tool, capabilities, fails_fast) VALUES (%(tenant)s, %(tool)s, %(capabilities)s, %(fails_fast)s)
    ON CONFLICT DO NOTHING

-- name: find_lane
SELECT * FROM lane
 WHERE tenant = %(tenant)s AND tool IS NOT DISTINCT FROM %(tool)s::text AND capabilities = %(capabilities)s
   AND fails_fast = %(fails_fast)s

-- name: create_migrations
CREATE TABLE migration (number integer PRIMARY KEY, name text NOT NULL, applied_at timestamptz NOT NULL)

-- name: find_version
SELECT coalesce(max(number), 0) FROM migration
