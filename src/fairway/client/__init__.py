"""The Python client of the API.

It finds a server and its token, sends requests, and returns wire types or raises FairwayError.
"""
