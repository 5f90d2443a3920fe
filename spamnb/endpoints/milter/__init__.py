"""The milter protocol, by which Postfix and Sendmail ask a filter about each message."""
