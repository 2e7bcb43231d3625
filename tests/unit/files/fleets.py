"""Fleet texts for tests: a sound one, and ways to change a line of it."""

from __future__ import annotations

from pathlib import Path

from fairway.files import Fault, FaultCode, Report, Severity, check_text

FOLDER = Path("/etc/fairway")

SOUND = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc:
    engine: slurm
    url: https://slurm.example.org:6820
    credentials: { jwt_key_file: hpc.jwt }
  cloud:
    engine: kubernetes
    kubeconfig: /etc/fairway/cloud.kubeconfig
  lab:
    engine: virtual
pools:
  hpc-a100:
    cluster: hpc
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    slurm: { partition: gpu, gres: a100 }
  cloud-h100:
    cluster: cloud
    gpu: H100-80GB
    capacity: on-demand
    price: 3.67
    kubernetes: { node_labels: { example.org/pool: h100 } }
  lab-mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1.90
    virtual: { nodes: 2, slices_per_gpu: { 1g.10gb: 4, 3g.40gb: 1 } }
"""


def changed(old: str, new: str) -> str:
    """The sound fleet with one piece of text replaced, which must be there."""
    assert SOUND.count(old) >= 1, old
    return SOUND.replace(old, new, 1)


def checked(text: str, folder: Path | None = FOLDER) -> Report:
    """A check, with what holds of every report."""
    report = check_text(text, "fleet.yaml", folder)
    assert (report.fleet is None) == any(f.severity is Severity.ERROR for f in report.faults)
    return report


def only_fault(text: str, folder: Path | None = FOLDER) -> Fault:
    """The one fault of a text: a mistake must not show as two."""
    faults = checked(text, folder).faults
    assert len(faults) == 1, [(f.code, f.message) for f in faults]
    return faults[0]


def codes(text: str) -> list[FaultCode]:
    """The codes of a text's faults, in order."""
    return [fault.code for fault in checked(text).faults]
