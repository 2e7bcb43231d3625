"""The fleet file, key by key. A new section is a Key of FLEET, and a shape for what it holds."""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

from fairway.files.faults import FaultCode, Severity, shown
from fairway.files.records import ExactlyOne, Key, ListOf, MapOf, Record, variants
from fairway.files.shape import Price, Problem, Schema, Text, Whole, Word
from fairway.model.fleet import Capacity, EngineKind
from fairway.model.gpu import Vendor
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import NAME_PATTERN, NAME_RULE


class ApiVersion(StrEnum):
    """The versions of the file's form that this release reads."""

    V1ALPHA1 = "fairway/v1alpha1"


class FileKind(StrEnum):
    """What the file is."""

    FLEET = "Fleet"


def _as_name(text: str) -> str:
    """The nearest allowed name: HPC_A100 becomes hpc-a100."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-0123456789")[:40].rstrip("-")


def _memory(text: str) -> str:
    amount = re.match(r"\s*([0-9]+)", text)
    return f"{amount[1]}GB" if amount else ""


def _path_rule(text: str) -> Problem | None:
    if text.startswith("~"):
        return Problem(
            FaultCode.BAD_PATH,
            f"{shown(text)} begins with ~, which is another folder for every user",
            "write the whole path, or one relative to this file",
        )
    return None


def _url_rule(text: str) -> Problem | None:
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        return Problem(FaultCode.BAD_URL, f"{shown(text)} is not a URL: {shown(str(error))}", _URL_HINT)
    if parts.username is not None or parts.password is not None:
        return Problem(
            FaultCode.SECRET_IN_FILE,
            "the URL holds a user name or password",
            "take it out of the URL and name a file under credentials: { token_file: PATH }",
        )
    if not host or parts.query or parts.fragment:
        return Problem(FaultCode.BAD_URL, f"{shown(text)} is not the address of a slurmrestd", _URL_HINT)
    if parts.scheme == "http" and not _is_loopback(host):
        return Problem(
            FaultCode.PLAIN_HTTP,
            f"tokens for {shown(host)} would cross the network unencrypted",
            f"serve slurmrestd behind TLS and write https://{shown(host)}",
            Severity.WARNING,
        )
    return None


_URL_HINT: Final = "write scheme, host and port, for example https://slurm.example.org:6820"


def _is_loopback(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


# --- small texts -----------------------------------------------------------------------------------------

NAME: Final = Text(NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, mend=_as_name)
PATH: Final = Text("a path", longest=4096, rule=_path_rule, examples=("/etc/fairway/hpc.jwt",))
URL: Final = Text(
    "an http or https URL",
    r"https?://[^\s\\]+",
    2048,
    FaultCode.BAD_URL,
    mend=lambda text: text if "://" in text else f"https://{text}",
    rule=_url_rule,
    examples=("https://slurm.example.org:6820",),
)
CURRENCY: Final = Text(
    "a currency code of three capital letters",
    "[A-Z]{3}",
    3,
    mend=lambda t: t.strip().upper(),
    examples=("USD", "EUR"),
)
USER: Final = Text("a user name", r"[A-Za-z_][A-Za-z0-9_.@-]*", 64)
CONTEXT: Final = Text("the name of a kubeconfig context")
PARTITION: Final = Text("the name of a Slurm partition", r"[A-Za-z0-9_][A-Za-z0-9_.-]*", 64)
GRES: Final = Text(
    "a GRES type, without 'gpu:'",
    r"[A-Za-z0-9_][A-Za-z0-9_.+-]*",
    64,
    mend=lambda t: t.removeprefix("gres/").removeprefix("gpu:").split(":")[0],
    examples=("a100",),
)
_LABEL_NAME: Final = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY: Final = rf"([a-z0-9]([a-z0-9.-]{{0,251}}[a-z0-9])?/)?{_LABEL_NAME}"
LABEL_KEY: Final = Text("a Kubernetes label key", _LABEL_KEY, 317)
LABEL_VALUE: Final = Text("a Kubernetes label value", _LABEL_NAME, 63)
RESOURCE: Final = Text(
    "a Kubernetes resource name", _LABEL_KEY, 317, examples=("nvidia.com/gpu", "amd.com/gpu")
)
TAINT: Final = Text(
    "a taint: key, key=value or key=value:Effect",
    rf"{_LABEL_KEY}(=({_LABEL_NAME})?)?(:(NoSchedule|PreferNoSchedule|NoExecute))?",
    400,
    examples=("fairway/spot", "fairway/spot=true:NoSchedule"),
)
GPU_NAME: Final = Text(
    "a GPU type", r"[A-Za-z0-9][A-Za-z0-9._-]*", 63, suggestions=tuple(CATALOGUE), examples=("A100-80GB",)
)
NEW_GPU_NAME: Final = Text("letters, digits, '.', '_' and '-'", r"[A-Za-z0-9][A-Za-z0-9._-]*", 63)
SLICE: Final = Text(
    "a MIG profile",
    r"[1-9]g\.[1-9][0-9]*gb([+-][a-z.]+)?",
    32,
    mend=str.lower,
    suggestions=tuple(dict.fromkeys(str(p.name) for gpu in CATALOGUE.values() for p in gpu.profiles)),
    examples=("1g.10gb", "3g.40gb"),
)
MEMORY: Final = Text("an amount of memory in GB", r"[1-9][0-9]{0,4}GB", 7, mend=_memory, examples=("48GB",))
PRODUCT: Final = Text("a product name", examples=("NVIDIA-A100-SXM4-80GB",))

# --- clusters --------------------------------------------------------------------------------------------

ENGINE: Final = Key("engine", Word(EngineKind), "Who schedules on the cluster.", example="slurm")

JWT_KEY_FILE: Final = Key(
    "jwt_key_file",
    PATH,
    "File with the cluster's HS256 key; Fairway signs short-lived tokens itself.",
    required=False,
)
TOKEN_FILE: Final = Key(
    "token_file",
    PATH,
    "File with a ready token (scontrol token), read again whenever it is needed.",
    required=False,
)
SLURM_USER: Final = Key(
    "user", USER, "The Slurm user that Fairway acts as.", required=False, default="fairway"
)
SLURM_CREDENTIALS: Final = Record(
    "Credentials for slurmrestd",
    (JWT_KEY_FILE, TOKEN_FILE, SLURM_USER),
    ExactlyOne(
        (JWT_KEY_FILE, TOKEN_FILE), "name one file:  credentials: { jwt_key_file: /etc/fairway/hpc.jwt }"
    ),
)
SLURM_URL: Final = Key(
    "url", URL, "Address of the cluster's slurmrestd.", example="https://slurm.example.org:6820"
)
CREDENTIALS: Final = Key(
    "credentials",
    SLURM_CREDENTIALS,
    "How to sign in. Secrets stay in files of their own.",
    example="{ jwt_key_file: /etc/fairway/hpc.jwt }",
)
KUBECONFIG: Final = Key(
    "kubeconfig",
    PATH,
    "Path of a kubeconfig; without it Fairway uses its pod's service account.",
    required=False,
)
KUBE_CONTEXT: Final = Key(
    "context", CONTEXT, "Context within the kubeconfig; without it the current one.", required=False
)
CLUSTER: Final = variants(
    "A cluster: one engine's domain",
    ENGINE,
    {
        EngineKind.SLURM: Record("A Slurm cluster", (SLURM_URL, CREDENTIALS)),
        EngineKind.KUBERNETES: Record("A Kubernetes cluster with Kueue", (KUBECONFIG, KUBE_CONTEXT)),
        EngineKind.VIRTUAL: Record("A cluster in the server's memory, for trying things out", ()),
    },
)

# --- pools -----------------------------------------------------------------------------------------------

SLURM_PARTITION: Final = Key(
    "partition", PARTITION, "The partition whose nodes have the GPUs.", example="gpu"
)
SLURM_GRES: Final = Key(
    "gres", GRES, "The GRES type (gpu:TYPE); needed where the partition has several.", required=False
)
NODE_LABELS: Final = Key(
    "node_labels",
    MapOf(LABEL_KEY, LABEL_VALUE, "node labels"),
    "Labels that every node of the pool has; without any, all nodes of the cluster.",
    required=False,
)
TAINTS: Final = Key(
    "taints", ListOf(TAINT, "taints"), "Taints of the pool's nodes, which its jobs tolerate.", required=False
)
GPU_RESOURCE: Final = Key(
    "resource",
    RESOURCE,
    "Name of the GPU resource; by default that of the GPU's maker, e.g. nvidia.com/gpu.",
    required=False,
)
NODES: Final = Key("nodes", Whole(1, 100_000), "How many nodes the virtual pool has.", example="4")
GPUS_PER_NODE: Final = Key(
    "gpus_per_node", Whole(1, 64), "How many GPUs each node has.", required=False, default=8
)
SLICES_PER_GPU: Final = Key(
    "slices_per_gpu",
    MapOf(SLICE, Whole(1, 8), "slices"),
    "How many slices of each kind every GPU is cut into.",
    required=False,
)

POOL_CLUSTER: Final = Key("cluster", NAME, "The cluster, by its name under clusters.", example="hpc")
GPU: Final = Key("gpu", GPU_NAME, "The GPU type: a built-in one, or one from gpu_types.", example="A100-80GB")
SLICES: Final = Key(
    "slices",
    ListOf(SLICE, "MIG profiles"),
    "MIG profiles the GPUs are cut into; a slice costs its share of the GPU's memory.",
    required=False,
)
CAPACITY: Final = Key(
    "capacity", Word(Capacity), "How the GPUs are paid for, and whether they can vanish.", example="owned"
)
PRICE: Final = Key("price", Price(), "Per GPU-hour, in the fleet's currency.", example="1.90")
TOPOLOGY: Final = Key(
    "topology",
    ListOf(LABEL_KEY, "node labels"),
    "Node labels from the widest to the narrowest level, e.g. block, rack.",
    required=False,
)
SLURM_PLACE: Final = Key(
    "slurm",
    Record("Where the pool is on Slurm", (SLURM_PARTITION, SLURM_GRES)),
    "Where the pool is, on a Slurm cluster.",
    required=False,
    example="{ partition: gpu }",
)
KUBERNETES_PLACE: Final = Key(
    "kubernetes",
    Record("Where the pool is on Kubernetes", (NODE_LABELS, TAINTS, GPU_RESOURCE)),
    "Where the pool is, on a Kubernetes cluster.",
    required=False,
    example="{ node_labels: { nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB } }",
)
VIRTUAL_PLACE: Final = Key(
    "virtual",
    Record("How large a virtual pool is", (NODES, GPUS_PER_NODE, SLICES_PER_GPU)),
    "How large the pool is, on a virtual cluster.",
    required=False,
    example="{ nodes: 4 }",
)
PLACES: Final = {
    EngineKind.SLURM: SLURM_PLACE,
    EngineKind.KUBERNETES: KUBERNETES_PLACE,
    EngineKind.VIRTUAL: VIRTUAL_PLACE,
}
POOL: Final = Record(
    "A pool: like GPUs on one cluster under one price",
    (POOL_CLUSTER, GPU, SLICES, CAPACITY, PRICE, TOPOLOGY, *PLACES.values()),
    ExactlyOne(
        tuple(PLACES.values()),
        "write the section named like the engine of the pool's cluster, e.g.  slurm: { partition: gpu }",
    ),
)

# --- GPU types of one's own, and the file ----------------------------------------------------------------

GPU_MEMORY: Final = Key("memory", MEMORY, "Memory of one GPU.", example="48GB")
GPU_PRODUCTS: Final = Key(
    "products", ListOf(PRODUCT, "product names"), "Names the driver uses for it.", required=False
)
GPU_VENDOR: Final = Key("vendor", Word(Vendor), "Who makes it.", required=False, default="nvidia")
GPU_TYPE: Final = Record("A GPU type that Fairway does not know", (GPU_MEMORY, GPU_PRODUCTS, GPU_VENDOR))

API_VERSION: Final = Key(
    "apiVersion", Word(ApiVersion), "Version of the file's form.", example="fairway/v1alpha1"
)
KIND: Final = Key("kind", Word(FileKind), "What the file is.", example="Fleet")
FLEET_NAME: Final = Key("name", NAME, "The fleet's name.", example="acme")
FLEET_CURRENCY: Final = Key("currency", CURRENCY, "Currency of every price in the file.", example="USD")
GPU_TYPES: Final = Key(
    "gpu_types",
    MapOf(NEW_GPU_NAME, GPU_TYPE, "GPU types"),
    "GPU types Fairway does not know.",
    required=False,
)
CLUSTERS: Final = Key(
    "clusters",
    MapOf(NAME, CLUSTER, "clusters", least=1),
    "The clusters, by name.",
    example="{ lab: { engine: virtual } }",
)
POOLS: Final = Key("pools", MapOf(NAME, POOL, "pools"), "The GPU pools, by name.", required=False)
FLEET: Final = Record(
    "Fairway fleet",
    (API_VERSION, KIND, FLEET_NAME, FLEET_CURRENCY, GPU_TYPES, CLUSTERS, POOLS),
    later=("teams", "priorities", "fairness"),
)


def fleet_schema() -> Schema:
    """The fleet file as JSON Schema (draft 2020-12), for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "All clusters and GPU pools under one policy.",
        **FLEET.schema(),
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
}
