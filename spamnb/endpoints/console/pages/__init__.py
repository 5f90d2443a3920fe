"""The pages of the console: HTML from templates, for people with a login.

    table       all pages: path, roles, parameters, acts
    app         routes, logins, forms, errors
    visitors    who looks at a page: sessions, roles
    rendering   templates, assets
    texts       all English text
    page        what a page is; asks the operations of the API
    live, lists, message, quarantine, review, links    what the pages show
    teaching    what their forms do

Every number and every change comes from the operations of the API.
"""
