"""Fleets on one Slurm cluster, as small as a test needs."""

from __future__ import annotations

from fairway.engines.slurm.policy.translate import PolicyContext
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.policy.objects import Value, WantedObject

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc: { engine: slurm, url: "http://127.0.0.1:6820", credentials: { jwt_key_file: /etc/fairway/hpc.jwt } }
pools:
  gpu:
    cluster: hpc
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    slurm: { partition: gpu, gres: a100 }
  mig:
    cluster: hpc
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1.90
    slurm: { partition: mig }
"""
SPOT = """
  spot:
    cluster: hpc
    gpu: A100-80GB
    capacity: spot
    price: 0.60
    slurm: { partition: spot, gres: a100 }
"""
TEAMS = """
teams:
  research:
    share: 60
    guarantee: { gpu: 16 }
    borrow: { gpu: 16 }
    limits: { job: { gpus: 24, time: 72h }, user: { gpus: 20 } }
    teams:
      nlp: { share: 2, guarantee: { gpu: 8 }, members: [alice] }
      vision: { share: 1, members: [carol] }
  product:
    share: 40
    guarantee: { gpu: 16, mig/1g.10gb: 4 }
    borrow: { gpu: 0 }
    priorities: [urgent, normal]
    members: [bob]
"""


def fleet(teams: str = TEAMS, *, spot: bool = False, more: str = "") -> Fleet:
    return parse_fleet(HEAD + (SPOT if spot else "") + more + teams, "fleet.yaml")


def ground(
    teams: str = TEAMS, *, spot: bool = False, settings: dict[str, str] | None = None
) -> PolicyContext:
    return PolicyContext.of(fleet(teams, spot=spot), "hpc", settings or {})


def by_name(objects: tuple[WantedObject, ...]) -> dict[str, dict[str, Value]]:
    return {str(o.key): dict(o.fields) for o in objects}
