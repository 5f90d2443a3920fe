"""The built-in delivery agent: an SMTP and LMTP server that writes Maildirs and accepts reports.

    params         settings, as frozen values
    ports          what it needs from the daemon
    types          values of a message in progress
    replies        all reply texts
    recipients     address -> Maildir or feedback address
    session        one connection (the only module that imports aiosmtpd)
    delivery       delivery, reports, logins, trust
    maildir_writer durable writing of Maildirs
    trace_headers  the header lines above a delivered message
    receipts       replies by mail to users that reported
    server         listening, reloading and draining

The relay and the delivery agent communicate only over SMTP or LMTP.
"""
