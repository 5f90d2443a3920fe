"""Servers that keep the log of a fleet."""
