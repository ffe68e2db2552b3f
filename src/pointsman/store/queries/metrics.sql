-- name: tally_transitions
-- A range of the primary key; what was tallied before is not read again. The bounds of the buckets are those of rows.SECONDS_BOUNDS.
SELECT tally.tenant, machine.name, from_state, to_state, trigger, bucket, moves, seconds
  FROM (SELECT tenant, machine_id, from_state, to_state, trigger,
               CASE WHEN seconds_in_state IS NULL THEN -1
                    WHEN seconds_in_state <= 0.1 THEN 0
                    WHEN seconds_in_state <= 1 THEN 1
                    WHEN seconds_in_state <= 10 THEN 2
                    WHEN seconds_in_state <= 60 THEN 3
                    WHEN seconds_in_state <= 300 THEN 4
                    WHEN seconds_in_state <= 1800 THEN 5
                    WHEN seconds_in_state <= 7200 THEN 6
                    WHEN seconds_in_state <= 28800 THEN 7
                    WHEN seconds_in_state <= 86400 THEN 8
                    WHEN seconds_in_state <= 604800 THEN 9
                    ELSE 10 END AS bucket,
               count(*) AS moves, coalesce(sum(seconds_in_state), 0.0) AS seconds
          FROM transition
         WHERE transition.position > :after AND transition.position <= :end
         GROUP BY 1, 2, 3, 4, 5, 6
       ) AS tally JOIN machine ON machine.id = tally.machine_id

-- name: measure_workers
-- Workers that have not ended (worker_alive), and the tasks that they hold (task_held).
SELECT worker.tenant, worker.state, count(*),
       CAST(sum(CASE WHEN missing THEN 0 ELSE max_concurrent_tasks END) AS BIGINT), CAST(coalesce(sum(held), 0) AS BIGINT)
  FROM worker LEFT JOIN (
        SELECT attempt_worker_id, count(*) AS held FROM task_state
         WHERE current_attempt IS NOT NULL AND NOT lease_expired
         GROUP BY attempt_worker_id
       ) AS at_work ON at_work.attempt_worker_id = worker.id
 WHERE worker.phase <> 'done'
 GROUP BY worker.tenant, worker.state
 ORDER BY worker.tenant, worker.state

-- name: list_all_breakers
-- Scans the table: a tenant has a few tools.
SELECT {breaker} FROM breaker ORDER BY tenant, tool

-- name: list_accounts
SELECT {account} FROM account ORDER BY tenant
