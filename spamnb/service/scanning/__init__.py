"""Scan one message in the mail path: access lists, verdict, action, quarantine."""
