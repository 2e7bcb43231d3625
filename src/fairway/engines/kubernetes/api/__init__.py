"""Connect to the API server: client, informer, requests, errors, kinds and the JSON that is read."""
