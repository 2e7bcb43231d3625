"""Real Slurm: slurmctld, slurmdbd on MariaDB, slurmrestd with JWT, and any number of real slurmd."""

from lab.slurm.cluster import Slurm

KIND = Slurm()

__all__ = ["KIND"]
