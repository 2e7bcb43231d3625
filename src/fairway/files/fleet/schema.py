"""Define the keys of a fleet file. A new section is a Key in FLEET with a shape for its value."""

from __future__ import annotations

from typing import Final

from fairway.files.fleet import schema_budgets as bs
from fairway.files.fleet import schema_diagnosis as ds
from fairway.files.fleet import schema_idle, schema_slos
from fairway.files.fleet import schema_notify as ns
from fairway.files.fleet import schema_prices as ps
from fairway.files.fleet import schema_teams as ts
from fairway.files.schema import values
from fairway.files.schema.containers import ExactlyOne, Key, ListOf, MapOf, Record, variants
from fairway.files.schema.values import Boolean, Integer, OneOf, Percent, Problem, Schema, bad_value
from fairway.model.fleet import DEFAULT_SLURM_USER, Capacity, EngineKind, ExistingWorkloads
from fairway.model.gpu import Vendor
from fairway.model.gpu_health import EventClass, EventCode, HealthAction, is_event_code


def _event_rule(text: str) -> Problem | None:
    if is_event_code(text) or text in {class_.value for class_ in EventClass}:
        return None
    return bad_value(text, "a class or code of events", "write hardware, or a code such as xid-79")


# --- clusters --------------------------------------------------------------------------------------------

ENGINE: Final = Key("engine", OneOf(EngineKind), "Scheduler of the cluster.", example="slurm", required=True)

JWT_KEY_FILE: Final = Key(
    "jwt_key_file", values.PATH, "File with the cluster's HS256 key; Fairway signs short-lived tokens itself."
)
TOKEN_FILE: Final = Key(
    "token_file", values.PATH, "File with a token (scontrol token), read again whenever it is needed."
)
SLURM_USER: Final = Key(
    "user", values.USER, "The Slurm user that Fairway acts as.", default=DEFAULT_SLURM_USER
)
SLURM_CREDENTIALS: Final = Record(
    "Credentials for slurmrestd",
    (JWT_KEY_FILE, TOKEN_FILE, SLURM_USER),
    ExactlyOne(
        (JWT_KEY_FILE, TOKEN_FILE), "name one file:  credentials: { jwt_key_file: /etc/fairway/hpc.jwt }"
    ),
)
SLURM_URL: Final = Key(
    "url",
    values.URL,
    "URL of the cluster's slurmrestd.",
    example="https://slurm.example.org:6820",
    required=True,
)
CREDENTIALS: Final = Key(
    "credentials",
    SLURM_CREDENTIALS,
    "Credentials. Secrets are in separate files.",
    example="{ jwt_key_file: /etc/fairway/hpc.jwt }",
    required=True,
)
KUBECONFIG: Final = Key(
    "kubeconfig", values.PATH, "Path of a kubeconfig; default: the service account of Fairway's pod."
)
KUBE_CONTEXT: Final = Key(
    "context", values.CONTEXT, "Context in the kubeconfig; default: the current context."
)
EXISTING_WORKLOADS: Final = Key(
    "existing_workloads",
    OneOf(ExistingWorkloads),
    "Existing GPU workloads (accounts that are not teams, pods without a Job): leave them, or refuse them.",
    default=ExistingWorkloads.LEAVE,
)
SLURM_TOOLS: Final = Key(
    "tools", values.PATH, "Folder of squeue and sacct on the Fairway server; default: found in PATH."
)
LOGS: Final = Key(
    "logs", values.SHARED_PATH, "Slurm: folder for the output of jobs, as mounted on the nodes."
)
LOGS_SEEN_AT: Final = Key(
    "logs_seen_at",
    values.SHARED_PATH,
    "The same folder as mounted on the Fairway server; default: the same path.",
)
CHECKPOINTS: Final = Key(
    "checkpoints",
    values.CHECKPOINTS,
    "Shared folder for checkpoints, as mounted on the nodes; on Kubernetes also pvc/CLAIM.",
)
FOLDERS: Final = (LOGS, LOGS_SEEN_AT, CHECKPOINTS)
PROMETHEUS: Final = Key(
    "prometheus",
    values.PROMETHEUS_URL,
    "URL of a Prometheus (or Thanos, Mimir, VictoriaMetrics) with the metrics of dcgm-exporter.",
    example="https://prometheus.example.org:9090",
    required=True,
)
SELECT: Final = Key(
    "select",
    values.LABEL_MATCHERS,
    "Label matchers of this cluster, if the Prometheus contains several clusters.",
    example='cluster="hpc"',
)
TELEMETRY_TOKEN: Final = Key("token_file", values.PATH, "File with a bearer token for Prometheus.")
TELEMETRY_CA: Final = Key("ca_file", values.PATH, "File with the certificate authority of Prometheus.")
TELEMETRY: Final = Key(
    "telemetry",
    Record("Source of GPU metrics", (PROMETHEUS, SELECT, TELEMETRY_TOKEN, TELEMETRY_CA)),
    "Source of the cluster's GPU metrics; without it, GPU utilization is not measured.",
    example="{ prometheus: https://prometheus.example.org:9090 }",
)
_COMMON: Final = (*FOLDERS, ps.OVERHEAD, TELEMETRY, ps.ENERGY)
CLUSTER: Final = variants(
    "A cluster: one engine's domain",
    ENGINE,
    {
        EngineKind.SLURM: Record(
            "A Slurm cluster", (SLURM_URL, CREDENTIALS, SLURM_TOOLS, EXISTING_WORKLOADS, *_COMMON)
        ),
        EngineKind.KUBERNETES: Record(
            "A Kubernetes cluster with Kueue", (KUBECONFIG, KUBE_CONTEXT, EXISTING_WORKLOADS, *_COMMON)
        ),
        EngineKind.VIRTUAL: Record("A cluster in the server's memory, for trying things out", _COMMON),
    },
)

