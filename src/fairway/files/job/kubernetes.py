"""Translate a Kubernetes Job manifest to the keys of a job file, as far as these can say it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field
from typing import Final

from fairway.files.diagnostics import (
    Fault,
    FaultCode,
    Faults,
    Location,
    Severity,
    did_you_mean,
    dotted,
    shown,
)
from fairway.files.job.gpus import model_of_product
from fairway.files.job.schema import as_job_name
from fairway.files.yaml import (
    MappingNode,
    Mark,
    Node,
    ScalarKind,
    ScalarNode,
    SequenceNode,
    mapping_node,
    quoted,
    sequence_node,
    unquoted,
)
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.text import duration_text

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"

_SERVER_FIELDS: Final = frozenset({"creationTimestamp", "status"})
"""Fields that kubectl adds by itself; ignored."""
_LEFT_OUT: Final = frozenset(
    {
        "annotations",
        "enableServiceLinks",
        "imagePullPolicy",
        "labels",
        "stdin",
        "suspend",
        "terminationMessagePath",
        "terminationMessagePolicy",
        "tolerations",
        "ttlSecondsAfterFinished",
        "tty",
    }
)
_HINTS: Final = {
    "volumes": "Fairway mounts a cluster's checkpoint folder; put the rest into the image",
    "volumeMounts": "Fairway mounts a cluster's checkpoint folder; put the rest into the image",
    "initContainers": "do it in  setup:  of a job file",
    "envFrom": "write the variables out under env",
    "affinity": "name the pool:  --pool NAME, or  --together rack",
    "topologySpreadConstraints": "name the pool:  --pool NAME, or  --together rack",
    "schedulerName": "take it away; the cluster's scheduler decides",
    "completions": "write it as an array in a job file:  array: 0-99",
    "podFailurePolicy": "say how often it may come back:  --retries N",
}
_HINT: Final = "take it away, or submit it by  kubectl apply; Fairway sees and governs it all the same"
_UNITS: Final[dict[str, float]] = {
    "m": 0.001,
    "": 1,
    **{prefix: 1000**i for i, prefix in enumerate("kMGTP", 1)},
    **{f"{prefix}i": 1024**i for i, prefix in enumerate("KMGTP", 1)},
}

Path = tuple[str | int, ...]
FieldHandler = Callable[[Node, Path], None]


def is_manifest(node: Node) -> bool:
    """Return whether a document is a Kubernetes object rather than a Fairway file."""
    if not isinstance(node, MappingNode):
        return False
    version, kind = (_text(node, name) for name in ("apiVersion", "kind"))
    return bool(version) and not version.startswith("fairway") and bool(kind)


def is_job(node: MappingNode) -> bool:
    """Return whether a manifest is a batch/v1 Job."""
    return (_text(node, "apiVersion"), _text(node, "kind")) == ("batch/v1", "Job")


def first_unsupported(node: MappingNode, given: frozenset[str]) -> Fault | None:
    """Return the first thing that keeps a sound Job from being a job file. Returns None if nothing does."""
    faults = Faults("")
    translate(node, given, faults)
    errors = [fault for fault in faults.sorted() if fault.severity is Severity.ERROR]
    sound = all(fault.code in {FaultCode.UNSUPPORTED_OPTION, FaultCode.MISSING_KEY} for fault in errors)
    return next((f for f in errors if f.path), errors[0]) if errors and sound else None


def translate(node: MappingNode, given: frozenset[str], faults: Faults) -> MappingNode:
    """Translate a Job; keys in `given` are set elsewhere, e.g. by flags, and may be missing."""
    return _ManifestTranslator(given, faults, node.mark).job(node)


@dataclass(slots=True)
class _ManifestTranslator:
    """Translates the fields of one manifest; `keys` are those of the job file."""

    given: frozenset[str]
    faults: Faults
    mark: Mark
    keys: dict[str, Node] = field(default_factory=dict)
    model: str = ""
    count: int = 0
    slice: str = ""
    sizes: dict[str, int] = field(default_factory=dict)

    def job(self, node: MappingNode) -> MappingNode:
        self.keys["name"] = quoted("job", self.mark)
        self._fields(node, (), {"metadata": self._metadata, "spec": self._spec}, {"apiVersion", "kind"})
        self._gpus()
        if "command" not in self.keys and not {"command", "script"} & self.given:
            self._missing(
                "the manifest does not say what to run",
                'add to the container:  command: ["python", "train.py"]',
            )
        return mapping_node(self.keys, self.mark)

    # --- fields ---------------------------------------------------------------------------------------------

    def _fields(
        self, node: Node, path: Path, handlers: Mapping[str, FieldHandler], ignored: Set[str] = frozenset()
    ) -> None:
        """Call the handler of each field; report a field without one as left out or as unsupported."""
        if not isinstance(node, MappingNode):
            self._wrong(node, path, "a mapping")
            return
        for entry in node.entries:
            name, inner = entry.key.text, (*path, entry.key.text)
            null = isinstance(entry.value, ScalarNode) and entry.value.kind is ScalarKind.NULL
            if name in handlers and not null:
                handlers[name](entry.value, inner)
            elif null or name in ignored or name in _SERVER_FIELDS:
                continue
            elif name in _LEFT_OUT:
                self._left_out(entry.key, inner)
            else:
                self._unsupported(entry.key, inner, _HINTS.get(name, _HINT))

    def _unsupported(self, node: Node, path: Path, hint: str, message: str = "") -> None:
        message = message or f"{dotted(path)} is not supported"
        self.faults.add(FaultCode.UNSUPPORTED_OPTION, _location(node, path), message, hint=hint)

    def _left_out(self, node: Node, path: Path, hint: str = "", message: str = "") -> None:
        message = message or f"{dotted(path)} is left out"
        hint = hint or "take it away to be rid of this warning"
        location = _location(node, path)
        self.faults.add(FaultCode.LEFT_OUT, location, message, hint=hint, severity=Severity.WARNING)

    def _wrong(self, node: Node, path: Path, expected: str) -> None:
        message = f"{dotted(path) or 'the manifest'} is not {expected}"
        self.faults.add(FaultCode.WRONG_TYPE, _location(node, path), message, hint=f"write {expected}")

    def _missing(self, message: str, hint: str) -> None:
        self.faults.add(FaultCode.MISSING_KEY, Location(*self.mark), message, hint=hint)

    def _copy_to(self, key: str) -> FieldHandler:
        def handle(node: Node, _path: Path) -> None:
            self.keys[key] = node

        return handle

    # --- metadata and spec --------------------------------------------------------------------------------

    def _metadata(self, node: Node, path: Path) -> None:
        handlers: dict[str, FieldHandler] = {
            "name": self._name,
            "generateName": self._name,
            "namespace": self._namespace,
            "labels": self._labels,
        }
        self._fields(node, path, handlers)

    def _name(self, node: Node, path: Path) -> None:
        name = as_job_name(node.text) if isinstance(node, ScalarNode) else ""
        if not name:
            self._wrong(node, path, "a name")
            return
        self.keys["name"] = quoted(name, node.mark)

    def _namespace(self, node: Node, path: Path) -> None:
        if isinstance(node, ScalarNode) and node.text == "default":
            self._left_out(node, path, "name the team:  --team NAME", "the namespace default is no team's")
        else:
            self.keys["team"] = node

    def _labels(self, node: Node, path: Path) -> None:
        for entry in node.entries if isinstance(node, MappingNode) else ():
            label, inner = entry.key.text, (*path, entry.key.text)
            if label == PRIORITY_LABEL:
                self.keys["priority"] = entry.value
            elif label == QUEUE_LABEL:
                hint = "take it away; the team's queue is found by the team and the pool"
                self._left_out(entry.key, inner, hint, "the queue is left out: Fairway picks the place")
            else:
                self._left_out(entry.key, inner)

    def _spec(self, node: Node, path: Path) -> None:
        handlers: dict[str, FieldHandler] = {
            "template": self._template,
            "parallelism": self._size,
            "completions": self._size,
            "activeDeadlineSeconds": self._deadline,
            "backoffLimit": self._copy_to("retries"),
        }
        self._fields(node, path, handlers, {"completionMode"})
        completions, parallelism = self.sizes.get("completions"), self.sizes.get("parallelism", 1)
        if completions is not None and completions != parallelism:
            message = (
                f"{completions} completions, {parallelism} at once, is not one job on {parallelism} nodes"
            )
            self._unsupported(node, (*path, "completions"), _HINTS["completions"], message)
        elif parallelism > 1:
            self.keys["nodes"] = unquoted(str(parallelism), self.mark)

    def _size(self, node: Node, path: Path) -> None:
        number = _whole_number(node)
        if not number:
            self._wrong(node, path, "a whole number from 1")
            return
        self.sizes[str(path[-1])] = number

    def _deadline(self, node: Node, path: Path) -> None:
        seconds = _whole_number(node)
        if not seconds:
            self._wrong(node, path, "a whole number of seconds")
            return
        self.keys["time"] = quoted(duration_text(seconds), node.mark)

    def _template(self, node: Node, path: Path) -> None:
        self._fields(node, path, {"metadata": self._pod_metadata, "spec": self._pod})

    def _pod_metadata(self, node: Node, path: Path) -> None:
        self._fields(node, path, {}, {"name"})

    # --- the pod and its container ------------------------------------------------------------------------

    def _pod(self, node: Node, path: Path) -> None:
        handlers: dict[str, FieldHandler] = {
            "containers": self._containers,
            "nodeSelector": self._selector,
            "activeDeadlineSeconds": self._deadline,
        }
        self._fields(node, path, handlers, {"restartPolicy"})

    def _selector(self, node: Node, path: Path) -> None:
        for entry in node.entries if isinstance(node, MappingNode) else ():
            inner = (*path, entry.key.text)
            product = entry.value.text if isinstance(entry.value, ScalarNode) else ""
            model = model_of_product(product) if entry.key.text == PRODUCT_LABEL else None
            if model:
                self.model = model
            elif entry.key.text == PRODUCT_LABEL:
                names = [name for gpu in CATALOGUE.values() for name in gpu.products]
                hint = did_you_mean(product, names, "name the GPUs:  --gpus A100-80GB:8")
                self._unsupported(
                    entry.value, inner, hint, f"{shown(product)} is no product that Fairway knows"
                )
            else:
                self._unsupported(entry.key, inner, "name the pool:  --pool NAME")

    def _containers(self, node: Node, path: Path) -> None:
        if not isinstance(node, SequenceNode) or len(node.items) != 1:
            self._unsupported(node, path, _HINT, "a job of Fairway's has exactly one container")
            return
        container, inner = node.items[0], (*path, 0)
        handlers: dict[str, FieldHandler] = {
            "image": self._copy_to("image"),
            "workingDir": self._copy_to("workdir"),
            "env": self._env,
            "resources": self._resources,
            "command": self._command,
            "args": self._command,
        }
        self._fields(container, inner, handlers, {"name"})
        if isinstance(container, MappingNode) and container.entry("args") and not container.entry("command"):
            hint = "write out what the image would run:  command: [python, train.py]"
            self._unsupported(
                container, (*inner, "args"), hint, "args without command need the image's entrypoint"
            )

    def _command(self, node: Node, path: Path) -> None:
        if not isinstance(node, SequenceNode):
            self._wrong(node, path, "a list of texts")
            return
        for i, item in enumerate(node.items):
            if isinstance(item, ScalarNode) and "$(" in item.text:
                message = "$(NAME) is passed as it is: Fairway puts no variables into arguments"
                hint = "let a shell do it:  [bash, -c, 'python train.py $NAME']"
                self._left_out(item, (*path, i), hint, message)
        other = self.keys.get("command")
        others = other.items if isinstance(other, SequenceNode) else ()
        # The command comes before its arguments, whichever is first in the file.
        arguments = (*others, *node.items) if path[-1] == "args" else (*node.items, *others)
        self.keys["command"] = sequence_node(arguments, node.mark)

    def _env(self, node: Node, path: Path) -> None:
        variables: dict[str, Node] = {}
        for i, item in enumerate(node.items if isinstance(node, SequenceNode) else ()):
            inner = (*path, i)
            name = _text(item, "name") if isinstance(item, MappingNode) else ""
            value = item.entry("value") if isinstance(item, MappingNode) else None
            if isinstance(item, MappingNode) and item.entry("valueFrom"):
                hint = "write the value, or let the job read it from a file; Fairway passes no secrets on"
                self._unsupported(item, (*inner, "valueFrom"), hint)
            elif not name:
                self._wrong(item, inner, "a variable with a name and a value")
            else:
                variables[name] = value.value if value else quoted("", item.mark)
        self.keys["env"] = mapping_node(variables, node.mark)

    def _resources(self, node: Node, path: Path) -> None:
        self._fields(node, path, {"limits": self._amounts, "requests": self._amounts})

    def _amounts(self, node: Node, path: Path) -> None:
        for entry in node.entries if isinstance(node, MappingNode) else ():
            self._amount(entry.key.text, entry.value, (*path, entry.key.text))

    def _amount(self, name: str, node: Node, path: Path) -> None:
        amount = _quantity(node)
        if amount is None:
            self._wrong(node, path, "an amount, like 8 or 64Gi")
        elif name in ("nvidia.com/gpu", "amd.com/gpu"):
            self.count = max(self.count, int(amount))
        elif mig := re.fullmatch(r"nvidia\.com/mig-([0-9a-z.+-]+)", name):
            self.slice = mig[1].replace(".me", "+me")
            self.count = max(self.count, int(amount))
        elif name == "cpu":
            self._at_least("cpus", -int(-amount // 1), node)
        elif name == "memory":
            self._at_least("memory", -int(-amount // 2**30), node)
        else:
            self._unsupported(node, path, _HINT)

    def _at_least(self, key: str, amount: int, node: Node) -> None:
        """Set a size to the larger of request and limit, which are the same key in a job file."""
        self.sizes[key] = max(self.sizes.get(key, 1), amount)
        text = str(self.sizes[key])
        self.keys[key] = unquoted(text, node.mark) if key == "cpus" else quoted(f"{text}GB", node.mark)

    def _gpus(self) -> None:
        if "gpus" in self.given:
            return
        if not self.count:
            hint = "add to the container:  resources: { limits: { nvidia.com/gpu: 8 } }"
            self._missing("the manifest does not say how many GPUs it needs", hint)
            return
        # A slice is more specific than the model it is cut from; a job file cannot name both.
        what = self.slice or self.model
        self.keys["gpus"] = quoted(f"{what}:{self.count}" if what else str(self.count), self.mark)


def _location(node: Node, path: Path) -> Location:
    value = shown(node.text) if isinstance(node, ScalarNode) and not (path and node.text == path[-1]) else ""
    return Location(*node.mark, dotted(path), value)


def _text(node: MappingNode, name: str) -> str:
    entry = node.entry(name)
    return entry.value.text if entry and isinstance(entry.value, ScalarNode) else ""


def _whole_number(node: Node) -> int | None:
    if isinstance(node, ScalarNode) and re.fullmatch(r"[0-9]{1,9}", node.text, re.ASCII):
        return int(node.text)
    return None


def _quantity(node: Node) -> float | None:
    """Parse a Kubernetes quantity such as `500m`, `8` or `64Gi`. Returns None if it is invalid."""
    if not isinstance(node, ScalarNode):
        return None
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|[MGTP]|[KMGTP]i)?", node.text, re.ASCII)
    if found is None:
        return None
    return float(found[1]) * _UNITS[found[2] or ""]
