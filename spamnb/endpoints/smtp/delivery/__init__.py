"""The post office: the built-in next hop. It ends SMTP and LMTP, writes Maildirs, takes reports.

    config      settings, as frozen values
    links       what it is given to work with
    paths       MAIL, RCPT and XFORWARD, exactly as they are written
    parameters  what speaks against them
    mail        what is known of a message on its way in
    replies     all that we say
    recipients  who lives here
    session     one connection (the only module that imports aiosmtpd)
    office      delivery, reports, logins, trust
    trace       the lines above a delivered message
    receipts    what is told to people who reported
    server      listening, renewing and draining

Front door and post office see each other on the wire alone.
"""
