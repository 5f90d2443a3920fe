"""The command line: one module for each command, or for a few related ones."""
