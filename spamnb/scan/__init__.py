"""One message in the mail path, from its bytes to what is done with it.

`scanner` checks bypass, size, known crashers and lists of senders, queues the messages fairly among
clients, and scores those of one turn of the event loop as one batch. `judge` parses and scores them
on a snapshot and notes the verdict. `quarantine` keeps messages; `access_lists` reads the
administrator's files; `other_filters` asks a second filter beside this one. `values` are the
request and the result, which each protocol translates.

A fault here never loses a message: the result is `unscanned` with its reason.
"""
