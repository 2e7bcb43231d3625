"""Why things are as they are, in the user's words: engine facts into reasons and remedies. Pure."""
