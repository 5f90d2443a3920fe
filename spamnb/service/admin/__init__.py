"""Administrative operations: one table for every endpoint and for the command line."""
