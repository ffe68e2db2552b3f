-- Lists of runs, newest first: those that have not succeeded, which are few, and those of one name.
CREATE INDEX run_unfinished ON run (tenant, created_at, id) WHERE outcome IS NULL OR outcome <> 'success';
CREATE INDEX run_of_name ON run (tenant, name, created_at, id);
