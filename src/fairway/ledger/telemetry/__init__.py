"""What GPUs did, by job, hour, team and node."""
