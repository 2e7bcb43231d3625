"""Reduce ResourceClaims to the devices that pods hold or wait for (dynamic resource allocation)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from msgspec import Struct

from fairway.engines.kubernetes.api.informer import WatchedKind
from fairway.engines.kubernetes.api.store import Added, Change, Deleted
from fairway.engines.kubernetes.api.wire import OwnedMeta
from fairway.engines.kubernetes.nodes.facts import Amounts

RESOURCE_API: Final = "/apis/resource.k8s.io/v1"
CLAIMS: Final = "resourceclaims.resource.k8s.io"

DeviceId = tuple[str, str, str]
"""Driver, pool and name of a device: unique in a cluster."""


class ExactRequest(Struct, rename="camel", frozen=True, gc=False):
    """Devices of one class."""

    device_class_name: str = ""
    allocation_mode: str = "ExactCount"
    count: int = 1
    admin_access: bool = False
    name: str = ""
    """Of one of several alternatives."""


class DeviceRequest(Struct, rename="camel", frozen=True, gc=False):
    """Devices that a claim requests: exactly these, or the first that are available of a list."""

    name: str = ""
    exactly: ExactRequest | None = None
    first_available: list[ExactRequest] = []

    def classes(self) -> dict[str, ExactRequest]:
        """Return what it requests by the name that the results of an allocation use."""
        if self.exactly is not None:
            return {self.name: self.exactly}
        return {f"{self.name}/{part.name}": part for part in self.first_available}


class DeviceClaim(Struct, frozen=True, gc=False):
    """The requests of a claim."""

    requests: list[DeviceRequest] = []


class ClaimSpec(Struct, frozen=True, gc=False):
    """The spec of a claim."""

    devices: DeviceClaim = DeviceClaim()


class AllocatedDevice(Struct, rename="camel", frozen=True, gc=False):
    """A device that a claim got."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False


class AllocatedDevices(Struct, frozen=True, gc=False):
    """The devices that a claim got."""

    results: list[AllocatedDevice] = []


class Allocation(Struct, frozen=True, gc=False):
    """What the scheduler allocated to a claim."""

    devices: AllocatedDevices = AllocatedDevices()


class ClaimUser(Struct, frozen=True, gc=False):
    """Who may use an allocated claim."""

    resource: str = ""
    uid: str = ""


class ClaimStatus(Struct, rename="camel", frozen=True, gc=False):
    """The status of a claim."""

    allocation: Allocation | None = None
    reserved_for: list[ClaimUser] = []


class ClaimObject(Struct, frozen=True, gc=False):
    """A ResourceClaim."""

    metadata: OwnedMeta
    spec: ClaimSpec = ClaimSpec()
    status: ClaimStatus = ClaimStatus()


class ClaimFacts(Struct, frozen=True, gc=False):
    """A claim for devices."""

    pod: str
    """The uid of the pod that it counts for; empty: no pod uses it yet.

    One that several pods share counts for the first of them: its devices are held once.
    """
    devices: Amounts
    """What it got or requests, by the resource under which Kueue counts the class; others are left out."""
    held: tuple[DeviceId, ...]
    """The devices that it got, of any class."""


def requested_devices(claim: DeviceClaim, classes: Mapping[str, str]) -> Amounts:
    """Return the devices that a claim or a template of claims requests, by the resource of their class.

    Of alternatives the first one counts; a request for all devices of a node counts once it is allocated.
    """
    found: Counter[str] = Counter()
    for request in claim.requests:
        part = next(iter(request.classes().values()), None)
        if part is None or part.admin_access or part.allocation_mode != "ExactCount":
            continue
        if (resource := classes.get(part.device_class_name)) is not None:
            found[resource] += part.count
    return tuple(sorted(found.items()))


