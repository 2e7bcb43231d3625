"""Load JobSpecs from a job file, a script or a Kubernetes manifest: read, check everything, then build."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fairway.files.diagnostics import Fault, FaultCode, Faults, Location, Severity, shown
from fairway.files.job import kubernetes, manifest, sbatch
from fairway.files.job import schema as js
from fairway.files.schema.containers import Key, Record, Section
from fairway.files.schema.values import FieldPath
from fairway.files.yaml import (
    MappingEntry,
    MappingNode,
    Mark,
    Node,
    ScalarKind,
    ScalarNode,
    mapping_node,
    parse_all,
    quoted,
    sequence_node,
)
from fairway.model.job import JobSpec, Retries
from fairway.model.manifest import as_manifest_name
from fairway.model.names import PoolName, PriorityName, TeamName
from fairway.model.workload_kinds import WORKLOAD_KINDS

MAX_CHARACTERS: Final = 1024 * 1024
"""Maximum number of characters in a file of jobs."""
MAX_JOBS: Final = 1000
"""Maximum number of jobs in one file."""
_NUMBERS: Final = frozenset({"nodes", "cpus", "retries"})
_NO_KEYS: Final = mapping_node({}, Mark(1, 1))
_JOB_KINDS: Final = frozenset(kind.kind for kind in WORKLOAD_KINDS)
_MANIFEST_FLAGS: Final = frozenset(key.name for key in js.MANIFEST_KEYS)


@dataclass(frozen=True, slots=True)
class JobReport:
    """The result of checking a file of jobs. `jobs` is None if there are errors."""

    source: str
    jobs: tuple[JobSpec, ...] | None
    faults: tuple[Fault, ...]

    @property
    def warnings(self) -> tuple[Fault, ...]:
        """Return the faults that are only warnings."""
        return tuple(fault for fault in self.faults if fault.severity is Severity.WARNING)


def check_job_file(path: Path, given: MappingNode = _NO_KEYS) -> JobReport:
    """Check a file of jobs and report every fault; never raises."""
    source = shown(str(path), 300)
    try:
        with path.open("rb") as file:
            data = file.read(4 * MAX_CHARACTERS + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        hint = "name a file that exists and that you may read, or read from a pipe:  fairway submit -"
        return _refused(source, FaultCode.FILE_UNREADABLE, f"cannot read {source}: {reason}", hint)
    return check_job_bytes(data, source, given)


def check_job_bytes(data: bytes, source: str, given: MappingNode = _NO_KEYS) -> JobReport:
    """Check the bytes of a file of jobs, e.g. from a pipe."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        before = data[: error.start]
        at = Location(before.count(b"\n") + 1, len(before) - before.rfind(b"\n"))
        message = f"byte 0x{data[error.start]:02x} here is not UTF-8"
        return _refused(source, FaultCode.NOT_UTF8, message, "save the file as UTF-8", at)
    return check_jobs(text, source, given)


def check_jobs(text: str, source: str, given: MappingNode = _NO_KEYS) -> JobReport:
    """Check the text of a file of jobs in any format. Keys in `given` (from flags) override the text's."""
    if len(text) > MAX_CHARACTERS:
        message = f"the file is larger than {MAX_CHARACTERS:,} characters"
        hint = "is it the right file? Data belongs in a file that the job reads"
        return _refused(source, FaultCode.FILE_TOO_LARGE, message, hint)
    faults = Faults(source)
    given_names = frozenset(entry.key.text for entry in given.entries)
    if sbatch.is_script(text):
        script = sbatch.translate(text, _stem(source), given_names, faults)
        jobs = [_read(js.TRANSLATED_JOB, script, given, faults)]
    else:
        documents = parse_all(text, faults, MAX_JOBS)
        jobs = [_read_document(document, given, given_names, faults) for document in documents]
    built = None if faults.errors or not jobs else tuple(_build(job) for job in jobs if job)
    return JobReport(source, built, faults.sorted())


def is_job_text(data: bytes) -> bool:
    """Return whether the beginning of a file looks like jobs rather than a fleet."""
    text = data.decode("utf-8-sig", "replace")
    kinds = re.findall(r"^[\"']?kind[\"']?\s*:\s*[\"']?(\w+)", text, re.MULTILINE)
    return sbatch.is_script(text) or any(kind in _JOB_KINDS for kind in kinds)


