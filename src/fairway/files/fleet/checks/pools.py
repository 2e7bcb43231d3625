"""Check clusters and pools: references, duplicate clusters, slices that fit, GPUs claimed by two pools."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import combinations, product
from typing import Final

from fairway.files.diagnostics import FaultCode, Faults, Location, Severity, did_you_mean, listed, shown
from fairway.files.fleet import schema as fs
from fairway.files.fleet.build import gpus_of
from fairway.files.schema.containers import Key, Section, Sections
from fairway.files.schema.values import ParsedValue
from fairway.model.fleet import EngineKind, class_resource
from fairway.model.gpu import GpuType, MigProfile, Vendor, fits, replicas_of
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.text import nearest


def check_pools(file: Section, gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    """Run all checks of clusters, pools and GPU types."""
    clusters = file.get(fs.CLUSTERS) or {}
    pools = file.get(fs.POOLS) or {}
    _own_types_are_new(file.get(fs.GPU_TYPES) or {}, faults)
    _clusters_differ(clusters, faults)
    engines = {name: cluster.value.get(fs.ENGINE) for name, cluster in clusters.items()}
    for pool in pools.values():
        _cluster_exists(pool.value, file.names_in(fs.CLUSTERS), faults)
        _place_suits_engine(pool.value, engines, faults)
        _slices_suit_gpu(pool.value, gpu_types, faults)
        _classes_suit_slices(pool.value, faults)
        _gpus_suit_nodes(pool.value, faults)
    for rule in (file.get(fs.HEALTH) or {}).values():
        _pools_exist(rule.value, file.names_in(fs.POOLS), faults)
    _pools_differ([pool.value for pool in pools.values()], gpu_types, faults)


def _own_types_are_new(types: Sections, faults: Faults) -> None:
    for name, found in types.items():
        if name in CATALOGUE:
            faults.add(
                FaultCode.KNOWN_GPU_TYPE,
                found.location,
                f"{name} is a GPU type that Fairway knows already",
                expected="a name that is not built in",
                hint=f"take it away and use {name} as it is, or give yours another name",
            )


def _clusters_differ(clusters: Sections, faults: Faults) -> None:
    """Report clusters that are the same engine: every GPU would be counted and charged twice."""
    by_address: dict[tuple[str, ...], Section] = {}
    for name, found in clusters.items():
        cluster = found.value
        address: tuple[str, ...] | None = None
        engine = cluster.get(fs.ENGINE)
        match engine:
            case EngineKind.SLURM if url := cluster.get(fs.SLURM_URL):
                address = ("slurm", url.rstrip("/").lower())
            case EngineKind.KUBERNETES:
                address = ("kubernetes", cluster.get(fs.KUBECONFIG) or "", cluster.get(fs.KUBE_CONTEXT) or "")
        first = by_address.setdefault(address, cluster) if address else cluster
        if first is not cluster:
            faults.add(
                FaultCode.SAME_CLUSTER,
                cluster.location,
                f"clusters {first.name} and {name} are the same {engine} cluster",
                expected="each cluster once",
                hint=f"take one away and let its pools say  cluster: {first.name}",
                related=[first.location],
            )


def _pools_exist(rule: Section, declared: Collection[str], faults: Faults) -> None:
    for named in rule.get(fs.HEALTH_POOLS) or ():
        if named.value not in declared and not faults.full:
            faults.add(
                FaultCode.UNKNOWN_POOL,
                named.location,
                f"there is no pool {shown(named.value)}",
                expected="a pool of this file",
                hint=f"use one of {listed(declared)}" if declared else "add it under pools",
            )


def _cluster_exists(pool: Section, declared: Collection[str], faults: Faults) -> None:
    cluster = pool.found(fs.POOL_CLUSTER)
    if cluster is None or faults.full or cluster.value in declared:
        return
    otherwise = (
        f"add it under clusters, or use one of {listed(declared)}" if declared else "add it under clusters"
    )
    faults.add(
        FaultCode.UNKNOWN_CLUSTER,
        cluster.location,
        f"pool {pool.name} is on cluster {cluster.value}, which the file does not have",
        expected=f"one of {listed(declared)}" if declared else "a cluster",
        hint=did_you_mean(cluster.value, declared, otherwise),
    )


def _place_suits_engine(pool: Section, engines: Mapping[str, EngineKind | None], faults: Faults) -> None:
    cluster = pool.get(fs.POOL_CLUSTER)
    engine = engines.get(cluster) if cluster else None
    if engine is None:
        return
    expected = fs.PLACES[engine]
    for other, key in fs.PLACES.items():
        wrong = pool.found(key)
        if wrong is not None and other is not engine:
            faults.add(
                FaultCode.WRONG_ENGINE,
                wrong.location,
                f"pool {pool.name} has a {key.name} section, but its cluster {cluster} runs {engine}",
                expected=f"the section {expected.name}",
                hint=f"write instead:  {expected.name}: {expected.example}",
            )
    topology = pool.found(fs.TOPOLOGY)
    if topology is not None and topology.value and engine is not EngineKind.KUBERNETES:
        faults.add(
            FaultCode.TOPOLOGY_UNUSED,
            topology.location,
            f"pool {pool.name} has a topology, but {engine} nodes have no labels",
            hint="take it away: it has no effect here",
            severity=Severity.WARNING,
        )


def _gpus_suit_nodes(pool: Section, faults: Faults) -> None:
    gpus, place = pool.found(fs.POOL_GPUS), pool.get(fs.VIRTUAL_PLACE)
    on_nodes, _ = gpus_of(pool)
    if gpus is None or place is None or on_nodes is None or on_nodes == gpus.value:
        return
    faults.add(
        FaultCode.GPUS_DISAGREE,
        gpus.location,
        f"pool {pool.name} says it has {gpus.value} GPUs, but its nodes have {on_nodes}",
        expected=str(on_nodes),
        hint="take gpus away: a virtual pool has what its nodes have",
        related=[place.location],
    )


def _slices_suit_gpu(pool: Section, gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    gpu_name = pool.found(fs.GPU)
    if gpu_name is None or faults.full:
        return
    gpu = gpu_types.get(gpu_name.value)
    if gpu is None:
        _unknown_gpu(pool, gpu_name, gpu_types, faults)
        return
    slices = pool.get(fs.SLICES) or ()
    for found in slices:
        _profile(gpu, found.value, found.location, faults)
        if replicas_of(found.value) is not None:
            _shared_suits_pool(pool, found, len(slices), faults)
    place = pool.get(fs.VIRTUAL_PLACE)
    if place is not None and pool.valid(fs.SLICES, fs.VIRTUAL_PLACE):
        _virtual_slices(pool, place, gpu, faults)


def _unknown_gpu(
    pool: Section, gpu_name: ParsedValue[str], gpu_types: Mapping[str, GpuType], faults: Faults
) -> None:
    products = {product: gpu.name for gpu in gpu_types.values() for product in gpu.products}
    name = gpu_name.value
    near = nearest(name, gpu_types) or [products[p] for p in nearest(name, products, most=1)]
    meant = f"did you mean {' or '.join(shown(n) for n in near)}? If not, " if near else ""
    faults.add(
        FaultCode.UNKNOWN_GPU_TYPE,
        gpu_name.location,
        f"pool {pool.name} has GPUs of type {name}, which Fairway does not know",
        expected=f"one of {listed(gpu_types, limit=40)}",
        hint=f"{meant}describe it:  gpu_types: {{ {name}: {{ memory: 48GB }} }}",
    )


def _profile(gpu: GpuType, name: str, location: Location, faults: Faults) -> MigProfile | None:
    profile = gpu.profile(name)
    if profile is not None:
        return profile
    names = [str(p.name) for p in gpu.profiles]
    if names:
        faults.add(
            FaultCode.UNKNOWN_SLICE,
            location,
            f"{gpu.name} cannot be cut into {name}",
            expected=f"one of {listed(names)}",
            hint=did_you_mean(name, names, f"use one of {listed(names)}"),
        )
    else:
        faults.add(
            FaultCode.NO_MIG,
            location,
            f"{gpu.name} cannot be cut into slices",
            expected="a GPU type with MIG",
            hint="take the slices away, or name a GPU type with MIG, e.g. A100-80GB",
        )
    return None


def _shared_suits_pool(pool: Section, found: ParsedValue[str], slices: int, faults: Faults) -> None:
    """Report shared GPUs on an engine that has none, and GPUs that are shared in two ways."""
    if pool.found(fs.VIRTUAL_PLACE) is not None:
        faults.add(
            FaultCode.WRONG_ENGINE,
            found.location,
            f"pool {pool.name} has {found.value}, and jobs on a virtual cluster do not share GPUs",
            expected="MIG profiles, or whole GPUs",
            hint="take it away",
        )
    elif slices > 1:
        faults.add(
            FaultCode.SLICES_DO_NOT_FIT,
            found.location,
            f"pool {pool.name} has {found.value} beside other slices, and a GPU is shared in one way only",
            expected="one of them",
            hint="make a pool for each",
        )


def _classes_suit_slices(pool: Section, faults: Faults) -> None:
    """Check that claims name a DeviceClass for each slice, or one for whole GPUs."""
    place = pool.get(fs.KUBERNETES_PLACE)
    if place is None or not pool.valid(fs.SLICES) or not place.valid(fs.DEVICE_CLASSES):
        return
    slices = [s for s in _slices(pool) if s is not None]
    whole, classes = place.found(fs.DEVICE_CLASS), place.found(fs.DEVICE_CLASSES)
    wrong = whole if slices else classes
    if wrong is not None and slices:
        hint = ", ".join(f"{s}: mig-{s.replace('.', '-')}.nvidia.com" for s in slices)
        faults.add(
            FaultCode.SLICES_DISAGREE,
            wrong.location,
            f"pool {pool.name} has slices, and device_class is for whole GPUs",
            expected="a DeviceClass for each slice",
            hint=f"write  device_classes: {{ {hint} }}",
        )
    elif wrong is not None:
        faults.add(
            FaultCode.SLICES_DISAGREE,
            wrong.location,
            f"pool {pool.name} has no slices, and device_classes is for slices",
            expected="device_class",
            hint="write  device_class: gpu.nvidia.com",
        )
    elif classes is not None and set(classes.value) != set(slices):
        faults.add(
            FaultCode.SLICES_DISAGREE,
            classes.location,
            f"pool {pool.name} lists the slices {listed(sorted(slices))}, but device_classes has "
            f"{listed(sorted(classes.value)) or 'none'}",
            expected="the same slices in slices and in kubernetes.device_classes",
            hint="name a DeviceClass for each of them",
        )


def _virtual_slices(pool: Section, place: Section, gpu: GpuType, faults: Faults) -> None:
    """Check that a virtual pool's `slices_per_gpu` fit on a GPU and match `slices`."""
    counts = place.found(fs.SLICES_PER_GPU)
    slices = pool.found(fs.SLICES)
    listed_slices = {found.value for found in slices.value} if slices else set()
    cut = counts.value if counts else {}
    if set(cut) != listed_slices:
        location = counts.location if counts else slices.location if slices else pool.location
        wanted = ", ".join(cut) or "1g.10gb"
        faults.add(
            FaultCode.SLICES_DISAGREE,
            location,
            f"pool {pool.name} lists the slices {listed(sorted(listed_slices)) or 'none'}, "
            f"but its GPUs are cut into {listed(sorted(cut)) or 'none'}",
            expected="the same slices in slices and in virtual.slices_per_gpu",
            hint=f"write  slices: [{wanted}]"
            if cut
            else f"add  slices_per_gpu: {{ {', '.join(f'{s}: 1' for s in sorted(listed_slices))} }}",
            related=[slices.location] if slices and counts else [],
        )
    profiles: list[MigProfile] = []
    for name, count in cut.items():
        profile = gpu.profile(name)
        if profile is None:
            # If it is listed under `slices` too, the fault is reported there.
            if name not in listed_slices:
                _profile(gpu, name, count.location, faults)
            return
        profiles.extend([profile] * count.value)
    if counts and fits(gpu, profiles) is None:
        faults.add(
            FaultCode.SLICES_DO_NOT_FIT,
            counts.location,
            f"these slices do not fit on one {gpu.name} together",
            expected=f"at most {gpu.compute_slices} compute and {gpu.memory_slices} memory slices",
            hint="lower the counts; "
            + listed(f"at most {p.max_instances} x {p.name}" for p in dict.fromkeys(profiles)),
            related=[count.location for count in cut.values()],
        )