def claim_transform(classes: Mapping[str, str]) -> Callable[[ClaimObject], ClaimFacts | None]:
    """Return the function that reduces claims to facts; `classes` has the resource of each DeviceClass.

    It returns None for claims that neither have nor request devices of these classes.
    """

    def transform(claim: ClaimObject) -> ClaimFacts | None:
        allocation = claim.status.allocation
        results = [r for r in allocation.devices.results if not r.admin_access] if allocation else []
        held = tuple((r.driver, r.pool, r.device) for r in results)
        if allocation is None:
            devices = requested_devices(claim.spec.devices, classes)
        else:
            devices = _allocated(claim.spec.devices, results, classes)
        return ClaimFacts(_pod(claim), devices, held) if devices or held else None

    return transform


def claims_kind(classes: Mapping[str, str]) -> WatchedKind[ClaimObject, ClaimFacts]:
    """Return the claims of a cluster as an informer follows them."""
    return WatchedKind(CLAIMS, f"{RESOURCE_API}/resourceclaims", ClaimObject, claim_transform(classes))


def _allocated(claim: DeviceClaim, results: list[AllocatedDevice], classes: Mapping[str, str]) -> Amounts:
    parts = {name: part for request in claim.requests for name, part in request.classes().items()}
    found: Counter[str] = Counter()
    for result in results:
        part = parts.get(result.request)
        if part is not None and (resource := classes.get(part.device_class_name)) is not None:
            found[resource] += 1
    return tuple(sorted(found.items()))


def _pod(claim: ClaimObject) -> str:
    """Return the pod that a claim was made for, else the first that uses it."""
    owner = claim.metadata.owner("Pod")
    if owner is not None and owner.controller:
        return owner.uid
    return next((user.uid for user in claim.status.reserved_for if user.resource == "pods"), "")


class PodClaims:
    """The devices that pods claim, by uid of the pod, from the store of an informer of claims."""

    def __init__(self) -> None:
        self._by_pod: dict[str, dict[str, Amounts]] = {}

    def on_change(self, change: Change[ClaimFacts]) -> frozenset[str]:
        """Take a change of a claim. Returns the pods whose devices it changed."""
        changed: set[str] = set()
        before = None if isinstance(change, Added) else change.before
        if before is not None and before.value.pod:
            claims = self._by_pod.get(before.value.pod, {})
            claims.pop(before.uid, None)
            if not claims:
                self._by_pod.pop(before.value.pod, None)
            changed.add(before.value.pod)
        if not isinstance(change, Deleted) and change.now.value.pod and change.now.value.devices:
            self._by_pod.setdefault(change.now.value.pod, {})[change.now.uid] = change.now.value.devices
            changed.add(change.now.value.pod)
        return frozenset(changed)

    @classmethod
    def of(cls, claims: Iterable[ClaimObject], classes: Mapping[str, str]) -> PodClaims:
        """Return the devices of claims that were listed."""
        found, transform = cls(), claim_transform(classes)
        for claim in claims:
            if (facts := transform(claim)) is not None and facts.pod and facts.devices:
                found._by_pod.setdefault(facts.pod, {})[claim.metadata.uid] = facts.devices
        return found

    def devices(self, pod: str) -> Amounts:
        """Return the devices that a pod has claims for."""
        return total(*self._by_pod.get(pod, {}).values())


def total(*parts: Amounts) -> Amounts:
    """Add up amounts by resource."""
    if len(parts) == 1:
        return parts[0]
    found: Counter[str] = Counter()
    for part in parts:
        found.update(dict(part))
    return tuple(sorted(found.items()))


def with_claims(devices: Amounts, claimed: Amounts, before: Amounts, classes: frozenset[str]) -> Amounts:
    """Return all devices of a pod: what `devices` has of extended resources, and what it claimed.

    Kubernetes deletes the claims of a pod that ended; what is known from `before` stays.
    """
    extended = tuple(pair for pair in devices if pair[0] not in classes)
    return total(extended, claimed or tuple(pair for pair in before if pair[0] in classes))
