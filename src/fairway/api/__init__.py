"""The HTTP API: the app, authentication, rate limits and problems; `routes` has the routes."""
