"""`framekeeper run`: database, supervisor and gateway on one machine, without Docker."""
