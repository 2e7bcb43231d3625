"""Jobs on Slurm: submitted through slurmrestd, mirrored through `squeue` and `sacct`, which scale."""