def check_flags(given: MappingNode) -> JobReport:
    """Check a job described by flags alone; each fault's path is the name of its flag."""
    faults = Faults("command line")
    job = _read(js.TRANSLATED_JOB, _NO_KEYS, given, faults)
    complete = job and not faults.errors and job.get(js.GPUS) and job.get(js.JOB_NAME)
    jobs = (_build(job),) if job and complete else None
    return JobReport("command line", jobs, faults.sorted())


def given_by_flags(flags: Mapping[str, str | Sequence[str] | Mapping[str, str]]) -> MappingNode:
    """Convert flags to the keys of a job file; each value is text, as passed by the shell."""
    at = Mark(1, 1)

    def node(key: str, value: str | Sequence[str] | Mapping[str, str]) -> Node:
        if isinstance(value, str):
            plain = key in _NUMBERS and re.fullmatch(r"[-+]?[0-9]+", value, re.ASCII)
            return ScalarNode(at, value, ScalarKind.INTEGER if plain else ScalarKind.STRING, bool(plain))
        if isinstance(value, Mapping):
            return mapping_node({name: quoted(text, at) for name, text in value.items()}, at)
        if key == "after":
            return sequence_node([_after(word) for word in value], at)
        return sequence_node([quoted(text, at) for text in value], at)

    return mapping_node({key: node(key, value) for key, value in flags.items()}, at)


def name_of_command(command: Sequence[str]) -> str:
    """Derive a job's name from its command: the program, or the script that an interpreter runs."""
    words = [w for w in command if not w.startswith("-") and "=" not in w] or ["job"]
    program = words[0].rsplit("/", 1)[-1]
    if len(words) > 1 and re.fullmatch(r"(python|bash|sh|torchrun|accelerate|srun|uv|env)[0-9.]*", program):
        scripts = [w for w in words[1:] if re.search(r"\.(py|sh|pl|R|jl)$", w)]
        program = scripts[0].rsplit("/", 1)[-1] if scripts else program
    return js.as_job_name(_stem(program)) or "job"


def _after(text: str) -> Node:
    job, colon, when = text.partition(":")
    at = Mark(1, 1)
    return mapping_node({"job": quoted(job, at)} | ({"when": quoted(when, at)} if colon else {}), at)


def _refused(source: str, code: FaultCode, message: str, hint: str, at: Location | None = None) -> JobReport:
    faults = Faults(source)
    faults.add(code, at or Location(1, 1), message, hint=hint)
    return JobReport(source, None, faults.sorted())


def _stem(source: str) -> str:
    """Return a file's name without folders and extension, the default name of its job."""
    name = source.rsplit("/", 1)[-1]
    return "job" if name.startswith("<") else name.rsplit(".", 1)[0] or name


def _read_document(
    node: Node, given: MappingNode, given_names: frozenset[str], faults: Faults
) -> Section | None:
    if isinstance(node, MappingNode) and kubernetes.is_manifest(node):
        if not kubernetes.is_job(node) or _as_written(node, given_names, faults):
            return _read(js.TRANSLATED_MANIFEST, manifest.as_job(node), given, faults)
        return _read(js.TRANSLATED_JOB, kubernetes.translate(node, given_names, faults), given, faults)
    kind = node.entry("kind") if isinstance(node, MappingNode) else None
    if kind and isinstance(kind.value, ScalarNode) and kind.value.text == "Fleet":
        faults.add(
            FaultCode.NOT_A_JOB,
            Location(*kind.value.mark, "kind", "Fleet"),
            "this is a fleet file, not a job",
            expected="kind: Job",
            hint="look at it with  fairway check -f FILE",
        )
        return None
    has_manifest = isinstance(node, MappingNode) and node.entry(js.MANIFEST.name) is not None
    return _read(js.MANIFEST_JOB if has_manifest else js.JOB, node, given, faults)


