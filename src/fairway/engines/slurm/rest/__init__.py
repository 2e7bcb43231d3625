"""The client of slurmrestd: requests, tokens, API versions, and the JSON fields that Fairway reads."""
