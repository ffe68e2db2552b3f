-- name: ensure_tenant
INSERT INTO tenant (id, created_at) VALUES (:id, :now) ON CONFLICT DO NOTHING

-- name: list_machines
SELECT {machine} FROM machine ORDER BY id

-- name: next_machine_id
SELECT coalesce(max(id), 0) + 1 FROM machine

-- name: list_unguarded_machines
SELECT {machine} FROM machine
 WHERE kind = 'run' AND NOT EXISTS (SELECT 1 FROM rule WHERE machine_id = machine.id AND needs_dependencies)
 ORDER BY id

-- name: guard_rule
UPDATE rule SET needs_dependencies = NOT needs_dependencies
 WHERE machine_id = :machine_id AND from_state = :from_state AND to_state = :to_state AND trigger = :trigger
   AND NOT needs_dependencies

-- name: insert_machine
INSERT INTO {new machine}

-- name: insert_states
INSERT INTO {new state}

-- name: insert_rules
INSERT INTO {new rule}

-- name: count_lanes
SELECT count(*) FROM lane

-- name: list_lanes
SELECT {lane} FROM lane ORDER BY id

-- name: insert_lane
INSERT INTO lane (tenant, tool, capabilities, fails_fast) VALUES (:tenant, :tool, :capabilities, :fails_fast)
    ON CONFLICT DO NOTHING
RETURNING id

-- name: find_lane
SELECT {lane} FROM lane
 WHERE tenant = :tenant AND tool IS NOT DISTINCT FROM CAST(:tool AS TEXT) AND capabilities = :capabilities
   AND fails_fast = :fails_fast

-- name: find_tool
-- Always one row, also for an unknown lane.
SELECT (SELECT tool FROM lane WHERE id = :id)

-- name: find_version
SELECT coalesce(max(number), 0) FROM migration
