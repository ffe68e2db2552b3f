-- Lists of runs begin with the newest. Ids do not say which that is: those of jobs are random (document 000).
DROP INDEX run_of_tenant;
CREATE INDEX run_of_tenant ON run (tenant, created_at, id);
