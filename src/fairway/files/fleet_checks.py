"""What a shape cannot say: names that refer to each other, clusters that are one, slices that fit."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from fairway.files import fleet_shape as fs
from fairway.files.faults import FaultCode, Faults, Severity, Spot, shown
from fairway.files.pool_claims import pools_differ
from fairway.files.records import Section
from fairway.files.shape import Found
from fairway.files.spelling import did_you_mean, listed
from fairway.files.supplies import gpus_of
from fairway.model.fleet import EngineKind
from fairway.model.gpu import GpuType, MigProfile, fits
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.spelling import nearest

Sections = Mapping[str, Found[Section]]


def check(file: Section, gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    """Every check that looks at more than one key."""
    clusters = file.get(fs.CLUSTERS) or {}
    pools = file.get(fs.POOLS) or {}
    _own_types_are_new(file.get(fs.GPU_TYPES) or {}, faults)
    _clusters_differ(clusters, faults)
    engines = {name: cluster.value.get(fs.ENGINE) for name, cluster in clusters.items()}
    for pool in pools.values():
        _cluster_exists(pool.value, file.names_in(fs.CLUSTERS), faults)
        _place_suits_engine(pool.value, engines, faults)
        _slices_suit_gpu(pool.value, gpu_types, faults)
        _gpus_suit_nodes(pool.value, faults)
    pools_differ([pool.value for pool in pools.values()], gpu_types, faults)


def _own_types_are_new(types: Sections, faults: Faults) -> None:
    for name, found in types.items():
        if name in CATALOGUE:
            faults.add(
                FaultCode.KNOWN_GPU_TYPE,
                found.spot,
                f"{name} is a GPU type that Fairway knows already",
                expected="a name that is not built in",
                hint=f"take it away and use {name} as it is, or give yours another name",
            )


def _clusters_differ(clusters: Sections, faults: Faults) -> None:
    """Two names for one engine would show, and later charge, every GPU twice."""
    seen: dict[tuple[str, ...], Section] = {}
    for name, found in clusters.items():
        cluster = found.value
        address: tuple[str, ...] | None = None
        engine = cluster.get(fs.ENGINE)
        match engine:
            case EngineKind.SLURM if url := cluster.get(fs.SLURM_URL):
                address = ("slurm", url.rstrip("/").lower())
            case EngineKind.KUBERNETES:
                address = ("kubernetes", cluster.get(fs.KUBECONFIG) or "", cluster.get(fs.KUBE_CONTEXT) or "")
        first = seen.setdefault(address, cluster) if address else cluster
        if first is not cluster:
            faults.add(
                FaultCode.SAME_CLUSTER,
                cluster.spot,
                f"clusters {first.name} and {name} are the same {engine} cluster",
                expected="each cluster once",
                hint=f"take one away and let its pools say  cluster: {first.name}",
                related=[first.spot],
            )


def _cluster_exists(pool: Section, declared: Collection[str], faults: Faults) -> None:
    named = pool.found(fs.POOL_CLUSTER)
    if named is None or faults.full or named.value in declared:
        return
    otherwise = (
        f"add it under clusters, or use one of {listed(declared)}" if declared else "add it under clusters"
    )
    faults.add(
        FaultCode.UNKNOWN_CLUSTER,
        named.spot,
        f"pool {pool.name} is on cluster {named.value}, which the file does not have",
        expected=f"one of {listed(declared)}" if declared else "a cluster",
        hint=did_you_mean(named.value, declared, otherwise),
    )


def _place_suits_engine(pool: Section, engines: Mapping[str, EngineKind | None], faults: Faults) -> None:
    cluster = pool.get(fs.POOL_CLUSTER)
    engine = engines.get(cluster) if cluster else None
    if engine is None:
        return
    right = fs.PLACES[engine]
    for other, key in fs.PLACES.items():
        wrong = pool.found(key)
        if wrong is not None and other is not engine:
            faults.add(
                FaultCode.WRONG_ENGINE,
                wrong.spot,
                f"pool {pool.name} has a {key.name} section, but its cluster {cluster} runs {engine}",
                expected=f"the section {right.name}",
                hint=f"write instead:  {right.name}: {right.example}",
            )
    topology = pool.found(fs.TOPOLOGY)
    if topology is not None and topology.value and engine is not EngineKind.KUBERNETES:
        faults.add(
            FaultCode.TOPOLOGY_UNUSED,
            topology.spot,
            f"pool {pool.name} has a topology, but {engine} nodes have no labels",
            hint="take it away: it has no effect here",
            severity=Severity.WARNING,
        )


def _gpus_suit_nodes(pool: Section, faults: Faults) -> None:
    told, place = pool.found(fs.POOL_GPUS), pool.get(fs.VIRTUAL_PLACE)
    has, _ = gpus_of(pool)
    if told is None or place is None or has is None or has == told.value:
        return
    faults.add(
        FaultCode.GPUS_DISAGREE,
        told.spot,
        f"pool {pool.name} says it has {told.value} GPUs, but its nodes have {has}",
        expected=str(has),
        hint="take gpus away: a virtual pool has what its nodes have",
        related=[place.spot],
    )


def _slices_suit_gpu(pool: Section, gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    named = pool.found(fs.GPU)
    if named is None or faults.full:
        return
    gpu = gpu_types.get(named.value)
    if gpu is None:
        _unknown_gpu(pool, named, gpu_types, faults)
        return
    slices = pool.get(fs.SLICES) or ()
    for found in slices:
        _profile(gpu, found.value, found.spot, faults)
    place = pool.get(fs.VIRTUAL_PLACE)
    if place is not None and pool.sound(fs.SLICES, fs.VIRTUAL_PLACE):
        _virtual_slices(pool, place, gpu, faults)


def _unknown_gpu(pool: Section, named: Found[str], gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    products = {product: gpu.name for gpu in gpu_types.values() for product in gpu.products}
    near = nearest(named.value, gpu_types) or [products[p] for p in nearest(named.value, products, most=1)]
    meant = f"did you mean {' or '.join(shown(name) for name in near)}? If not, " if near else ""
    faults.add(
        FaultCode.UNKNOWN_GPU_TYPE,
        named.spot,
        f"pool {pool.name} has GPUs of type {named.value}, which Fairway does not know",
        expected=f"one of {listed(gpu_types, most=40)}",
        hint=f"{meant}describe it:  gpu_types: {{ {named.value}: {{ memory: 48GB }} }}",
    )


def _profile(gpu: GpuType, name: str, spot: Spot, faults: Faults) -> MigProfile | None:
    profile = gpu.profile(name)
    if profile is not None:
        return profile
    known = [str(p.name) for p in gpu.profiles]
    if known:
        faults.add(
            FaultCode.UNKNOWN_SLICE,
            spot,
            f"{gpu.name} cannot be cut into {name}",
            expected=f"one of {listed(known)}",
            hint=did_you_mean(name, known, f"use one of {listed(known)}"),
        )
    else:
        faults.add(
            FaultCode.NO_MIG,
            spot,
            f"{gpu.name} cannot be cut into slices",
            expected="a GPU type with MIG",
            hint="take the slices away, or name a GPU type with MIG, e.g. A100-80GB",
        )
    return None


def _virtual_slices(pool: Section, place: Section, gpu: GpuType, faults: Faults) -> None:
    """A virtual pool says how its GPUs are cut; that must be possible, and be what `slices` says."""
    counts = place.found(fs.SLICES_PER_GPU)
    slices = pool.found(fs.SLICES)
    listed_slices = {found.value for found in slices.value} if slices else set()
    cut = counts.value if counts else {}
    if set(cut) != listed_slices:
        spot = counts.spot if counts else slices.spot if slices else pool.spot
        wanted = ", ".join(cut) or "1g.10gb"
        faults.add(
            FaultCode.SLICES_DISAGREE,
            spot,
            f"pool {pool.name} lists the slices {listed(sorted(listed_slices)) or 'none'}, "
            f"but its GPUs are cut into {listed(sorted(cut)) or 'none'}",
            expected="the same slices in slices and in virtual.slices_per_gpu",
            hint=f"write  slices: [{wanted}]"
            if cut
            else f"add  slices_per_gpu: {{ {', '.join(f'{s}: 1' for s in sorted(listed_slices))} }}",
            related=[slices.spot] if slices and counts else [],
        )
    profiles: list[MigProfile] = []
    for name, count in cut.items():
        profile = gpu.profile(name)
        if profile is None:
            # Listed under `slices` too, it has its fault there.
            if name not in listed_slices:
                _profile(gpu, name, count.spot, faults)
            return
        profiles.extend([profile] * count.value)
    if counts and fits(gpu, profiles) is None:
        faults.add(
            FaultCode.SLICES_DO_NOT_FIT,
            counts.spot,
            f"these slices do not fit on one {gpu.name} together",
            expected=f"at most {gpu.compute_slices} compute and {gpu.memory_slices} memory slices",
            hint="lower the counts; "
            + listed(f"at most {p.max_instances} x {p.name}" for p in dict.fromkeys(profiles)),
            related=[count.spot for count in cut.values()],
        )
