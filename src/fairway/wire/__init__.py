"""The JSON of the API as pydantic models: what the routes return, and what the client and the CLI read."""