def _as_written(node: MappingNode, given_names: frozenset[str], faults: Faults) -> bool:
    """Return whether a Job has to be submitted as it is, with a warning: a job file cannot say all of it.

    Flags that a manifest cannot have, and faults of the manifest itself, leave it to be translated.
    """
    first = kubernetes.first_unsupported(node, given_names)
    if first is None or not given_names <= _MANIFEST_FLAGS or manifest.has_faults(node):
        return False
    why = f"{first.path} has no key in a job file" if first.path else first.message
    faults.add(
        FaultCode.AS_WRITTEN,
        first.locations[0],
        f"{why}: the Job is submitted as it is, to Kubernetes only",
        hint=f"to let it run anywhere: {first.hint}",
        severity=Severity.WARNING,
    )
    return True


def _read(record: Record, node: Node, given: MappingNode, faults: Faults) -> Section | None:
    found = record.read(_with(node, given), FieldPath((), node.mark), faults)
    if found is not None:
        _check_service(found.value, faults)
    return found.value if found else None


def _check_service(job: Section, faults: Faults) -> None:
    """Report keys that mean nothing for a workload that does not end by itself."""
    read = job.get(js.MANIFEST)
    if read is None or not read.found.kind.service:
        return
    kind = read.found.kind.kind
    keys: tuple[Key[Any], ...] = (js.RETRIES, js.TIME)
    for key in keys:
        if (given := job.found(key)) is not None:
            message = f"a {kind} does not end by itself, so it has no {key.name}"
            hint = f"remove {key.name}; end it with  fairway cancel"
            faults.add(FaultCode.UNSUPPORTED_OPTION, given.location, message, hint=hint)


def _with(node: Node, given: MappingNode) -> Node:
    """Return the job with `given` keys replaced; environment variables and labels are merged."""
    if not isinstance(node, MappingNode) or not given.entries:
        return node
    keys = {entry.key.text: entry for entry in node.entries}
    for entry in given.entries:
        name = entry.key.text
        if name in ("command", "script"):
            keys.pop("command", None)
            keys.pop("script", None)
        own = keys.get(name)
        if (
            name in {"env", "labels"}
            and own
            and isinstance(own.value, MappingNode)
            and isinstance(entry.value, MappingNode)
        ):
            variables = {e.key.text: e for e in (*own.value.entries, *entry.value.entries)}
            weight = own.value.weight + entry.value.weight
            merged = MappingNode(own.value.mark, tuple(variables.values()), weight)
            keys[name] = MappingEntry(own.key, merged)
        else:
            keys[name] = entry
    return MappingNode(node.mark, tuple(keys.values()), node.weight + given.weight)


def _build(job: Section) -> JobSpec:
    team, priority, pool = job.get(js.TEAM), job.get(js.PRIORITY), job.get(js.POOL)
    memory, retries = job.get(js.MEMORY), job.get(js.RETRIES)
    read = job.get(js.MANIFEST)
    return JobSpec(
        name=job.require(js.JOB_NAME) if read is None else as_manifest_name(job.require(js.JOB_NAME)),
        gpus=job.require(js.GPUS) if read is None else read.found.gpus,
        command=job.get(js.COMMAND) or (),
        script=job.get(js.SCRIPT),
        team=TeamName(team) if team else None,
        priority=PriorityName(priority) if priority else None,
        pool=PoolName(pool) if pool else None,
        nodes=(job.get(js.NODES) or 1) if read is None else read.found.pods,
        cpus=job.get(js.CPUS),
        memory_gb=int(memory.removesuffix("GB")) if memory else None,
        time_seconds=job.get(js.TIME),
        image=job.get(js.IMAGE_KEY),
        setup=job.get(js.SETUP),
        env=MappingProxyType({name: found.value for name, found in (job.get(js.ENV) or {}).items()}),
        workdir=job.get(js.WORKDIR_KEY),
        array=job.get(js.ARRAY) or (),
        after=tuple(found.value for found in job.get(js.AFTER) or ()),
        retries=retries if retries is not None else Retries(),
        tolerates=frozenset(found.value for found in job.get(js.TOLERATES) or ()),
        together=job.get(js.TOGETHER) is not None,
        manifest=None if read is None else read.text,
        all_devices=None if read is None else read.found.devices,
        project=job.get(js.PROJECT),
        labels=MappingProxyType({key: found.value for key, found in (job.get(js.LABELS) or {}).items()}),
    )
