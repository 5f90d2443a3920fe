"""Labels from people: may this user label this message, and what follows.

`service` resolves a message or a reference to a verdict, asks `rights` for the user's permission,
trust and quota, and makes a request of the engine or an entry in the review queue (`review`).
`spool` keeps labels of programs that cannot wait.

What a user may do is decided here for every way in: socket, HTTP, IMAP, Maildir and mail to
`spam@`.
"""