# --- pools -----------------------------------------------------------------------------------------------

SLURM_PARTITION: Final = Key(
    "partition", values.PARTITION, "Partition with the GPU nodes.", example="gpu", required=True
)
OTHER_PARTITIONS: Final = Key(
    "other_partitions",
    ListOf(values.PARTITION, "partitions"),
    "Other partitions with the same nodes; jobs in them use the same GPUs.",
)
SLURM_GRES: Final = Key("gres", values.GRES, "GRES type (gpu:TYPE); required if the partition has several.")
NODE_LABELS: Final = Key(
    "node_labels",
    MapOf(values.LABEL_KEY, values.LABEL_VALUE, "node labels"),
    "Labels of the pool's nodes; default: all nodes of the cluster.",
)
TAINTS: Final = Key(
    "taints", ListOf(values.TAINT, "taints"), "Taints of the pool's nodes, which its jobs tolerate."
)
GPU_RESOURCE: Final = Key(
    "resource",
    values.RESOURCE,
    "Name of the GPU resource; default: that of the vendor, e.g. nvidia.com/gpu, or of a device class, "
    "CLASS/gpu.",
)
DEVICE_CLASS: Final = Key(
    "device_class",
    values.DEVICE_CLASS,
    "DeviceClass of the GPUs, where pods claim them (DRA).",
)
DEVICE_CLASSES: Final = Key(
    "device_classes",
    MapOf(values.SLICE, values.DEVICE_CLASS, "device classes"),
    "DeviceClass of each MIG profile in slices, where pods claim them (DRA).",
)
NODES: Final = Key("nodes", Integer(1, 100_000), "Number of nodes.", example="4", required=True)
GPUS_PER_NODE: Final = Key("gpus_per_node", Integer(1, 64), "GPUs per node.", default=8)
SLICES_PER_GPU: Final = Key(
    "slices_per_gpu",
    MapOf(values.SLICE, Integer(1, 8), "slices"),
    "Number of slices of each profile on every GPU.",
)
NODES_PER_RACK: Final = Key(
    "nodes_per_rack",
    Integer(1, 100_000),
    "How many nodes share a rack, for jobs that ask for one; default: all of them.",
)

