"""What GPUs do, read from a cluster's Prometheus and joined to the jobs that hold them."""
