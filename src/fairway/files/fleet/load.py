"""Load a Fleet from a fleet file: read, check everything, then build it or report every fault."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fairway.files.diagnostics import Fault, FaultCode, Faults, InvalidFile, Location, shown
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_notify as ns
from fairway.files.fleet.build import (
    Supplies,
    TeamSection,
    budgets_of,
    channels_of,
    check_prices,
    chosen_teams_of,
    cost_rules_of,
    energy_of,
    fairness_of,
    idle_of,
    overhead_of,
    pricing_of,
    priorities_of,
    teams_of,
)
from fairway.files.fleet.checks.budgets import check_budgets
from fairway.files.fleet.checks.idle import check_idle
from fairway.files.fleet.checks.notify import check_notify
from fairway.files.fleet.checks.pools import check_pools, resource_of
from fairway.files.fleet.checks.slice_prices import check_slice_prices
from fairway.files.fleet.checks.slos import check_slos
from fairway.files.fleet.checks.teams import check_teams
from fairway.files.fleet.override import Override, overridden
from fairway.files.fleet.schema_diagnosis import diagnosis_of
from fairway.files.fleet.schema_slos import slos_of
from fairway.files.schema.containers import Section
from fairway.files.schema.values import FieldPath
from fairway.files.yaml import Mark, parse
from fairway.model.fleet import (
    DEFAULT_SLURM_USER,
    Cluster,
    Connection,
    EngineKind,
    ExistingWorkloads,
    Fleet,
    Folders,
    KubernetesConnection,
    KubernetesPlace,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
    Telemetry,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.gpu import GpuType, Vendor
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.gpu_health import HealthRule
from fairway.model.names import ClusterName, PoolName, SliceName

MAX_BYTES: Final = 1024 * 1024
"""Maximum size of a fleet file in bytes; ten thousand pools take less."""

_TOLERATED: Final = frozenset({FaultCode.SYSTEM_USER})
"""Faults that a stored fleet may have. Jobs of such a member are refused all the same."""


@dataclass(frozen=True, slots=True)
class Report:
    """The result of checking a fleet file. `fleet` is None if there are errors."""

    source: str
    fleet: Fleet | None
    faults: tuple[Fault, ...]


def read_fleet(path: Path) -> Fleet:
    """Read the fleet in a file. Raises InvalidFile with every fault."""
    return _fleet_or_raise(check_fleet(path))


def parse_fleet(text: str, source: str, folder: Path | None = None, *, stored: bool = False) -> Fleet:
    """Parse a fleet from text. Raises InvalidFile with every fault.

    Relative paths are relative to `folder`; without it they are faults. A `stored` fleet passed the checks of
    an earlier release: what only later ones refuse must not stop a server that is upgraded.
    """
    return _fleet_or_raise(check_text(text, source, folder, _TOLERATED if stored else frozenset()))


def check_fleet(path: Path) -> Report:
    """Check a fleet file and report every fault; never raises."""
    source = shown(str(path), 300)
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        return _refused(
            source,
            FaultCode.FILE_UNREADABLE,
            f"cannot read {source}: {reason}",
            "name a file that exists and that you may read, or read from a pipe:  fairway check -f -",
        )
    return check_bytes(data, source, path.absolute().parent)


def check_bytes(data: bytes, source: str, folder: Path | None = None) -> Report:
    """Check the bytes of a fleet file, e.g. from a pipe."""
    if len(data) > MAX_BYTES:
        return _too_large(source)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        at = Location(before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        message = f"byte 0x{data[error.start]:02x} here is not UTF-8"
        return _refused(source, FaultCode.NOT_UTF8, message, "save the file as UTF-8", at)
    return check_text(text, source, folder)


def check_text(
    text: str,
    source: str,
    folder: Path | None = None,
    tolerated: frozenset[FaultCode] = frozenset(),
    overrides: Sequence[Override] = (),
) -> Report:
    """Check the text of a fleet file, with values replaced. Faults with a tolerated code are warnings."""
    if len(text) > MAX_BYTES:
        return _too_large(source)
    faults = Faults(source, tolerated)
    root = parse(text.removeprefix("\ufeff"), faults)
    if root is not None and overrides:
        root = overridden(root, overrides)
    found = fs.FLEET.read(root, FieldPath((), Mark(*root.mark)), faults) if root is not None else None
    if found is None:
        return Report(source, None, faults.sorted())
    file = found.value
    gpu_types = _gpu_types(file)
    check_pools(file, gpu_types, faults)
    check_prices(file, faults)
    check_slice_prices(file, gpu_types, faults)
    supplies = Supplies(file, gpu_types)
    teams = teams_of(file, supplies, priorities_of(file))
    check_teams(file, teams, supplies, faults)
    check_idle(file, teams, faults)
    check_notify(file, teams, faults)
    check_budgets(file, teams, faults)
    check_slos(file, teams, supplies, faults)
    paths = _Paths(folder, faults)
    paths.check(file)
    fleet = None if faults.errors else _build(file, gpu_types, paths, teams)
    return Report(source, fleet, faults.sorted())


def fleet_digest(text: str) -> str:
    """Return the SHA-256 digest of a fleet file's text."""
    return hashlib.sha256(text.encode()).hexdigest()


