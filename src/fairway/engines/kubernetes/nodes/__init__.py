"""Nodes and GPUs as Kubernetes reports them."""
