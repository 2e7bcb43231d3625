"""The page Fleet: clusters, pools and teams at a glance."""
