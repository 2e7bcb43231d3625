"""One hand an engine: users and administrators, played by the engine's own tools, never through Fairway."""
