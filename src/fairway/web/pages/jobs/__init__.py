"""The pages Jobs and Job, and the log of a job."""
