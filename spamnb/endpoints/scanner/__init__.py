"""Endpoint for programs that ask about single messages: spamc, rspamc, HTTP clients."""
