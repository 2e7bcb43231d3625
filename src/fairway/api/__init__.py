"""HTTP: routes and wire types only. What they answer comes from the ledger; what may ask is in `access`."""
