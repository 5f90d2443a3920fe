"""What endpoints share: addresses, networks, the PROXY protocol, an SMTP client."""
