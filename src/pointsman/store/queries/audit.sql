-- name: last_seal
SELECT {seal} FROM seal ORDER BY position DESC LIMIT 1

-- name: list_seals
SELECT {seal} FROM seal WHERE seal.position > :after ORDER BY seal.position LIMIT :limit

-- name: insert_seal
-- Another process may have sealed the same transitions: then nothing is inserted.
INSERT INTO seal (position, previous, digest, sealed_at)
SELECT CAST(:position AS BIGINT), CAST(:previous AS BIGINT), CAST(:digest AS TEXT), :sealed_at
 WHERE CAST(:previous AS BIGINT) = (SELECT coalesce(max(position), 0) FROM seal)
    ON CONFLICT DO NOTHING
RETURNING position

-- name: list_broken_trails
-- Reads the whole audit trail once by transition_of_entity, and probes it once for each entity.
SELECT kind, entity_id, 'move ' || revision || ' of its audit trail does not continue the one before' AS what
  FROM (SELECT kind, entity_id, revision, from_state, lag(to_state) OVER entity AS before, lag(revision) OVER entity AS prior
          FROM transition WINDOW entity AS (PARTITION BY entity_id ORDER BY revision)) AS trail
 WHERE from_state IS DISTINCT FROM before OR revision <> coalesce(prior + 1, 0)
UNION ALL
SELECT kind, entity_id, 'no rule of its machine allows move ' || revision || ' of its audit trail, ' || from_state || ' -> ' || to_state
                        || ' : ' || trigger
  FROM transition
 WHERE from_state IS NOT NULL
   AND NOT EXISTS (SELECT 1 FROM rule WHERE rule.machine_id = transition.machine_id AND rule.from_state = transition.from_state
                                        AND rule.to_state = transition.to_state AND rule.trigger = transition.trigger)
UNION ALL
SELECT kind, entity_id, 'it has an audit trail, but there is no such ' || kind
  FROM transition
 WHERE revision = 0
   AND NOT EXISTS (SELECT 1 FROM task WHERE task.id = entity_id) AND NOT EXISTS (SELECT 1 FROM run WHERE run.id = entity_id)
   AND NOT EXISTS (SELECT 1 FROM worker WHERE worker.id = entity_id) AND NOT EXISTS (SELECT 1 FROM breaker WHERE breaker.id = entity_id)
UNION ALL
SELECT kind, id, 'its row differs from the last line of its audit trail'
  FROM (SELECT 'run' AS kind, id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM run
        UNION ALL SELECT 'task', id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM task
        UNION ALL SELECT 'worker', id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM worker
        UNION ALL SELECT 'breaker', id, tenant, machine_id, state, revision, trigger, reason, actor, metadata, entered_at FROM breaker)
       AS entity
 WHERE NOT EXISTS (SELECT 1 FROM transition
                    WHERE entity_id = entity.id AND transition.revision = entity.revision AND transition.kind = entity.kind
                      AND transition.tenant = entity.tenant AND transition.machine_id = entity.machine_id
                      AND to_state = entity.state AND transition.trigger = entity.trigger
                      AND transition.reason IS NOT DISTINCT FROM entity.reason
                      AND transition.actor IS NOT DISTINCT FROM entity.actor
                      AND transition.metadata IS NOT DISTINCT FROM entity.metadata
                      AND (entity.revision = 0 OR at = entered_at))
    OR EXISTS (SELECT 1 FROM transition WHERE entity_id = entity.id AND transition.revision > entity.revision)
UNION ALL
SELECT 'task', id, 'it has had ' || begun || ' attempts that have ended, but ' || stored || ' are stored'
  FROM (SELECT id, epoch - CASE WHEN current_attempt IS NULL THEN 0 ELSE 1 END AS begun,
               (SELECT count(*) FROM attempt WHERE task_id = task.id) AS stored
          FROM task) AS counted
 WHERE begun <> stored

-- name: list_states
SELECT {state} FROM state ORDER BY machine_id, name

-- name: list_rules
SELECT {rule} FROM rule ORDER BY machine_id, from_state, to_state, trigger
