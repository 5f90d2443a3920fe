"""The pages of the console: HTML from templates, for people with a login.

    table       all pages: path, roles, parameters, acts
    app         routes, logins, forms, errors
    visitors    who looks at a page: sessions, roles
    rendering   templates, assets
    texts       all English text
    mail        live, search, message, trainings, own mail
    kept mail   quarantine, review, and the pages of signed links

Every number and every change comes from the operations of the API.
"""
