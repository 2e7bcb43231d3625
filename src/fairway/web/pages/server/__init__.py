"""The page of the server itself."""
