"""Read and write traces of jobs: public ones, of other schedulers, and Fairway's own history.

Import `read_trace` where it is used: it loads polars.
"""
