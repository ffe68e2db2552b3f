"""The store on PostgreSQL: for many machines, with row locks and notifications."""
