-- name: list_transitions
-- Positions after `end` are not settled yet: a running transaction may still commit a smaller one. coalesce hides the tenant from PostgreSQL's
-- planner: it takes a tenant for rare, and would look up all lines after `after` to find a page of them.
SELECT {transition} FROM transition
 WHERE transition.position > :after AND transition.position <= :end AND coalesce(tenant = :tenant, false)
 ORDER BY transition.position LIMIT :limit

-- name: list_all_transitions
SELECT {transition} FROM transition
 WHERE transition.position > :after AND transition.position <= :end
 ORDER BY transition.position LIMIT :limit

-- name: list_history
SELECT {transition} FROM transition
 WHERE transition.number = (SELECT number FROM entity WHERE id = :entity_id) AND transition.kind = (SELECT kind FROM entity WHERE id = :entity_id)
   AND transition.revision > :after AND transition.tenant = :tenant
 ORDER BY transition.revision LIMIT :limit

-- name: last_position
SELECT CAST(max(position) AS TEXT) FROM trail WHERE position <= :end

-- name: measure_transitions
SELECT machine.name, from_state, to_state, count(*), coalesce(avg(seconds_in_state), 0.0)
  FROM transition JOIN machine ON machine.id = transition.machine_id
 WHERE tenant = :tenant
 GROUP BY machine.name, from_state, to_state
 ORDER BY machine.name, from_state NULLS FIRST, to_state

-- name: insert_notices
INSERT INTO {new notice}

-- name: list_notices
-- Reads the table backwards from where the page before ended. With a condition it may read all of it: notices are few.
SELECT {listed_notice} FROM notice
 WHERE notice.position < :after AND tenant = :tenant
   AND (CAST(:about AS TEXT) IS NULL OR entity_id = CAST(:about AS TEXT) OR run_id = CAST(:about AS TEXT))
   AND at >= :since AND at < :before AND {notice_conditions}
 ORDER BY notice.position DESC LIMIT :limit