POOL_CLUSTER: Final = Key(
    "cluster", values.NAME, "Name of the cluster in clusters.", example="hpc", required=True
)
GPU: Final = Key(
    "gpu",
    values.GPU_NAME,
    "GPU type: built-in, or from gpu_types.",
    example="A100-80GB",
    required=True,
)
SLICES: Final = Key(
    "slices",
    ListOf(values.SLICE, "slices"),
    "MIG profiles of the GPUs, or shared-N: each GPU is N replicas by time-slicing or MPS. A slice costs its "
    "part of the GPU, or its price in slice_prices.",
)
CAPACITY: Final = Key(
    "capacity",
    OneOf(Capacity),
    "How the GPUs are paid for: owned, reserved, on-demand or spot.",
    example="owned",
    required=True,
)
POOL_GPUS: Final = Key(
    "gpus",
    Integer(1, ts.MAX_DEVICES),
    "Number of GPUs, so that `check` can add up guarantees; default: as observed by the server.",
)
TOPOLOGY: Final = Key(
    "topology",
    ListOf(values.LABEL_KEY, "node labels"),
    "Node labels from the widest to the narrowest level, e.g. block, rack.",
)
SLURM_PLACE: Final = Key(
    "slurm",
    Record("Location of the pool on Slurm", (SLURM_PARTITION, OTHER_PARTITIONS, SLURM_GRES)),
    "Location of the pool on a Slurm cluster.",
    example="{ partition: gpu }",
)
KUBERNETES_PLACE: Final = Key(
    "kubernetes",
    Record(
        "Location of the pool on Kubernetes",
        (NODE_LABELS, TAINTS, GPU_RESOURCE, DEVICE_CLASS, DEVICE_CLASSES),
    ),
    "Location of the pool on a Kubernetes cluster.",
    example="{ node_labels: { nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB } }",
)
VIRTUAL_PLACE: Final = Key(
    "virtual",
    Record("Size of a virtual pool", (NODES, GPUS_PER_NODE, SLICES_PER_GPU, NODES_PER_RACK)),
    "Size of the pool on a virtual cluster.",
    example="{ nodes: 4 }",
)
PLACES: Final = {
    EngineKind.SLURM: SLURM_PLACE,
    EngineKind.KUBERNETES: KUBERNETES_PLACE,
    EngineKind.VIRTUAL: VIRTUAL_PLACE,
}
POOL: Final = Record(
    "A pool: like GPUs on one cluster under one price",
    (POOL_CLUSTER, GPU, POOL_GPUS, SLICES, CAPACITY, *ps.POOL_PRICING, TOPOLOGY, *PLACES.values()),
    ExactlyOne(
        tuple(PLACES.values()),
        "write the section named like the engine of the pool's cluster, e.g.  slurm: { partition: gpu }",
    ),
)

# --- custom GPU types, and the file ----------------------------------------------------------------------

GPU_MEMORY: Final = Key("memory", values.MEMORY, "Memory of one GPU.", example="48GB", required=True)
GPU_PRODUCTS: Final = Key(
    "products", ListOf(values.PRODUCT, "product names"), "Product names that the driver reports."
)
GPU_VENDOR: Final = Key("vendor", OneOf(Vendor), "Vendor.", default="nvidia")
GPU_TYPE: Final = Record("A GPU type that Fairway does not know", (GPU_MEMORY, GPU_PRODUCTS, GPU_VENDOR))

