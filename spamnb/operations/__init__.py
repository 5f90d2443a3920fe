"""Everything that can be asked of a home, with the right that it needs.

`table` lists the operations: name, right, fields, function. The control socket (`socket`,
`protocol`), HTTP and the command line run the same functions; without a daemon a command runs them
in its own process. `logins` has passwords, codes and tokens; `status` the state of the daemon.

A right is checked in one place, so a new way in cannot forget it.
"""
