"""Parse and check job files, `#SBATCH` scripts and Kubernetes Jobs."""
