"""SMTP and LMTP: the transparent relay and the built-in delivery agent."""
