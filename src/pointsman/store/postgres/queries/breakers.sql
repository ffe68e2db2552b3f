-- name: find_breaker
SELECT * FROM breaker WHERE tool = %(tool)s AND tenant = %(tenant)s

-- name: list_breakers
SELECT * FROM breaker WHERE tenant = %(tenant)s ORDER BY tool

-- name: lock_breakers
SELECT * FROM breaker WHERE tenant = %(tenant)s AND tool = ANY(%(tools)s) ORDER BY id FOR NO KEY UPDATE

-- name: list_guarded_breakers
SELECT * FROM breaker
 WHERE tenant = %(tenant)s AND (phase <> 'queued' OR max_concurrent IS NOT NULL OR rate_count IS NOT NULL)
 ORDER BY id

-- name: count_at_work
-- Everything that is held by anybody, which is no more than all workers have slots.
SELECT count(*) FROM task
 WHERE current_attempt IS NOT NULL AND NOT lease_expired
   AND lane_id = ANY(ARRAY(SELECT id FROM lane WHERE tenant = %(tenant)s AND tool = %(tool)s))

-- name: insert_breakers
INSERT INTO breaker (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                     started_at, completed_at, tool, failure_count, failure_threshold, success_count, success_threshold,
                     cooldown_seconds, retry_at, probe_task_id, max_concurrent, rate_count, rate_seconds, begun)
SELECT id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
       started_at, completed_at, tool, failure_count, failure_threshold, success_count, success_threshold,
       cooldown_seconds, retry_at, probe_task_id, max_concurrent, rate_count, rate_seconds, begun
  FROM json_to_recordset(%(rows)s) AS new (
       id text, tenant text, machine_id integer, state text, phase text, outcome text, revision integer, trigger text, reason text,
       actor text, metadata text, entered_at timestamptz, created_at timestamptz, started_at timestamptz, completed_at timestamptz,
       tool text, failure_count integer, failure_threshold integer, success_count integer, success_threshold integer,
       cooldown_seconds double precision, retry_at timestamptz, probe_task_id text,
       max_concurrent integer, rate_count integer, rate_seconds double precision, begun text)
    ON CONFLICT (tenant, tool) DO NOTHING
