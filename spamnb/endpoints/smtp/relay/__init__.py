"""The transparent SMTP and LMTP relay."""
