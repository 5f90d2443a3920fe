"""The HTTP interface and the pages for people.

`table` lists the operations of the interface with their parameters and rights, and describes them
as OpenAPI; `operations` are their functions. `pages_mail`, `pages_kept` and `pages_admin` are the
pages, which ask these operations with the visitor's rights; `pages_http` is the application;
`preview` makes a safe document of a hostile message. `digest` and `webhooks` send mail and events.

A user finds only the mail that was delivered to this user.
"""
