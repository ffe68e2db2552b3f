-- name: ensure_tenant
INSERT INTO tenant (id, created_at) VALUES (:id, :now) ON CONFLICT DO NOTHING

-- name: list_machines
SELECT * FROM machine ORDER BY id

-- name: next_machine_id
SELECT coalesce(max(id), 0) + 1 FROM machine

-- name: insert_machine
INSERT INTO machine (id, name, version, kind, fingerprint, lifecycle, definition)
VALUES (:id, :name, :version, :kind, :fingerprint, :lifecycle, :definition)

-- name: insert_states
INSERT INTO state (machine_id, name, phase, outcome, initial, kind) VALUES (:machine_id, :name, :phase, :outcome, :initial, :kind)

-- name: insert_rules
INSERT INTO rule (machine_id, from_state, to_state, trigger, severity, to_phase, to_outcome, needs_worker, needs_session,
                  needs_dependencies)
VALUES (:machine_id, :from_state, :to_state, :trigger, :severity, :to_phase, :to_outcome, :needs_worker, :needs_session,
        :needs_dependencies)

-- name: count_lanes
SELECT count(*) FROM lane

-- name: list_lanes
SELECT * FROM lane ORDER BY id

-- name: insert_lane
INSERT INTO lane (tenant, tool, capabilities, fails_fast) VALUES (:tenant, :tool, :capabilities, :fails_fast)
    ON CONFLICT DO NOTHING

-- name: find_lane
SELECT * FROM lane WHERE tenant = :tenant AND tool IS :tool AND capabilities = :capabilities AND fails_fast = :fails_fast

-- name: create_migrations
CREATE TABLE migration (number INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT

-- name: find_version
SELECT coalesce(max(number), 0) FROM migration
