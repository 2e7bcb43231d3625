"""The engines: Slurm, Kubernetes with Kueue, and a virtual one. `port` has their protocols."""