API_VERSION: Final = Key(
    "apiVersion",
    OneOf(("fairway/v1alpha1",)),
    "Version of the file format.",
    example="fairway/v1alpha1",
    required=True,
)
KIND: Final = Key("kind", OneOf(("Fleet",)), "Kind of the file.", example="Fleet", required=True)
FLEET_NAME: Final = Key("name", values.NAME, "Name of the fleet.", example="acme", required=True)
FLEET_CURRENCY: Final = Key(
    "currency", values.CURRENCY, "Currency of every price in the file.", example="USD", required=True
)
PARTIAL: Final = Key(
    "partial",
    Boolean(),
    "The file describes only some clusters of the fleet; applying it removes no others.",
    default=False,
)
GPU_TYPES: Final = Key(
    "gpu_types", MapOf(values.NEW_GPU_NAME, GPU_TYPE, "GPU types"), "GPU types that Fairway does not know."
)
CLUSTERS: Final = Key(
    "clusters",
    MapOf(values.NAME, CLUSTER, "clusters", min_entries=1),
    "The clusters, by name.",
    example="{ lab: { engine: virtual } }",
    required=True,
)
EVENT: Final = values.Text(
    "a class of events (hardware, reset, warning, unknown, application) or a code (xid-79, ecc, hot)",
    r"[a-z][a-z0-9-]*",
    40,
    rule=_event_rule,
    suggestions=(*(c.value for c in EventClass), *(c.value for c in EventCode), "xid-79"),
)
HEALTH_EVENTS: Final = Key(
    "events",
    ListOf(EVENT, "classes or codes of events"),
    "GPU events that the rule applies to: classes or codes.",
    default="[hardware]",
)
HEALTH_POOLS: Final = Key("pools", ListOf(values.NAME, "pools"), "Only nodes of these pools; default: all.")
HEALTH_DO: Final = Key(
    "do",
    OneOf(HealthAction),
    "cordon: the node is closed to new jobs; show: nothing beyond showing and notifying.",
    default=HealthAction.SHOW,
)
HEALTH_MAX_SHARE: Final = Key(
    "max_share",
    Percent(1, 100),
    "Largest percentage of closed nodes in a pool, whoever closed them; one node may always be closed.",
    default="10%",
)
HEALTH_MAX_NODES: Final = Key(
    "max_nodes", Integer(1, 100_000), "Largest number of closed nodes in a pool, whoever closed them."
)
HEALTH_RULE: Final = Record(
    "An action on GPU failures",
    (HEALTH_EVENTS, HEALTH_POOLS, HEALTH_DO, HEALTH_MAX_SHARE, HEALTH_MAX_NODES),
)
HEALTH: Final = Key(
    "health",
    MapOf(values.NAME, HEALTH_RULE, "health rules"),
    "Actions on GPU failures, by name; the first rule that matches an event applies.",
    example="{ broken: { do: cordon, max_share: 5% } }",
)
POOLS: Final = Key("pools", MapOf(values.NAME, POOL, "pools"), "The GPU pools, by name.")
FLEET: Final = Record(
    "Fairway fleet",
    (
        API_VERSION,
        KIND,
        FLEET_NAME,
        FLEET_CURRENCY,
        PARTIAL,
        GPU_TYPES,
        CLUSTERS,
        POOLS,
        ps.COST,
        ts.PRIORITIES,
        ts.FAIRNESS,
        ds.DIAGNOSIS,
        ts.TEAMS,
        ts.USERS,
        bs.BUDGETS,
        ns.NOTIFY,
        schema_idle.IDLE,
        schema_slos.SLOS,
        HEALTH,
    ),
)


def fleet_schema() -> Schema:
    """Return the fleet file as JSON Schema (draft 2020-12), for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "All clusters and GPU pools under one policy, and the teams that share them.",
        **FLEET.schema(),
        "$defs": {name: shape.schema() for name, shape in ts.DEFINITIONS.items()},
        "examples": [_EXAMPLE],
    }


_EXAMPLE: Final = {
    "apiVersion": "fairway/v1alpha1",
    "kind": "Fleet",
    "name": "acme",
    "currency": "USD",
    "clusters": {"lab": {"engine": "virtual"}},
    "pools": {
        "lab-a100": {
            "cluster": "lab",
            "gpu": "A100-80GB",
            "capacity": "owned",
            "price": 1.9,
            "virtual": {"nodes": 4, "gpus_per_node": 8},
        }
    },
    "teams": {
        "research": {"share": 60, "guarantee": {"lab-a100": 16}, "members": ["alice"]},
        "product": {"share": 40, "guarantee": {"lab-a100": 16}, "members": ["bob"]},
    },
}
