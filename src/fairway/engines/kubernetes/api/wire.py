"""Decode the few fields of Kubernetes objects that Fairway reads; msgspec skips the rest."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import lru_cache
from typing import Final, Generic, Protocol, TypeVar

from msgspec import Raw, Struct, field

W = TypeVar("W")

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)

BOUND_AND_UNFINISHED: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""The field selector of pods that can hold a device; the API server does not send the others."""


@lru_cache(maxsize=4096)  # many objects of one second
def moment(text: str) -> datetime | None:
    """Parse a time of the API server. Returns None for an empty one."""
    return datetime.fromisoformat(text) if text else None


class ObjectMeta(Struct, rename="camel", frozen=True, gc=False):
    """An object's identity and resource version."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""


class Owner(Struct, rename="camel", frozen=True, gc=False):
    """The owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False
    api_version: str = ""


class OwnedMeta(ObjectMeta, rename="camel", frozen=True, gc=False):
    """An object's identity, creation, deletion, labels, annotations and owners."""

    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int = 0
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    owner_references: list[Owner] = field(default_factory=list)

    def owner(self, kind: str) -> Owner | None:
        return next((o for o in self.owner_references if o.kind == kind), None)


class PartialObject(Struct, frozen=True, gc=False):
    """An object of any kind, of which only the metadata is read."""

    metadata: OwnedMeta


class ApiResource(Struct, frozen=True, gc=False):
    """One kind of object that an API server has, or a subresource of one (`pods/log`)."""

    name: str
    kind: str
    namespaced: bool = False


class ApiResources(Struct, frozen=True, gc=False):
    """The kinds of one group and version."""

    resources: list[ApiResource] = []


class HasMeta(Protocol):
    """An object that an informer can follow."""

    @property
    def metadata(self) -> ObjectMeta: ...


class MetadataOnly(Struct, frozen=True, gc=False):
    """An object of which only the identity is read: bookmarks, probes."""

    metadata: ObjectMeta


class ListMeta(Struct, rename="camel", frozen=True, gc=False):
    """The version of a list, and the token of its next page."""

    resource_version: str = ""
    continue_: str = field(name="continue", default="")


class ListPage(Struct, Generic[W], frozen=True):
    """One page of a list."""

    metadata: ListMeta
    items: list[W] | None = None


class WatchEvent(Struct, frozen=True, gc=False):
    """One line of a watch. What `object` is depends on `type`, so it is decoded in a second step."""

    type: str
    object: Raw


class ApiStatus(Struct, frozen=True, gc=False):
    """The API server's Status object: why it refused a request."""

    message: str = ""
    reason: str = ""
    code: int = 0


class Version(Struct, rename="camel", frozen=True, gc=False):
    """The reply of /version."""

    git_version: str


class FieldOwnerSpec(Struct, frozen=True, gc=False):
    """Whether a field manager owns `spec.unschedulable`."""

    unschedulable: dict[str, object] | None = field(name="f:unschedulable", default=None)


class FieldOwnerFields(Struct, frozen=True, gc=False):
    """The fields owned by one manager, as far as they matter."""

    spec: FieldOwnerSpec | None = field(name="f:spec", default=None)


class FieldOwner(Struct, rename="camel", frozen=True, gc=False):
    """A field manager, the fields it owns, and when it wrote them."""

    manager: str = ""
    time: str = ""
    fields_v1: FieldOwnerFields | None = field(name="fieldsV1", default=None)


class DrainAnnotations(Struct, frozen=True, gc=False):
    """Annotations for why a node is cordoned and by whom; Kubernetes itself has no field for it."""

    reason: str = field(name="fairway.dev/drain-reason", default="")
    by: str = field(name="fairway.dev/drained-by", default="")


class NodeMeta(ObjectMeta, rename="camel", frozen=True, gc=False):
    """A node's identity, the labels that pools match, who drained it and who owns its fields."""

    labels: dict[str, str] = {}
    annotations: DrainAnnotations = DrainAnnotations()
    managed_fields: list[FieldOwner] = []


class NodeSpec(Struct, frozen=True, gc=False):
    """Whether a node accepts new work."""

    unschedulable: bool = False


class Condition(Struct, rename="camel", frozen=True, gc=False):
    """One condition of an object's status."""

    type: str
    status: str = "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


class NodeStatus(Struct, frozen=True, gc=False):
    """A node's capacity, allocatable resources and conditions."""

    capacity: dict[str, str] = {}
    allocatable: dict[str, str] = {}
    conditions: list[Condition] = []


class NodeObject(Struct, frozen=True, gc=False):
    """A Node."""

    metadata: NodeMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


class Resources(Struct, frozen=True, gc=False):
    """The resource requests of one container."""

    requests: dict[str, str] = {}


class Container(Struct, rename="camel", frozen=True, gc=False):
    """One container of a pod."""

    resources: Resources = Resources()
    restart_policy: str = ""


class PodClaim(Struct, frozen=True, gc=False):
    """A resource claim of a pod, by the name that its containers use."""

    name: str = ""


class PodSpec(Struct, rename="camel", frozen=True, gc=False):
    """Where a pod runs and what its containers request."""

    containers: list[Container] = []
    init_containers: list[Container] = []
    node_name: str = ""
    overhead: dict[str, str] = {}
    resource_claims: list[PodClaim] = []


class RequestMapping(Struct, rename="camel", frozen=True, gc=False):
    """An extended resource of a container that the scheduler replaced by a request of a claim."""

    resource_name: str = ""


class ExtendedResourceClaim(Struct, rename="camel", frozen=True, gc=False):
    """The claim that the scheduler made for extended resources that DeviceClasses offer."""

    request_mappings: list[RequestMapping] = []


class PodClaimStatus(Struct, rename="camel", frozen=True, gc=False):
    """What of a pod's extended resources is a claim."""

    extended_resource_claim_status: ExtendedResourceClaim | None = None

    @property
    def claimed_resources(self) -> frozenset[str]:
        """Return the extended resources that a claim of the pod holds: they count by the claim."""
        claim = self.extended_resource_claim_status
        return frozenset(m.resource_name for m in claim.request_mappings) if claim else frozenset()


class PodObject(Struct, frozen=True, gc=False):
    """A Pod."""

    metadata: ObjectMeta
    spec: PodSpec
    status: PodClaimStatus = PodClaimStatus()
