-- name: find_template
SELECT {template} FROM template WHERE tenant = :tenant AND name = :name

-- name: list_templates
SELECT {template} FROM template WHERE tenant = :tenant ORDER BY name

-- name: save_templates
INSERT INTO {new template}
    ON CONFLICT (tenant, name) DO UPDATE SET text = excluded.text, stored_at = excluded.stored_at, stored_by = excluded.stored_by

-- name: find_tombstone
SELECT {tombstone} FROM tombstone WHERE task_id = :task_id AND tenant = :tenant

-- name: insert_tombstones
INSERT INTO {new tombstone}
    ON CONFLICT (task_id) DO NOTHING
RETURNING task_id
