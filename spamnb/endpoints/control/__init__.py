"""The control socket: protocol, client, server and training client."""
