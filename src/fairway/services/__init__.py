"""Use cases that the API, the pages and the loops share: submit a job, plan a fleet, report charges.

A service reads the ledger, asks engines and calls the pure core. It knows neither HTTP nor the command line.
"""
