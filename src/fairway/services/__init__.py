"""Use cases that the API, the pages and the loops share: submit a job, plan a fleet, report charges.

A service reads the ledger, calls engines and the pure core. It knows neither HTTP nor the command line.
"""
