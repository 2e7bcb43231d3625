"""The pages: server-rendered, live, for people who do not type commands.

They answer from the same ledger by the same rules as the API, and know nothing it does not.
"""
