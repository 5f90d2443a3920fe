"""Several hosts that learn one model through a log on a server.

`log` is the interface of the log, `valkey` and `postgres` are its servers. `store` is a model store
that appends each training to the log and adds what other hosts appended: integers only, so all
hosts are equal. `waiting` and `outbox` keep corrections while the server is away, `elsewhere` asks
other hosts for a verdict. `pulse` compares the hosts; `administration` lets them join, leave and
recover.

Without `fleet.url` nothing of this package runs.
"""
