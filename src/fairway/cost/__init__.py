"""What a GPU-second costs and who pays: prices, charges, idle shares, budgets, FOCUS rows. Pure."""
