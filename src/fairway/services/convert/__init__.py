"""Convert records of the ledger and values of the model into wire types. Pure."""
