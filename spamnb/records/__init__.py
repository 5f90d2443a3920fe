"""Lists on disk that are no part of the model: verdicts, sessions, series.

`verdicts` keeps the verdict of each message with its features, so that a correction needs no
message, and finds verdicts for pages and commands. `console` keeps the sessions of the console and
the series of its graphs.

All of it may be lost without losing training. A power cut costs the last verdicts; a session that
was acknowledged is on disk.
"""
