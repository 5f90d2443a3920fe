"""Webhooks: events of the daemon, sent to addresses of the settings (Standard Webhooks)."""
