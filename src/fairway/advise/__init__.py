"""Advise on GPU use: why a running job uses its GPUs badly, and what its next run should request. Pure."""
