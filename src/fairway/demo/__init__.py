"""The demo of `fairway demo`: two virtual clusters, users who keep them busy, and sixty days of history."""
