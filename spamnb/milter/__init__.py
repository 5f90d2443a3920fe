"""The milter protocol, by which Postfix and Sendmail ask about each message.

`packets` encodes and decodes, `session` has the states, the message that the mail server describes
piece by piece, and the listener. The mail server keeps the message, so nothing can be lost here; if
the filter cannot answer, the mail server does what its own default action says.
"""
