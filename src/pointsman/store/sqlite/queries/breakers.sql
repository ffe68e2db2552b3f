-- name: find_breaker
SELECT * FROM breaker WHERE tool = :tool AND tenant = :tenant

-- name: list_breakers
SELECT * FROM breaker WHERE tenant = :tenant ORDER BY tool

-- name: lock_breakers
SELECT * FROM breaker WHERE tenant = :tenant AND tool IN (SELECT value FROM json_each(:tools)) ORDER BY id

-- name: list_tripped_tools
SELECT tool FROM breaker WHERE tenant = :tenant AND phase <> 'queued'

-- name: insert_breakers
INSERT INTO breaker (id, tenant, machine_id, state, phase, outcome, revision, trigger, reason, actor, metadata, entered_at, created_at,
                     started_at, completed_at, tool, failure_count, failure_threshold, success_count, success_threshold,
                     cooldown_seconds, retry_at, probe_task_id)
VALUES (:id, :tenant, :machine_id, :state, :phase, :outcome, :revision, :trigger, :reason, :actor, :metadata, :entered_at, :created_at,
        :started_at, :completed_at, :tool, :failure_count, :failure_threshold, :success_count, :success_threshold,
        :cooldown_seconds, :retry_at, :probe_task_id)

-- name: update_breakers
UPDATE breaker
   SET state = :state, phase = :phase, outcome = :outcome, revision = :revision, trigger = :trigger, reason = :reason, actor = :actor,
       metadata = :metadata, entered_at = :entered_at, started_at = :started_at, completed_at = :completed_at,
       failure_count = :failure_count, failure_threshold = :failure_threshold, success_count = :success_count,
       success_threshold = :success_threshold, cooldown_seconds = :cooldown_seconds, retry_at = :retry_at,
       probe_task_id = :probe_task_id
 WHERE id = :id AND revision = :revision - :moved
