"""Mailboxes on IMAP servers: new mail is judged, junk is moved, moves by the user are learnt."""
