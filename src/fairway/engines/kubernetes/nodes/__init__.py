"""Observe nodes and GPUs as Kubernetes reports them."""
