"""The engines that schedule: Slurm, Kubernetes + Kueue, and a virtual one. `port` says what Fairway asks of them."""
