"""The lab's cluster in a fleet file's words, for tests and benchmarks that need no pools of their own."""

from __future__ import annotations

from typing import Final

POOLS: Final = """\
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    slurm: {{ partition: gpu, gres: a100 }}
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1.90
    slurm: {{ partition: mig }}
"""
"""Follows a head whose cluster is called `lab`; goes through `format` with it."""
