"""Sign in to the pages: by token, or by OpenID Connect."""
