"""Supervision of processes: start, signals, shared state. Knows no mail."""
