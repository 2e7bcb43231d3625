"""Nodes and GPUs as Slurm reports them."""
