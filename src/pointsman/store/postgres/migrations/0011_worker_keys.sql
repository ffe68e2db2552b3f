-- The API key that has registered a worker: the only one that acts as it. NULL for workers with access to the database.
ALTER TABLE worker ADD COLUMN key_id text COLLATE "C";

DROP TRIGGER worker_keeps_what_it_began_with ON worker;
CREATE TRIGGER worker_keeps_what_it_began_with
    BEFORE UPDATE OF id, tenant, machine_id, created_at, name, lifecycle, serves, max_concurrent_tasks, lease_seconds, only_run_id,
                     worker_metadata, key_id
    ON worker FOR EACH ROW
    WHEN ((new.id, new.tenant, new.machine_id, new.created_at, new.name, new.lifecycle, new.serves, new.max_concurrent_tasks,
           new.lease_seconds, new.only_run_id, new.worker_metadata, new.key_id)
          IS DISTINCT FROM
          (old.id, old.tenant, old.machine_id, old.created_at, old.name, old.lifecycle, old.serves, old.max_concurrent_tasks,
           old.lease_seconds, old.only_run_id, old.worker_metadata, old.key_id))
    EXECUTE FUNCTION forbid('a worker keeps its id, machine, tenant, the tenants that it serves and everything else that it was created with');
