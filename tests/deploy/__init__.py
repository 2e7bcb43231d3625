"""What people install: the verb for the ledger, servers apart from loops, units, the image, the chart, the rules."""
