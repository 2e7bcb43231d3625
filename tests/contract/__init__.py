"""One suite for every engine: what `observe()` promises, proven on each of them by the same tests.

`driver.py` says what a test may do to a cluster; `drivers/` has one file an engine that does it.
"""
