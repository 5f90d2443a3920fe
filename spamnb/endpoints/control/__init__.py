"""The control socket: protocol, server and training client."""
