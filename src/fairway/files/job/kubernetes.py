"""Translate a Kubernetes Job manifest to the keys of a job file; a field without equivalent is an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from collections.abc import Mapping as MappingOf
from dataclasses import dataclass, field
from typing import Final

from fairway.files.diagnostics import FaultCode, Faults, Severity, Spot, did_you_mean, dotted, shown
from fairway.files.job.gpus import model_of_product
from fairway.files.job.schema import as_job_name
from fairway.files.yaml import tree
from fairway.files.yaml.tree import Listing, Mapping, Mark, Node, Scalar, ScalarKind, quoted, word
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.text import duration_text

QUEUE_LABEL: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL: Final = "kueue.x-k8s.io/priority-class"
PRODUCT_LABEL: Final = "nvidia.com/gpu.product"

_EMPTY: Final = frozenset({"creationTimestamp", "status"})
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
_OTHERWISE: Final = "take it away, or submit it by  kubectl apply; Fairway sees and governs it all the same"
_UNITS: Final = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15} | {
    "Ki": 2**10,
    "Mi": 2**20,
    "Gi": 2**30,
    "Ti": 2**40,
    "Pi": 2**50,
}

Path = tuple[str | int, ...]
Take = Callable[[Node, Path], None]


def is_manifest(node: Node) -> bool:
    """Return whether a document is a Kubernetes object rather than a Fairway file."""
    if not isinstance(node, Mapping):
        return False
    version, kind = (_text(node, name) for name in ("apiVersion", "kind"))
    return bool(version) and not version.startswith("fairway") and bool(kind)


def translate(node: Mapping, given: frozenset[str], faults: Faults) -> tree.Mapping | None:
    """Translate a manifest to a job; keys in `given` are set elsewhere, e.g. by flags, and may be missing.

    Returns None if the manifest is not a batch/v1 Job, with the fault reported.
    """
    version, kind = _text(node, "apiVersion"), _text(node, "kind")
    if (version, kind) != ("batch/v1", "Job"):
        faults.add(
            FaultCode.NOT_A_JOB,
            Spot(*node.mark, "kind", shown(kind)),
            f"{shown(f'{version} {kind}')} is not a job that Fairway can submit",
            expected="a file of  kind: Job, apiVersion fairway/v1alpha1 or batch/v1",
            hint="submit it by  kubectl apply; Fairway sees and governs it all the same",
        )
        return None
    return _Manifest(given, faults, node.mark).job(node)


@dataclass(slots=True)
class _Manifest:
    given: frozenset[str]
    faults: Faults
    mark: Mark
    keys: dict[str, Node] = field(default_factory=dict)
    model: str = ""
    count: int = 0
    slice: str = ""
    sizes: dict[str, int] = field(default_factory=dict)

    def job(self, node: Mapping) -> tree.Mapping:
        self.keys["name"] = quoted("job", self.mark)
        self._fields(node, (), {"metadata": self._metadata, "spec": self._spec}, {"apiVersion", "kind"})
        self._gpus()
        if not {"command"} & self.keys.keys() and not {"command", "script"} & self.given:
            self._missing(
                "the manifest does not say what to run",
                'add to the container:  command: ["python", "train.py"]',
            )
        return tree.mapping(self.keys, self.mark)

    # --- what to do with a field --------------------------------------------------------------------------

    def _fields(
        self,
        node: Node,
        path: Path,
        known: MappingOf[str, Take],
        silent: frozenset[str] | set[str] = frozenset(),
    ) -> None:
        """Process each known field; report every other one as left out or as having no equivalent."""
        if not isinstance(node, Mapping):
            self._wrong(node, path, "a mapping")
            return
        for entry in node.entries:
            name, inner = entry.key.text, (*path, entry.key.text)
            nothing = isinstance(entry.value, Scalar) and entry.value.kind is ScalarKind.NOTHING
            if name in known and not nothing:
                known[name](entry.value, inner)
            elif nothing or name in silent or name in _EMPTY:
                continue
            elif name in _LEFT_OUT:
                self._left_out(entry.key, inner)
            else:
                self._no_word(entry.key, inner, _HINTS.get(name, _OTHERWISE))

    def _no_word(self, node: Node, path: Path, hint: str, message: str = "") -> None:
        message = message or f"Fairway has no word for {dotted(path)}"
        self.faults.add(FaultCode.NO_WORD_FOR_IT, _spot(node, path), message, hint=hint)

    def _left_out(self, node: Node, path: Path, hint: str = "", message: str = "") -> None:
        message = message or f"{dotted(path)} is left out"
        hint = hint or "take it away to be rid of this warning"
        spot = _spot(node, path)
        self.faults.add(FaultCode.LEFT_OUT, spot, message, hint=hint, severity=Severity.WARNING)

    def _wrong(self, node: Node, path: Path, expected: str) -> None:
        message = f"{dotted(path) or 'the manifest'} is not {expected}"
        self.faults.add(FaultCode.WRONG_TYPE, _spot(node, path), message, hint=f"write {expected}")

    def _missing(self, message: str, hint: str) -> None:
        self.faults.add(FaultCode.MISSING_KEY, Spot(*self.mark, "", ""), message, hint=hint)

    def _keep(self, key: str) -> Take:
        def take(node: Node, _path: Path) -> None:
            self.keys[key] = node

        return take

    # --- metadata and spec --------------------------------------------------------------------------------

    def _metadata(self, node: Node, path: Path) -> None:
        known: dict[str, Take] = {
            "name": self._name,
            "generateName": self._name,
            "namespace": self._namespace,
            "labels": self._labels,
        }
        self._fields(node, path, known)

    def _name(self, node: Node, path: Path) -> None:
        name = as_job_name(node.text) if isinstance(node, Scalar) else ""
        if not name:
            self._wrong(node, path, "a name")
            return
        self.keys["name"] = quoted(name, node.mark)

    def _namespace(self, node: Node, path: Path) -> None:
        if isinstance(node, Scalar) and node.text == "default":
            self._left_out(node, path, "name the team:  --team NAME", "the namespace default is no team's")
        else:
            self.keys["team"] = node

    def _labels(self, node: Node, path: Path) -> None:
        def queue(label: Node, inner: Path) -> None:
            hint = "take it away; the team's queue is found by the team and the pool"
            self._left_out(label, inner, hint, "the queue is left out: Fairway picks the place")

        for entry in node.entries if isinstance(node, Mapping) else ():
            inner = (*path, entry.key.text)
            match entry.key.text:
                case label if label == PRIORITY_LABEL:
                    self.keys["priority"] = entry.value
                case label if label == QUEUE_LABEL:
                    queue(entry.key, inner)
                case _:
                    self._left_out(entry.key, inner)

    def _spec(self, node: Node, path: Path) -> None:
        known: dict[str, Take] = {
            "template": self._template,
            "parallelism": self._parallelism,
            "completions": self._completions,
            "activeDeadlineSeconds": self._deadline,
            "backoffLimit": self._keep("retries"),
        }
        self._fields(node, path, known, {"completionMode"})
        wanted, at_once = self.sizes.get("completions"), self.sizes.get("parallelism", 1)
        if wanted is not None and wanted != at_once:
            message = f"{wanted} completions, {at_once} at once, is not one job on {at_once} nodes"
            self._no_word(node, (*path, "completions"), _HINTS["completions"], message)
        elif at_once > 1:
            self.keys["nodes"] = word(str(at_once), self.mark)

    def _parallelism(self, node: Node, path: Path) -> None:
        self._size("parallelism", node, path)

    def _completions(self, node: Node, path: Path) -> None:
        self._size("completions", node, path)

    def _size(self, name: str, node: Node, path: Path) -> None:
        number = _whole(node)
        if not number:
            self._wrong(node, path, "a whole number from 1")
            return
        self.sizes[name] = number

    def _deadline(self, node: Node, path: Path) -> None:
        seconds = _whole(node)
        if not seconds:
            self._wrong(node, path, "a whole number of seconds")
            return
        self.keys["time"] = quoted(duration_text(seconds), node.mark)

    def _template(self, node: Node, path: Path) -> None:
        known: dict[str, Take] = {"metadata": self._pod_metadata, "spec": self._pod}
        self._fields(node, path, known)

    def _pod_metadata(self, node: Node, path: Path) -> None:
        self._fields(node, path, {}, {"name"})

    # --- the pod and its container ------------------------------------------------------------------------

    def _pod(self, node: Node, path: Path) -> None:
        known: dict[str, Take] = {
            "containers": self._containers,
            "nodeSelector": self._selector,
            "activeDeadlineSeconds": self._deadline,
        }
        self._fields(node, path, known, {"restartPolicy"})

    def _selector(self, node: Node, path: Path) -> None:
        for entry in node.entries if isinstance(node, Mapping) else ():
            inner = (*path, entry.key.text)
            product = entry.value.text if isinstance(entry.value, Scalar) else ""
            model = model_of_product(product) if entry.key.text == PRODUCT_LABEL else None
            if model:
                self.model = model
            elif entry.key.text == PRODUCT_LABEL:
                names = [name for gpu in CATALOGUE.values() for name in gpu.products]
                hint = did_you_mean(product, names, "name the GPUs:  --gpus A100-80GB:8")
                self._no_word(entry.value, inner, hint, f"{shown(product)} is no product that Fairway knows")
            else:
                self._no_word(entry.key, inner, "name the pool:  --pool NAME")

    def _containers(self, node: Node, path: Path) -> None:
        if not isinstance(node, Listing) or len(node.items) != 1:
            self._no_word(node, path, _OTHERWISE, "a job of Fairway's has exactly one container")
            return
        container, inner = node.items[0], (*path, 0)
        known: dict[str, Take] = {
            "image": self._keep("image"),
            "workingDir": self._keep("workdir"),
            "env": self._env,
            "resources": self._resources,
            "command": self._command,
            "args": self._command,
        }
        self._fields(container, inner, known, {"name"})
        if isinstance(container, Mapping) and container.entry("args") and not container.entry("command"):
            hint = "write out what the image would run:  command: [python, train.py]"
            self._no_word(
                container, (*inner, "args"), hint, "args without command need the image's entrypoint"
            )

    def _command(self, node: Node, path: Path) -> None:
        if not isinstance(node, Listing):
            self._wrong(node, path, "a list of texts")
            return
        for i, item in enumerate(node.items):
            if isinstance(item, Scalar) and "$(" in item.text:
                message = "$(NAME) is passed as it is: Fairway puts no variables into arguments"
                hint = "let a shell do it:  [bash, -c, 'python train.py $NAME']"
                self._left_out(item, (*path, i), hint, message)
        before = self.keys.get("command")
        words = before.items if isinstance(before, Listing) else ()
        # The command comes before its arguments, whichever is first in the file.
        parts = (*words, *node.items) if path[-1] == "args" else (*node.items, *words)
        self.keys["command"] = tree.listing(parts, node.mark)

    def _env(self, node: Node, path: Path) -> None:
        told: dict[str, Node] = {}
        for i, item in enumerate(node.items if isinstance(node, Listing) else ()):
            inner = (*path, i)
            name = _text(item, "name") if isinstance(item, Mapping) else ""
            value = item.entry("value") if isinstance(item, Mapping) else None
            if isinstance(item, Mapping) and item.entry("valueFrom"):
                hint = "write the value, or let the job read it from a file; Fairway passes no secrets on"
                self._no_word(item, (*inner, "valueFrom"), hint)
            elif not name:
                self._wrong(item, inner, "a variable with a name and a value")
            else:
                told[name] = value.value if value else quoted("", item.mark)
        self.keys["env"] = tree.mapping(told, node.mark)

    def _resources(self, node: Node, path: Path) -> None:
        self._fields(node, path, {"limits": self._amounts, "requests": self._amounts})

    def _amounts(self, node: Node, path: Path) -> None:
        for entry in node.entries if isinstance(node, Mapping) else ():
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
            self._no_word(node, path, _OTHERWISE)

    def _at_least(self, key: str, amount: int, node: Node) -> None:
        """Set a size to the larger of request and limit, which are the same key in a job file."""
        self.sizes[key] = max(self.sizes.get(key, 1), amount)
        text = str(self.sizes[key])
        self.keys[key] = word(text, node.mark) if key == "cpus" else quoted(f"{text}GB", node.mark)

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


def _spot(node: Node, path: Path) -> Spot:
    value = shown(node.text) if isinstance(node, Scalar) and not (path and node.text == path[-1]) else ""
    return Spot(*node.mark, dotted(path), value)


def _text(node: Mapping, name: str) -> str:
    entry = node.entry(name)
    return entry.value.text if entry and isinstance(entry.value, Scalar) else ""


def _whole(node: Node) -> int | None:
    sound = isinstance(node, Scalar) and re.fullmatch(r"[0-9]{1,9}", node.text, re.ASCII)
    return int(node.text) if isinstance(node, Scalar) and sound else None


def _quantity(node: Node) -> float | None:
    """Parse a Kubernetes quantity such as `500m`, `8` or `64Gi`. Returns None if it is invalid."""
    if not isinstance(node, Scalar):
        return None
    found = re.fullmatch(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(m|k|[MGTP]|[KMGTP]i)?", node.text, re.ASCII)
    if found is None:
        return None
    return float(found[1]) * (0.001 if found[2] == "m" else _UNITS[found[2] or ""])
