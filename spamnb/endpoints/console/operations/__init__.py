"""The operations of the API, as functions of the served home and a checked request.

A caller of one user finds only what was delivered to that user. For this caller nothing else exists
(RefError). Failure: the errors of the services.
"""
