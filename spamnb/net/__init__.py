"""What every protocol shares: addresses, listeners and clients.

`address` has addresses, networks, secrets, certificates and the PROXY protocol. `server` accepts
connections within the limits of a listener and of the memory, and stops them in an orderly way.
`clients` asks other servers. `actions` are what a session wants from its connection.

A session of a protocol has no socket: bytes come in, bytes and actions go out.
"""
