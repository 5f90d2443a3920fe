"""The daemon: processes, sockets and settings joined to a running mail filter."""
