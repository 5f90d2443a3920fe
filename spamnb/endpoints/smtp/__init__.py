"""SMTP and LMTP: the front door (a transparent relay) and the post office."""
