"""The small texts of a fleet file: names, paths, labels; each with its form and what was probably meant."""

from __future__ import annotations

import ipaddress
import re
from typing import Final
from urllib.parse import urlsplit

from fairway.files.faults import FaultCode, Severity, shown
from fairway.files.shape import Problem, Text
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import NAME_PATTERN, NAME_RULE


def as_name(text: str) -> str:
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


NAME: Final = Text(NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, mend=as_name)
PATH: Final = Text("a path", longest=4096, rule=_path_rule, examples=("/etc/fairway/hpc.jwt",))
SHARED_PATH: Final = Text(
    "a whole path, beginning with /",
    r"/.*",
    4096,
    FaultCode.BAD_PATH,
    rule=_path_rule,
    examples=("/shared/logs",),
)
CHECKPOINTS: Final = Text(
    "a whole path, or pvc/CLAIM on Kubernetes",
    r"/.*|pvc/[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?",
    4096,
    FaultCode.BAD_PATH,
    examples=("/shared/checkpoints", "pvc/checkpoints"),
)
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
# A login on Slurm, or what an API server takes its users for: alice@example.org, oidc:alice, 4711.
PERSON: Final = Text("a user, as the engines know them", r"[A-Za-z0-9_][A-Za-z0-9_.:@+-]*", 128)
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
