"""The engines that schedule: Slurm, Kubernetes + Kueue, a virtual one. `port` says what Fairway asks."""