def _fleet_or_raise(report: Report) -> Fleet:
    if report.fleet is None:
        raise InvalidFile(report.source, report.faults)
    return report.fleet


def _refused(source: str, code: FaultCode, message: str, hint: str, at: Location | None = None) -> Report:
    faults = Faults(source)
    faults.add(code, at or Location(1, 1), message, hint=hint)
    return Report(source, None, faults.sorted())


def _too_large(source: str) -> Report:
    hint = "is it the right file? A fleet of thousands of pools is smaller"
    return _refused(source, FaultCode.FILE_TOO_LARGE, f"the file is larger than {MAX_BYTES:,} bytes", hint)


@dataclass(frozen=True, slots=True)
class _Paths:
    """Converts the file's paths to absolute ones, so that they do not depend on the server's directory."""

    folder: Path | None
    faults: Faults

    def check(self, file: Section) -> None:
        if self.folder is not None:
            return
        for cluster in (file.get(fs.CLUSTERS) or {}).values():
            credentials = cluster.value.get(fs.CREDENTIALS)
            paths = [cluster.value.found(fs.KUBECONFIG), cluster.value.found(fs.SLURM_TOOLS)]
            if credentials:
                paths += [credentials.found(fs.JWT_KEY_FILE), credentials.found(fs.TOKEN_FILE)]
            if telemetry := cluster.value.get(fs.TELEMETRY):
                paths += [telemetry.found(fs.TELEMETRY_TOKEN), telemetry.found(fs.TELEMETRY_CA)]
            for found in paths:
                if found and not found.value.startswith("/"):
                    self.faults.add(
                        FaultCode.BAD_PATH,
                        found.location,
                        f"{found.location.value} is relative, but this fleet is not in a folder",
                        expected="a path that begins with /",
                        hint="write the whole path",
                    )

    def absolute(self, path: str | None) -> str | None:
        return None if path is None else str(self.folder / path) if self.folder else path


def _gpu_types(file: Section) -> Mapping[str, GpuType]:
    """Return the built-in GPU types and the file's own, including invalid ones so that pools can use them."""
    valid = file.get(fs.GPU_TYPES) or {}
    own = {
        name: _gpu_type(name, valid[name].value if name in valid else None)
        for name in file.names_in(fs.GPU_TYPES)
    }
    return {**own, **CATALOGUE}


def _gpu_type(name: str, section: Section | None) -> GpuType:
    memory = section.get(fs.GPU_MEMORY) if section else None
    products = section.get(fs.GPU_PRODUCTS) if section else None
    vendor = section.get(fs.GPU_VENDOR) if section else None
    return GpuType(
        name,
        int(memory.removesuffix("GB")) if memory else 0,
        tuple(product.value for product in products or ()),
        vendor=vendor or Vendor.NVIDIA,
    )


def _build(
    file: Section, gpu_types: Mapping[str, GpuType], paths: _Paths, teams: Sequence[TeamSection]
) -> Fleet:
    return Fleet(
        name=file.require(fs.FLEET_NAME),
        currency=file.require(fs.FLEET_CURRENCY),
        clusters=tuple(
            Cluster(
                ClusterName(name),
                _connection(found.value, paths),
                Folders(*(found.value.get(key) for key in fs.FOLDERS)),
                overhead_of(found.value),
                _telemetry(found.value, paths),
                energy_of(found.value),
            )
            for name, found in file.require(fs.CLUSTERS).items()
        ),
        pools=tuple(
            _pool(PoolName(name), found.value, gpu_types)
            for name, found in (file.get(fs.POOLS) or {}).items()
        ),
        teams=tuple(section.team for section in teams),
        priorities=priorities_of(file),
        fairness=fairness_of(file),
        diagnosis=diagnosis_of(file),
        chosen_teams=chosen_teams_of(file),
        cost=cost_rules_of(file),
        partial=file.get(fs.PARTIAL) is True,
        health=tuple(_health_rule(name, found.value) for name, found in (file.get(fs.HEALTH) or {}).items()),
        notify=channels_of(file.get(ns.NOTIFY)),
        idle=idle_of(file),
        budgets=budgets_of(file),
        slos=slos_of(file),
    )


