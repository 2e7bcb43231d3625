"""The situations in which a job waits, on real engines, and what `fairway why` says of each."""
