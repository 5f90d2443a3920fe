"""The pages of the console: HTML from templates, for people with a login.

    table       all pages: path, roles, parameters, acts
    app         routes, logins, forms, errors
    visitors    who looks at a page: sessions, roles
    rendering   templates, assets
    texts       all English text
    mail        live, search, message, trainings, own mail

Every number and every change comes from the operations of the API.
"""
