"""Shared by the endpoints: addresses, networks, the PROXY protocol, an SMTP client."""
