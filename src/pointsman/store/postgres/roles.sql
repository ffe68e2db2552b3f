-- Two roles with the fewest rights. Run this as the owner of the tables, after the owner has opened the database once, and again after
-- every new version: `pointsman database roles | psql URL`. Then let your own users in: GRANT pointsman_app TO worker_one.
--
-- pointsman_app   engines, workers and servers. It cannot write the audit trail or the attempts, which the law writes as the owner, and
--                 cannot delete anything but timers, expired answers, notes about duties, notifications and quotas.
-- pointsman_read  people and programs that only look.

DO $roles$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['pointsman_app', 'pointsman_read'] LOOP
        IF NOT EXISTS (SELECT 1 FROM pg_catalog.pg_roles WHERE rolname = role) THEN
            BEGIN
                EXECUTE format('CREATE ROLE %I NOLOGIN', role);
            EXCEPTION WHEN duplicate_object OR unique_violation THEN
                NULL; -- roles belong to all databases of a server, and another session has just created it
            END;
        END IF;
        EXECUTE format('GRANT USAGE ON SCHEMA %I TO %I', current_schema(), role);
    END LOOP;
END $roles$;

REVOKE ALL ON tenant, api_key, account, quota, machine, state, rule, run, run_tag, lane, worker, task, task_spec, task_state, dependency, breaker, timer, trail, entity, transition, attempt,
    seal, notice, duty_failure, outbox, outbox_cursor, idempotency_key, template, tombstone, clock, clock_correction, clock_offset, migration FROM pointsman_app, pointsman_read;

GRANT SELECT ON tenant, account, quota, machine, state, rule, run, run_tag, lane, worker, task, task_spec, task_state, dependency, breaker, timer, trail, entity, transition, attempt,
    seal, notice, duty_failure, outbox, outbox_cursor, idempotency_key, template, tombstone, clock, clock_correction, clock_offset, migration TO pointsman_app, pointsman_read;
GRANT SELECT ON SEQUENCE trail_position_seq TO pointsman_app, pointsman_read;
GRANT USAGE ON SEQUENCE task_number_seq TO pointsman_app;

GRANT INSERT ON tenant, account, quota, machine, state, rule, run, run_tag, lane, worker, task, task_spec, task_state, dependency, breaker, timer, seal, notice, duty_failure,
    outbox, outbox_cursor, idempotency_key, template, tombstone, clock_offset TO pointsman_app;
GRANT UPDATE ON account, quota, run, worker, task, task_state, breaker, timer, duty_failure, outbox, outbox_cursor, idempotency_key, template,
    clock_offset
    TO pointsman_app;
-- A process that loads a machine locks the table. The law refuses every change.
GRANT UPDATE ON machine TO pointsman_app;
GRANT DELETE ON timer, duty_failure, outbox, idempotency_key, quota TO pointsman_app;
-- Keys: nobody but engines and servers reads the hashes of their secrets. A key keeps its tenant and scopes, and is never deleted.
GRANT SELECT, INSERT ON api_key TO pointsman_app;
GRANT UPDATE (secret_hash, previous_hash, previous_expires_at, expires_at, revoked_at, last_used_at) ON api_key TO pointsman_app;
GRANT SELECT (id, tenant, name, scopes, created_at, created_by, expires_at, revoked_at, last_used_at, previous_expires_at) ON api_key
    TO pointsman_read;
