"""Everything that can be asked of the engine, as values: one file for each kind of thing that is asked about."""
