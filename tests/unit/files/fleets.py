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

SHARED = (
    SOUND.replace("price: 1.90\n", "price: 1.90\n    gpus: 32\n", 1)
    + """\
priorities:
  urgent: { rank: 100 }
  normal: { rank: 50, default: true }
  low: { rank: 10, preemptible: always }
fairness: { half_life: 14d }
teams:
  research:
    share: 60
    guarantee: { hpc-a100: 16, lab-mig/1g.10gb: 32 }
    borrow: { hpc-a100: 16 }
    limits: { job: { gpus: 32, time: 72h }, user: { gpus: 24 } }
    teams:
      nlp: { share: 2, guarantee: { hpc-a100: 8 }, members: [alice, erin] }
      vision: { borrow: { lab-mig/1g.10gb: 0 }, members: [alice, carol] }
  product:
    share: 40
    guarantee: { hpc-a100: 16 }
    priorities: [urgent, normal]
    members: [bob]
users:
  alice: { default_team: nlp }
"""
)
"""The sound fleet with teams that share it."""


def changed(old: str, new: str, text: str = SOUND) -> str:
    """The sound fleet with one piece of text replaced, which must be there."""
    assert text.count(old) >= 1, old
    return text.replace(old, new, 1)


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
