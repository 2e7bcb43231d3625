"""Jobs on Slurm: sent and acted on through slurmrestd, seen through `squeue` and `sacct`, which scale."""
