"""Mailboxes on IMAP servers: new mail is judged, junk is moved, moves by the user are learnt.

`client` speaks the protocol within limits of time and size, `sync` compares each mailbox with its
state of the last look. A state is written before the server is changed, so that a kill at any point
neither judges a message twice nor learns the filter's own moves.
"""
