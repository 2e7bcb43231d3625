"""One driver an engine: each moves its cluster by the engine's own means, never through Fairway."""
