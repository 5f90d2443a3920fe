"""The command line: one module for each command, or for a few related ones.

`main` lists the commands and turns every error into one line. `session` opens settings, log, model
and daemon for a command; a command asks the daemon if one runs, and else works in its own process.
`options` and `printing` are shared. Imports within functions keep the start of a command short:
with numpy and LMDB it takes twice the time.
"""
