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
-- Reads the whole audit trail once by trail_of_entity, and probes it once for each entity. `transition` would put every line together, so only
-- metadata that the trail has left out is looked up there. `move` has the creations besides the rules, with the negative number of the machine.
WITH kind (code, name) AS (
    VALUES (0, 'run'), (1, 'task'), (2, 'worker'), (3, 'breaker')
), move AS (
    SELECT id, machine_id, from_state, to_state, trigger FROM rule
    UNION ALL
    SELECT -machine_id, machine_id, NULL, name, 'create' FROM state WHERE initial
)
SELECT (SELECT name FROM kind WHERE code = line.kind) AS kind,
       coalesce((SELECT id FROM entity WHERE entity.number = line.number AND entity.kind_code = line.kind), 'number ' || line.number) AS id,
       'move ' || line.revision || ' of its audit trail does not continue the one before' AS what
  FROM (SELECT number, kind, revision, rule_id, lag(rule_id) OVER entity AS prior_rule_id, lag(revision) OVER entity AS prior
          FROM trail WINDOW entity AS (PARTITION BY number, kind ORDER BY revision)) AS line
  LEFT JOIN rule ON rule.id = line.rule_id
  LEFT JOIN move AS before ON before.id = coalesce(line.prior_rule_id, -rule.machine_id)
 WHERE line.revision <> coalesce(prior + 1, 0) OR (prior IS NULL) <> (rule.id IS NULL)
    OR (prior IS NOT NULL AND rule.from_state IS DISTINCT FROM before.to_state)
UNION ALL
SELECT entity.kind, entity.id, 'no rule of its machine allows move ' || trail.revision || ' of its audit trail, ' || rule.from_state || ' -> '
                               || rule.to_state || ' : ' || rule.trigger
  FROM entity JOIN trail ON trail.number = entity.number AND trail.kind = entity.kind_code JOIN rule ON rule.id = trail.rule_id
 WHERE rule.machine_id <> entity.machine_id
UNION ALL
SELECT kind.name, 'number ' || number, 'it has an audit trail, but there is no such ' || kind.name
  FROM trail LEFT JOIN kind ON kind.code = trail.kind
 WHERE NOT EXISTS (SELECT 1 FROM entity WHERE entity.number = trail.number AND entity.kind_code = trail.kind)
UNION ALL
SELECT entity.kind, entity.id, 'its row differs from the last line of its audit trail'
  FROM entity
  LEFT JOIN trail AS line ON line.number = entity.number AND line.kind = entity.kind_code AND line.revision = entity.revision
  LEFT JOIN move ON move.id = coalesce(line.rule_id, -entity.machine_id)
 WHERE line.position IS NULL OR move.id IS NULL
    OR move.machine_id <> entity.machine_id OR move.to_state <> entity.state OR move.trigger <> entity.trigger
    OR line.reason IS DISTINCT FROM entity.reason OR line.actor IS DISTINCT FROM entity.actor
    OR (line.metadata IS DISTINCT FROM entity.metadata
        AND (SELECT metadata FROM transition WHERE transition.position = line.position) IS DISTINCT FROM entity.metadata)
    OR (entity.revision > 0 AND line.at <> entity.entered_at)
    OR EXISTS (SELECT 1 FROM trail
                WHERE trail.number = entity.number AND trail.kind = entity.kind_code AND trail.revision > entity.revision)
UNION ALL
SELECT 'task', id, 'it has no row in task_state, and so no audit trail'
  FROM task_spec
 WHERE NOT EXISTS (SELECT 1 FROM task_state WHERE task_state.number = task_spec.number)
UNION ALL
SELECT 'task', id, 'it has had ' || begun || ' attempts that have ended, but ' || stored || ' are stored'
  FROM (SELECT id, epoch - CASE WHEN current_attempt IS NULL THEN 0 ELSE 1 END AS begun,
               (SELECT count(*) FROM trail WHERE trail.number = task.number AND trail.kind = 1 AND trail.started_at IS NOT NULL) AS stored
          FROM task) AS counted
 WHERE begun <> stored

-- name: list_states
SELECT {state} FROM state ORDER BY machine_id, name

-- name: list_rules
SELECT {rule} FROM rule ORDER BY machine_id, from_state, to_state, trigger