RESOURCES: Final = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.AMD: "amd.com/gpu"}

_MAX_COMPARED: Final = 200
"""Maximum number of pools per cluster for pairwise comparison; equal claims are found for any number."""


def resource_of(pool: Section, gpu: GpuType | None) -> str:
    """Return the Kubernetes resource name of a pool's GPUs: from the file, or the default."""
    place = pool.get(fs.KUBERNETES_PLACE)
    named = place.get(fs.GPU_RESOURCE) if place else None
    device_class = place.get(fs.DEVICE_CLASS) if place else None
    return named or default_resource(gpu, device_class, [s for s in _slices(pool) if s])


def default_resource(gpu: GpuType | None, device_class: str | None, slices: Sequence[str]) -> str:
    """Return the resource name of GPUs that name none: by class, by vendor, or that of shared ones."""
    if device_class is not None:
        return class_resource(device_class)
    shared = ".shared" if any(replicas_of(s) for s in slices) else ""
    return RESOURCES[gpu.vendor if gpu else Vendor.NVIDIA] + shared


def _pools_differ(pools: Sequence[Section], gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    """Report pools that claim the same GPUs, which would be counted, lent and charged twice."""
    by_cluster: dict[str, list[Section]] = {}
    for pool in pools:
        cluster = pool.get(fs.POOL_CLUSTER)
        # An incomplete pool would seem to claim more than it does.
        if cluster and pool.valid(fs.SLICES, fs.GPU, *fs.PLACES.values()):
            by_cluster.setdefault(cluster, []).append(pool)
    for group in by_cluster.values():
        _slurm_pools_differ(group, faults)
        _kubernetes_pools_differ(group, gpu_types, faults)


def _slurm_pools_differ(pools: Sequence[Section], faults: Faults) -> None:
    """Report pools with the same partition and GRES type; without a type a pool claims all its GPUs."""
    by_partition: dict[tuple[str, str | None], dict[str | None, Section]] = {}
    for pool in pools:
        place = pool.get(fs.SLURM_PLACE)
        partitions = _partitions(pool, place, faults) if place else ()
        gres = place.get(fs.SLURM_GRES) if place else None
        # GPUs that jobs share are the whole GPUs of the partition.
        slices = {None if s is not None and replicas_of(s) is not None else s for s in _slices(pool)}
        for partition, slice_ in product(partitions, slices):
            claims = by_partition.setdefault((partition, slice_), {})
            other = (
                claims.get(gres)
                or claims.get(None)
                or (next(iter(claims.values()), None) if not gres else None)
            )
            claims.setdefault(gres, pool)
            if other is not None:
                faults.add(
                    FaultCode.SAME_GPUS,
                    _location(pool, fs.SLURM_PLACE),
                    f"pools {other.name} and {pool.name} claim the same GPUs of partition {partition}",
                    expected="pools that share no GPU",
                    hint="give each its own GRES type, e.g.  "
                    f"slurm: {{ partition: {partition}, gres: a100 }}, or its own partition",
                    related=[_location(other, fs.SLURM_PLACE)],
                )
                break


def _partitions(pool: Section, place: Section, faults: Faults) -> tuple[str, ...]:
    """Return every partition of a pool, and report one that is named twice."""
    partition = place.get(fs.SLURM_PARTITION)
    others = place.get(fs.OTHER_PARTITIONS) or ()
    for found in others:
        if found.value == partition:
            faults.add(
                FaultCode.REPEATED_VALUE,
                found.location,
                f"pool {pool.name} names partition {partition} twice",
                expected="other partitions than the first",
                hint=f"take {partition} away from other_partitions",
            )
    return tuple(dict.fromkeys(p for p in (partition, *(found.value for found in others)) if p))


def _kubernetes_pools_differ(
    pools: Sequence[Section], gpu_types: Mapping[str, GpuType], faults: Faults
) -> None:
    by_claim: dict[tuple[object, ...], Section] = {}
    claims: list[tuple[Section, frozenset[tuple[str, str]], str]] = []
    for pool in pools:
        place = pool.get(fs.KUBERNETES_PLACE)
        if place is None:
            continue
        labels = frozenset((key, found.value) for key, found in (place.get(fs.NODE_LABELS) or {}).items())
        resource = resource_of(pool, gpu_types.get(pool.get(fs.GPU) or ""))
        claims.append((pool, labels, resource))
        for slice_ in _slices(pool):
            other = by_claim.setdefault((labels, resource, slice_), pool)
            if other is not pool:
                _same_labels(other, pool, faults)
                break
    if len(claims) <= _MAX_COMPARED:
        for (first, ours, res_a), (second, theirs, res_b) in combinations(claims, 2):
            # A node belongs to the first pool in the file that matches, so the narrower pool may come first.
            if res_a == res_b and ours < theirs and set(_slices(first)) & set(_slices(second)):
                _overlap(first, second, faults)


def _same_labels(first: Section, second: Section, faults: Faults) -> None:
    faults.add(
        FaultCode.SAME_GPUS,
        _location(second, fs.KUBERNETES_PLACE),
        f"pools {first.name} and {second.name} claim the same nodes: their node_labels are equal",
        expected="pools that share no GPU",
        hint="add a label to node_labels that only the nodes of one of them have",
        related=[_location(first, fs.KUBERNETES_PLACE)],
    )


def _overlap(wide: Section, narrow: Section, faults: Faults) -> None:
    faults.add(
        FaultCode.OVERLAPPING_POOLS,
        _location(wide, fs.KUBERNETES_PLACE),
        f"pool {wide.name} comes first and gets the nodes of {narrow.name}: they have its node_labels too",
        expected="pools that share no GPU",
        hint=f"put {narrow.name} before {wide.name}, or add a label that only nodes of {wide.name} have",
        related=[_location(narrow, fs.KUBERNETES_PLACE)],
        severity=Severity.WARNING,
    )


def _slices(pool: Section) -> Iterator[str | None]:
    """Yield the slices that a pool claims; None is a whole GPU."""
    slices = pool.get(fs.SLICES)
    yield from (found.value for found in slices) if slices else (None,)


def _location(pool: Section, key: Key[Section]) -> Location:
    found = pool.found(key)
    return found.location if found else pool.location