def _health_rule(name: str, rule: Section) -> HealthRule:
    default = HealthRule(name)
    events, share = rule.get(fs.HEALTH_EVENTS), rule.get(fs.HEALTH_MAX_SHARE)
    return HealthRule(
        name,
        events=default.events if events is None else tuple(found.value for found in events),
        pools=tuple(PoolName(found.value) for found in rule.get(fs.HEALTH_POOLS) or ()),
        action=rule.get(fs.HEALTH_DO) or default.action,
        max_share=default.max_share if share is None else share,
        max_nodes=rule.get(fs.HEALTH_MAX_NODES),
    )


def _telemetry(cluster: Section, paths: _Paths) -> Telemetry | None:
    section = cluster.get(fs.TELEMETRY)
    if section is None:
        return None
    return Telemetry(
        prometheus=section.require(fs.PROMETHEUS),
        select=section.get(fs.SELECT) or "",
        token_file=paths.absolute(section.get(fs.TELEMETRY_TOKEN)),
        ca_file=paths.absolute(section.get(fs.TELEMETRY_CA)),
    )


def _connection(cluster: Section, paths: _Paths) -> Connection:
    match cluster.require(fs.ENGINE):
        case EngineKind.SLURM:
            credentials = cluster.require(fs.CREDENTIALS)
            return SlurmConnection(
                url=cluster.require(fs.SLURM_URL),
                user=credentials.get(fs.SLURM_USER) or DEFAULT_SLURM_USER,
                jwt_key_file=paths.absolute(credentials.get(fs.JWT_KEY_FILE)),
                token_file=paths.absolute(credentials.get(fs.TOKEN_FILE)),
                tools=paths.absolute(cluster.get(fs.SLURM_TOOLS)),
                existing_workloads=cluster.get(fs.EXISTING_WORKLOADS) or ExistingWorkloads.LEAVE,
            )
        case EngineKind.KUBERNETES:
            return KubernetesConnection(
                kubeconfig=paths.absolute(cluster.get(fs.KUBECONFIG)),
                context=cluster.get(fs.KUBE_CONTEXT),
                existing_workloads=cluster.get(fs.EXISTING_WORKLOADS) or ExistingWorkloads.LEAVE,
            )
        case EngineKind.VIRTUAL:
            return VirtualConnection()


def _pool(name: PoolName, pool: Section, gpu_types: Mapping[str, GpuType]) -> Pool:
    gpu = gpu_types[pool.require(fs.GPU)]
    price, pricing = pricing_of(pool)
    return Pool(
        name=name,
        cluster=ClusterName(pool.require(fs.POOL_CLUSTER)),
        gpu=gpu,
        capacity=pool.require(fs.CAPACITY),
        price=price,
        place=_place(pool, gpu),
        slices=tuple(SliceName(found.value) for found in pool.get(fs.SLICES) or ()),
        topology=tuple(found.value for found in pool.get(fs.TOPOLOGY) or ()),
        gpus=pool.get(fs.POOL_GPUS),
        pricing=pricing,
    )


def _place(pool: Section, gpu: GpuType) -> Place:
    if slurm := pool.get(fs.SLURM_PLACE):
        others = tuple(found.value for found in slurm.get(fs.OTHER_PARTITIONS) or ())
        return SlurmPlace(slurm.require(fs.SLURM_PARTITION), slurm.get(fs.SLURM_GRES), others)
    if kubernetes := pool.get(fs.KUBERNETES_PLACE):
        labels = kubernetes.get(fs.NODE_LABELS) or {}
        return KubernetesPlace(
            node_labels=MappingProxyType({key: found.value for key, found in labels.items()}),
            taints=tuple(found.value for found in kubernetes.get(fs.TAINTS) or ()),
            resource=resource_of(pool, gpu),
            device_class=kubernetes.get(fs.DEVICE_CLASS),
            slice_classes=MappingProxyType(
                {SliceName(key): c.value for key, c in (kubernetes.get(fs.DEVICE_CLASSES) or {}).items()}
            ),
        )
    virtual = pool.require(fs.VIRTUAL_PLACE)
    counts = virtual.get(fs.SLICES_PER_GPU) or {}
    return VirtualPlace(
        nodes=virtual.require(fs.NODES),
        gpus_per_node=virtual.get(fs.GPUS_PER_NODE) or 8,
        slices_per_gpu=MappingProxyType({SliceName(key): found.value for key, found in counts.items()}),
        nodes_per_rack=virtual.get(fs.NODES_PER_RACK),
    )
