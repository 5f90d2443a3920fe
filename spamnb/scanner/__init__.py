"""The endpoint of programs that ask about single messages: spamc, rspamc, HTTP clients.

`dialects` reads the requests of spamd's and rspamd's protocols and writes their replies; `request`
checks who asks and runs what is asked: scan, teach, report, statistics; `session` has the states of
a connection. A client gets what it expects from these filters, and JSON with more than they tell.
"""
