"""Connect spamnb to the mail server of the machine, and take the connection out again.

`edits` marks what is added to files of other programs, so that it can be taken out exactly.
`postfix`, `dovecot` and `own_settings` read what is there and say which edits and commands it
needs; `plan` has their common values. `run` makes the edits, checks each step, and goes back to the
old state if a step fails, or if an earlier run was killed.

It edits only what it understands: for everything else it prints the lines that the administrator
adds. It must not know how mail is scanned or taught.
"""
