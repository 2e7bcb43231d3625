"""The web pages: rendered on the server, updated live.

They read the same ledger with the same permissions as the API.
"""
