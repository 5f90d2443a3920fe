"""Who sent a message: SPF, DKIM, DMARC and ARC, checked by this program.

A filter that believes the fields of another program depends on how that program is wired; a site
without one knows nothing about the sender. This package asks the name servers and verifies the
signatures itself.

    verifier.py   one message: all checks within one time limit, and the field with their results
    spf.py        may this client send for this domain? (RFC 7208)
    dkim.py       signatures of domains (RFC 6376, 8301, 8463)
    arc.py        chains of forwarding servers (RFC 8617)
    dmarc.py      which of these domains speaks for the author (RFC 7489)
    lists.py      lists by DNS of addresses and domains
    names.py      questions to name servers: cached, with limits

The checks are coroutines that do nothing but ask: they have no clock, no socket and no cache. The
packages that they need come with the extra `auth`.
"""
