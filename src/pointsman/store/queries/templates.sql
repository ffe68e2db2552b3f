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

-- name: list_tasks_of_lifecycle
-- Reads the primary key of task backwards, from the newest task or from where the page before ended.
SELECT {task_in_brief}, NULL, task.output
  FROM task JOIN run ON run.id = task.run_id
 WHERE task.tenant = :tenant AND run.lifecycle = :lifecycle AND (CAST(:after AS TEXT) IS NULL OR task.id < CAST(:after AS TEXT))
   AND NOT EXISTS (SELECT 1 FROM tombstone WHERE tombstone.task_id = task.id)
 ORDER BY task.id DESC LIMIT :limit
