"""The steps of the loops, one module each: one round of a loop on one cluster."""
