"""Define the JSON of jobs, their attempts, events and logs. A job's id is text: `8f3k`."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import ConfigDict, Field, PrivateAttr, RootModel, model_validator

from fairway.model.cost_unit import MAX_TOTAL, MAX_UNITS, UNIT_PATTERN
from fairway.model.idle import IdleAction, IdleOutcome
from fairway.model.job import (
    MAX_TASKS,
    Ending,
    JobId,
    JobState,
    Tolerates,
    When,
    format_job_id,
    parse_job_id,
)
from fairway.model.job import After as AfterJob
from fairway.model.job import GpuRequest as GpusAsked
from fairway.model.job import JobSpec as Spec
from fairway.model.job import Retries as RetryRule
from fairway.model.labels import (
    LABEL_KEY_PATTERN,
    LABEL_VALUE_PATTERN,
    MAX_LABEL_LENGTH,
    MAX_LABELS,
    is_reserved_key,
)
from fairway.model.manifest import (
    Manifest,
    as_manifest_name,
    decode_manifest,
    encode_manifest,
    read_manifest,
    without_placement,
)
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName
from fairway.model.price import money_text
from fairway.wire.fleet import USER_PATTERN, Moment, Price, RequestBody, Wire
from fairway.wire.gpu_use import Use

MAX_JOBS: Final = 10_000
"""Of one request, tasks of arrays counted."""
MAX_MANIFESTS: Final = 20
"""Of one request: each takes up to 40 ms to check."""
MAX_SCRIPT: Final = 1024 * 1024
MAX_SPEC: Final = 1024 * 1024
"""Of all texts of one job together; it is stored with it."""
MAX_STATES: Final = 500
"""Jobs whose states one request returns."""
MAX_LOG_BYTES: Final = 1024 * 1024
"""Of one part of a log."""
MAX_TEXT: Final = 128 * 1024
"""Of one argument or one variable: Linux passes no longer one to a program."""
MAX_SECONDS: Final = 10 * 366 * 86_400

# PostgreSQL has no text with a NUL in it, and no program gets one passed.
_NO_NUL: Final = r"^[^\x00]*$"
_ONE_LINE: Final = r"^[^\x00-\x1f\x7f]+$"
JobReference = Annotated[
    str,
    Field(min_length=1, max_length=300, description="an id, an engine id or a name", examples=["8f3k"]),
]
UserText = Annotated[str, Field(max_length=64, pattern=USER_PATTERN)]
_Name = Annotated[str, Field(min_length=1, max_length=253, pattern=_ONE_LINE)]
_Text = Annotated[str, Field(max_length=MAX_TEXT, pattern=_NO_NUL)]
_Path = Annotated[str, Field(min_length=1, max_length=4096, pattern=_ONE_LINE)]
_Variable = Annotated[str, Field(max_length=255, pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
_Label = Annotated[str, Field(max_length=MAX_LABEL_LENGTH, pattern=f"^{LABEL_VALUE_PATTERN}$")]
_LabelKey = Annotated[str, Field(max_length=MAX_LABEL_LENGTH, pattern=f"^{LABEL_KEY_PATTERN}$")]
_Index = Annotated[int, Field(ge=0, lt=10**9)]
_MAX_PROBLEMS: Final = 10
_NOT_WITH_MANIFEST: Final = (
    "command", "script", "cpus", "memory_gb", "image", "setup", "env", "workdir", "array", "together",
)  # fmt: skip


class MemoryRange(RequestBody):
    """How much memory each GPU should have."""

    least: int = Field(ge=1, le=10_000)
    most: int | None = Field(default=None, ge=1, le=10_000, description="null: any more")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.most is not None and self.most < self.least:
            raise ValueError("most is below least")
        return self


class GpuRequest(RequestBody):
    """The GPUs or slices a job asks for on each node. At most one of model, memory_gb and slice."""

    count: int = Field(default=1, ge=1, le=1024)
    model: _Name | None = Field(
        default=None, examples=["A100-80GB"], description="a GPU type, or the beginning of some"
    )
    memory_gb: MemoryRange | None = None
    slice: _Name | None = Field(default=None, examples=["1g.10gb"], description="a MIG profile")

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if sum(kind is not None for kind in (self.model, self.memory_gb, self.slice)) > 1:
            raise ValueError("say one of model, memory_gb and slice, not several")
        return self

    @classmethod
    def from_model(cls, gpus: GpusAsked) -> Self:
        """Convert from the model's type."""
        memory = gpus.memory_gb
        return cls(
            count=gpus.count,
            model=gpus.model,
            memory_gb=MemoryRange(least=memory[0], most=memory[1]) if memory else None,
            slice=gpus.slice,
        )


class Retries(RequestBody):
    """How often a failed job comes back, and after how long: doubled each time, bounded."""

    count: int = Field(default=0, ge=0, le=1000)
    first_seconds: int = Field(default=30, ge=1, le=MAX_SECONDS)
    longest_seconds: int = Field(default=3600, ge=1, le=MAX_SECONDS)


class After(RequestBody):
    """A job, or by its first task a whole array, that must have ended first."""

    job: JobReference
    when: When = When.OK


class JobSpec(RequestBody):
    """What a person asks for."""

    name: str = Field(min_length=1, max_length=200, pattern=_ONE_LINE, examples=["train-llm"])
    gpus: GpuRequest = GpuRequest()
    command: list[_Text] = Field(
        default_factory=list,
        max_length=4096,
        description="argument by argument, without a shell; either this or script",
    )
    script: str | None = Field(
        default=None, max_length=MAX_SCRIPT, pattern=_NO_NUL, description="a whole script with its #! line"
    )
    team: _Name | None = Field(default=None, description="null: the user's default team")
    project: _Label | None = Field(
        default=None,
        exclude_if=lambda project: project is None,  # as of `manifest`
        description="what its cost is for; a team may allow only some",
        examples=["llm"],
    )
    labels: dict[_LabelKey, _Label] = Field(
        default_factory=dict,
        max_length=MAX_LABELS,
        exclude_if=lambda labels: not labels,
        description="reports can group by those in the fleet file's cost.labels",
        examples=[{"experiment": "e12"}],
    )
    priority: _Name | None = Field(default=None, description="null: the fleet's default one")
    pool: _Name | None = Field(default=None, description="null: Fairway picks")
    nodes: int = Field(default=1, ge=1, le=10_000, description="more than one: they start all or none")
    cpus: int | None = Field(default=None, ge=1, le=10_000, description="on each node")
    memory_gb: int | None = Field(default=None, ge=1, le=1_000_000, description="on each node")
    time_seconds: int | None = Field(default=None, ge=1, le=MAX_SECONDS, description="null: the team's")
    image: str | None = Field(default=None, min_length=1, max_length=1000, pattern=_ONE_LINE)
    setup: _Text | None = Field(default=None, description="shell lines before the command")
    env: dict[_Variable, _Text] = Field(default_factory=dict, max_length=1000)
    workdir: _Path | None = None
    array: list[_Index] = Field(
        default_factory=list, max_length=MAX_TASKS, description="a task for each index; empty: one job"
    )
    after: list[After] = Field(default_factory=list, max_length=1000)
    retries: Retries = Retries()
    tolerates: list[Tolerates] = Field(default_factory=list, max_length=10)
    together: bool = Field(default=False, description="all nodes in one rack, or wait")
    manifest: dict[str, Any] | None = Field(
        default=None,
        exclude_if=lambda manifest: manifest is None,  # servers before 0.2 reject a key that they do not know
        description="a whole Kubernetes object of a registered kind, instead of command and script; it says "
        "how many GPUs and nodes the job has",
    )
    _found: Manifest | None = PrivateAttr(default=None)
    """What the manifest requests, once it was checked."""

    @model_validator(mode="after")
    def _something_to_run(self) -> Self:
        if self.manifest is not None:
            self._check_manifest(self.manifest)
        elif bool(self.command) == (self.script is not None):
            raise ValueError("say what to run: either command or script")
        texts = (self.script or "", self.setup or "", *self.command, *self.env, *self.env.values())
        if sum(map(len, texts)) > MAX_SPEC:
            raise ValueError(f"script, command, setup and env are longer than {MAX_SPEC} characters together")
        if reserved := [key for key in self.labels if is_reserved_key(key)]:
            raise ValueError(f"labels: {reserved[0]} is reserved")
        if len(set(self.array)) != len(self.array):
            raise ValueError("array holds an index twice")
        return self

    def _check_manifest(self, manifest: dict[str, Any]) -> None:
        found, problems = read_manifest(manifest)
        self._found = found
        if found is None:
            texts = [f"{p.where}: {p.message} ({p.hint})" for p in problems[:_MAX_PROBLEMS]]
            raise ValueError("; ".join(texts))
        others = [name for name in _NOT_WITH_MANIFEST if getattr(self, name)]
        if others:
            raise ValueError(f"{', '.join(others)} cannot be set beside a manifest, which has its own")
        if found.kind.service and (self.retries.count or self.time_seconds):
            raise ValueError(f"retries and time are for jobs that end, and a {found.kind.kind} does not")
        for what, given, own in (
            ("team", self.team, found.namespace),
            ("priority", self.priority, found.priority),
        ):
            if given and own and given != own:
                raise ValueError(f"the manifest is of {what} {own}, and the request of {what} {given}")

    @property
    def tasks(self) -> int:
        """Return the number of jobs that it becomes."""
        return len(self.array) or 1

    def to_model(self) -> Spec:
        """Convert to the model's type."""
        gpus = self.gpus
        memory = gpus.memory_gb
        if self.manifest is not None:
            return self._manifest_model(self.manifest)
        return Spec(
            name=self.name,
            gpus=GpusAsked(
                gpus.count,
                gpus.model,
                (memory.least, memory.most) if memory else None,
                SliceName(gpus.slice) if gpus.slice else None,
            ),
            command=tuple(self.command),
            script=self.script,
            team=TeamName(self.team) if self.team else None,
            project=self.project,
            labels=dict(self.labels),
            priority=PriorityName(self.priority) if self.priority else None,
            pool=PoolName(self.pool) if self.pool else None,
            nodes=self.nodes,
            cpus=self.cpus,
            memory_gb=self.memory_gb,
            time_seconds=self.time_seconds,
            image=self.image,
            setup=self.setup,
            env=dict(self.env),
            workdir=self.workdir,
            array=tuple(self.array),
            after=tuple(AfterJob(_number(a.job), a.when) for a in self.after),
            retries=RetryRule(self.retries.count, self.retries.first_seconds, self.retries.longest_seconds),
            tolerates=frozenset(self.tolerates),
            together=self.together,
        )

    def _manifest_model(self, manifest: dict[str, Any]) -> Spec:
        """Convert a manifest: what it requests is read from it, whatever the caller says."""
        found = self._found or read_manifest(manifest)[0]
        if found is None:
            raise ValueError("the manifest was checked before")
        team, priority = self.team or found.namespace, self.priority or found.priority
        return Spec(
            name=as_manifest_name(self.name) or found.name,
            gpus=found.gpus,
            team=TeamName(team) if team else None,
            project=self.project,
            labels=dict(self.labels),
            priority=PriorityName(priority) if priority else None,
            pool=PoolName(self.pool) if self.pool else None,
            nodes=found.pods,
            time_seconds=self.time_seconds,
            after=tuple(AfterJob(_number(a.job), a.when) for a in self.after),
            retries=RetryRule(self.retries.count, self.retries.first_seconds, self.retries.longest_seconds),
            tolerates=frozenset(self.tolerates),
            manifest=encode_manifest(without_placement(manifest)),
            all_devices=found.devices,
        )

    @classmethod
    def from_model(cls, spec: Spec) -> JobSpec:
        """Convert from the model's type."""
        values = dict[str, Any](
            name=spec.name,
            gpus=GpuRequest.from_model(spec.gpus),
            command=list(spec.command),
            script=spec.script,
            team=spec.team,
            project=spec.project,
            labels=dict(spec.labels),
            priority=spec.priority,
            pool=spec.pool,
            nodes=spec.nodes,
            cpus=spec.cpus,
            memory_gb=spec.memory_gb,
            time_seconds=spec.time_seconds,
            image=spec.image,
            setup=spec.setup,
            env=dict(spec.env),
            workdir=spec.workdir,
            array=list(spec.array),
            after=[After(job=format_job_id(a.job), when=a.when) for a in spec.after],
            retries=Retries(
                count=spec.retries.count,
                first_seconds=spec.retries.first_seconds,
                longest_seconds=spec.retries.longest_seconds,
            ),
            tolerates=sorted(spec.tolerates),
            together=spec.together,
            manifest=decode_manifest(spec.manifest) if spec.manifest is not None else None,
        )
        # A manifest was checked when it was submitted; a later release may be stricter, and shows it anyway.
        return cls(**values) if spec.manifest is None else cls.model_construct(**values)


class SubmitRequest(RequestBody):
    """Keep these jobs and see to it that they run."""

    jobs: list[JobSpec] = Field(min_length=1, max_length=MAX_JOBS)
    key: str | None = Field(
        default=None,
        min_length=1,
        max_length=200,
        pattern=_ONE_LINE,
        description="the same key again gives the same jobs again, and makes none",
    )
    as_user: UserText | None = Field(
        default=None, alias="as", description="whose jobs they are; null: yours. Others' need an operator"
    )
    hold: bool = Field(default=False, description="they wait until somebody releases them")

    model_config = ConfigDict(populate_by_name=True)

    @model_validator(mode="before")
    @classmethod
    def _few_manifests(cls, data: Any) -> Any:
        """Count manifests before any of them is checked."""
        jobs = data.get("jobs") if isinstance(data, dict) else None
        found = (
            [job.get("manifest") for job in jobs if isinstance(job, dict)] if isinstance(jobs, list) else []
        )
        if len(found) - found.count(None) > MAX_MANIFESTS:
            raise ValueError(f"at most {MAX_MANIFESTS} manifests in one request")
        return data

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if sum(job.tasks for job in self.jobs) > MAX_JOBS:
            raise ValueError(f"at most {MAX_JOBS} jobs in one request, tasks of arrays counted")
        return self


class DryRunRequest(RequestBody):
    """Say what would become of this job."""

    job: JobSpec
    as_user: UserText | None = Field(default=None, alias="as", description="whose job; null: yours")

    model_config = ConfigDict(populate_by_name=True)


class ChangeRequest(RequestBody):
    """Do something with these jobs: all of them, or none if one of them may not be changed."""

    jobs: list[JobReference] = Field(
        min_length=1,
        max_length=MAX_JOBS,
        description="the first task of an array stands for all of it",
    )


class JobChangeRequest(RequestBody):
    """Change a job that has not started; what is null stays as it is."""

    pool: _Name | None = Field(default=None, description="the pool to wait for")
    gpus: int | None = Field(default=None, ge=1, le=1024, description="GPUs or slices on each node")
    nodes: int | None = Field(default=None, ge=1, le=10_000)
    time_seconds: int | None = Field(default=None, ge=1, le=MAX_SECONDS, description="the time limit")
    priority: _Name | None = None
    dry_run: bool = Field(default=False, description="check everything, and change nothing")

    @model_validator(mode="after")
    def _something(self) -> Self:
        wanted = (self.pool, self.gpus, self.nodes, self.time_seconds, self.priority)
        if all(value is None for value in wanted):
            raise ValueError("say what to change: pool, gpus, nodes, time_seconds or priority")
        return self


class KeepRequest(ChangeRequest):
    """Have idle rules leave these jobs alone: all of them, or none if one of them may not be changed."""

    seconds: int = Field(
        ge=60, le=30 * 86_400, description="from now; longest_keep of the fleet file bounds it"
    )
    reason: str = Field(default="", max_length=200)


class Kept(Wire):
    """What came of keep."""

    kept: list[str] = Field(description="jobs that idle rules leave alone")
    over: list[str] = Field(description="jobs that have ended")
    until: Moment


UnitName = Annotated[str, Field(pattern=UNIT_PATTERN, examples=["steps"])]
UnitTotal = Annotated[int, Field(ge=0, le=MAX_TOTAL, examples=[120_000])]


class CountsRequest(RootModel[dict[UnitName, UnitTotal]]):
    """How much a job has done since it began, by unit. The highest total of each unit counts."""

    model_config = ConfigDict(frozen=True)
    root: dict[UnitName, UnitTotal] = Field(
        min_length=1, max_length=MAX_UNITS, examples=[{"steps": 120_000, "tokens": 491_520_000}]
    )


class Counts(Wire):
    """What a job has counted."""

    job: str = Field(description="its id")
    counts: dict[str, int] = Field(description="the highest total of each unit that it ever reported")
    added: dict[str, int] = Field(description="what this report added to the counts of today, by unit")


class Placement(Wire):
    """Where a job goes, and why there."""

    cluster: str
    pool: str
    slice: str | None
    why: str


class SubmittedJob(Wire):
    """A job that was kept, or the tasks of one with an array."""

    id: str = Field(description="of the job, or of the first task", examples=["8f3k"])
    ids: list[str] = Field(description="of every task, in the order of the array")
    name: str
    placement: Placement


class Submitted(Wire):
    """What was kept, job by job in the order asked."""

    jobs: list[SubmittedJob]


class PlaceOption(Placement):
    """A pool that fits; `why` is how it stands there now."""


class DryRun(Wire):
    """What would become of a job. Nothing was kept."""

    could_run: bool
    why: str = Field(description="one sentence: where it would go and why, or why it could never run")
    hint: str = Field(description="what would help, if it could never run")
    placement: Placement | None
    options: list[PlaceOption] = Field(description="every pool that fits, the best first")
    preview: str = Field(description="what would be sent to the engine, for people to read")


class JobCost(Wire):
    """The cost of a job so far: the GPUs or slices it held, at the price of its pool at that time."""

    amount: Price = Field(examples=["53.33"])
    currency: str
    per_hour: Price | None = Field(
        default=None, description="cost per hour at the current price; null: the job is not running"
    )
    device_seconds: int = Field(default=0, description="GPU-seconds, or slice-seconds, that it held")
    about: bool = Field(
        description="an estimate: the pool has commitments, or slices without a price of their own"
    )

    def __str__(self) -> str:
        """Format it: `12.40 USD so far, 3.50 USD per hour`; of a job that has ended, `12.40 USD`."""
        text = ("about " if self.about else "") + money_text(self.amount, self.currency)
        if self.per_hour is None:
            return text
        return f"{text} so far, {money_text(self.per_hour, self.currency)} per hour"

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self}>"


class Job(Wire):
    """One job, Fairway's or native."""

    id: str = Field(examples=["8f3k"])
    name: str
    cluster: str
    user: str
    team: str | None = Field(description="null: of no team of the fleet")
    project: str | None = None
    labels: dict[str, str] = Field(default={}, description="of the keys that the fleet keeps for cost")
    priority: str | None
    pool: str | None = Field(description="null: no GPUs, or of no pool of the fleet")
    slice: str | None
    kind: str = Field(
        default="",
        description="the kind of workload on Kubernetes; empty: a job",
        examples=["Deployment"],
    )
    service: bool = Field(default=False, description="it runs until somebody ends it")
    gpus: int = Field(description="or slices, asked for on each node; of a service, for each replica")
    nodes: int = Field(description="of a service, the replicas it wants")
    replicas: int | None = Field(
        default=None, description="replicas that run now; null: it has one attempt at a time"
    )
    devices: int = Field(description="GPUs or slices of the whole job; of a service, of replicas that run")
    state: JobState
    desired_state: str = Field(description="what people asked for last: run, hold or cancel")
    code: str = Field(
        description="why it waits, is not sent, was refused or did not start: stable, for scripts; empty: it "
        "has no reason, or one without a code"
    )
    reason: str = Field(description="why it waits or how it ended")
    reason_at: Moment | None = Field(
        default=None, description="when the engine last reported the reason; null: it does not wait there"
    )
    engine_reason: str = Field(
        default="", description="the engine's own text for why it waits or how it ended; empty: none"
    )
    hint: str = Field(default="", description="what would help; empty: nothing")
    last_seen_at: Moment | None = Field(
        default=None,
        description="its cluster is no longer in the fleet: the state is as of then; null: it is tracked",
    )
    native: bool = Field(description="not submitted through Fairway")
    engine_id: str | None = Field(description="null: no engine job yet")
    array: str | None = Field(description="the first task of its array")
    array_index: int | None
    attempt_count: int = Field(description="how often an engine started it, or one of its replicas")
    submitted_at: Moment
    started_at: Moment | None = Field(description="of the last attempt; of a service, of its first replica")
    ended_at: Moment | None
    exit_code: int | None
    time_seconds: int | None
    use: Use | None = Field(
        default=None,
        description="what its GPUs did; null: it held none, or no metrics of its cluster are read",
    )
    cost: JobCost | None = Field(
        default=None, description="null: it never ran, has no pool, or the caller may not see its team's cost"
    )

    def __repr__(self) -> str:
        gpus = f"{self.devices} {self.slice or 'GPU'}{'' if self.devices == 1 else 's'}"
        where = self.pool or self.cluster
        return f"<{type(self).__name__} {self.id} {self.name}: {self.state}, {gpus} on {where}>"

    def shown(self) -> dict[str, Any]:
        """Return what a table of jobs shows of it."""
        return {
            "job": self.id,
            "name": self.name if self.array_index is None else f"{self.name}[{self.array_index}]",
            "kind": self.kind or None,
            "state": self.state.value,
            "gpus": f"{self.nodes}x{self.gpus}" if self.nodes > 1 else str(self.gpus),
            "pool": (self.pool or self.cluster) + (f"/{self.slice}" if self.slice else ""),
            "team": self.team,
            "user": self.user,
            "submitted": self.submitted_at,
            "started": self.started_at,
            "ended": self.ended_at,
            "cost": None if self.cost is None else str(self.cost),
            "reason": self.reason or None,
        }


class Attempt(Wire):
    """One run of a job on its engine, by the engine's own clock."""

    number: int = Field(description="from 1")
    engine_id: str
    started_at: Moment
    ended_at: Moment | None = Field(description="null: it runs")
    ending: Ending | None
    nodes: list[str]
    devices: int
    exit_code: int | None
    signal: int | None
    reason: str
    replica: str = Field(default="", description="its pod, of a job with replicas: several run at once")


class Event(Wire):
    """One line of a job's timeline that is not an engine's doing."""

    at: Moment
    kind: str
    by: str
    text: str


class IdleStatus(Wire):
    """What idle rules do to a running job next, unless it works again."""

    kept_until: Moment | None = Field(description="idle rules leave it alone until then; null: nobody asked")
    kept_by: str
    kept_for: str = Field(description="the reason that was given")
    rule: str | None = Field(description="the rule that holds; null: the job is not idle")
    action: IdleAction | None = Field(description="the rule's next step; null: none")
    due_at: Moment | None = Field(description="when that is taken at the earliest")
    dry_run: bool = Field(description="the step is only recorded")
    evidence: str
    longest_keep_seconds: int = Field(description="for how long `keep` postpones the rules at most")


class IdleStep(Wire):
    """What an idle rule did to a job, or would have done."""

    id: int
    at: Moment
    cluster: str
    job: str = Field(examples=["8f3k"])
    name: str
    user: str
    team: str | None
    rule: str
    action: IdleAction
    outcome: IdleOutcome | None = Field(description="null: the engine has not answered yet")
    detail: str = Field(description="why it was skipped or refused")
    idle_since: Moment
    evidence: str


class JobDetail(Job):
    """One job with all that is known of it."""

    spec: JobSpec | None = Field(description="how it was asked for; null: see spec_note")
    spec_note: str = Field(description="why spec is null; empty: it is not")
    placement_reason: str
    engine_name: str | None
    submission: int = Field(description="which time Fairway sent it, from 1; 0: not yet, or native")
    attempts: list[Attempt] = Field(description="oldest first")
    events: list[Event] = Field(description="the newest 200, oldest first")
    idle: IdleStatus | None = Field(
        default=None, description="what idle rules do next; null: the job is neither idle nor kept"
    )
    counts: dict[str, int] = Field(
        default={}, description="what it reported to have done so far, by unit", examples=[{"steps": 120_000}]
    )


class WhyReason(Wire):
    """One reason why a job does not start, or why it ended."""

    code: str = Field(
        examples=["TeamAtCeiling"], description="stable, for scripts; empty: the engine's text has no code"
    )
    text: str = Field(description="what it means, for people")
    hint: str = Field(description="what would help; empty: nothing")
    engine: str = Field(description="the engine's own text, if it differs; empty: none")
    evidence: list[str] = Field(
        default=[],
        examples=[["bob holds 24 GPUs with 3 jobs: 8f1a, 8f1b, 8f1c"]],
        description="who holds what, or which jobs, nodes and limits prove it",
    )


class Diagnosis(Wire):
    """What limits a job's use of its GPUs."""

    code: str = Field(examples=["CpuBound"], description="stays the same, for scripts to match on")
    text: str = Field(description="what it means, for people")
    evidence: list[str] = Field(description="the figures that show it, each with its threshold")
    confidence: Literal["low", "medium", "high"] = Field(
        description="from the distance to the thresholds, and from how much was measured"
    )
    hint: str = Field(description="what to change, with flags for this job")


class RightSize(Wire):
    """A smaller request that would have been enough for the last jobs of one name."""

    pattern: str = Field(examples=["finetune-*"], description="the name without counters at its end")
    jobs: int = Field(description="jobs that it is based on; it would have been enough for each of them")
    request: str = Field(examples=["--gpus 1g.10gb"], description="flags of the smaller request")
    saved_gpu_hours: float = Field(description="not held with it; a slice counts as its part of a GPU")
    saved_money: Price | None = Field(description="null: not for the caller to see")
    saved_wait_seconds: float | None = Field(description="null: not known, or none")
    text: str = Field(description="the same in a sentence")


class QueuedJob(Wire):
    """Another job that waits for or uses the same GPUs."""

    id: str = Field(examples=["8f3k"])
    name: str
    user: str
    team: str | None
    devices: int = Field(description="GPUs or slices of the whole job")
    ends_at: Moment | None = Field(description="when its time limit ends it; null: it waits, or has none")


class JobQueue(Wire):
    """The place of a waiting job among those that wait for the same GPUs, in the engine's present order."""

    position: int = Field(description="1: it is next")
    waiting: int = Field(description="jobs that wait for the same GPUs, this one included")
    devices_ahead: int = Field(default=0, description="GPUs or slices that the jobs ahead request")
    team_ahead: int = Field(default=0, description="jobs of the same team among those ahead")
    team_devices_ahead: int = Field(default=0, description="GPUs or slices that these request")
    ahead: list[QueuedJob] = Field(description="the first jobs ahead of it, in order; at most five")
    ending: list[QueuedJob] = Field(
        description="running jobs on the same GPUs whose time limit ends soonest; at most three"
    )


class Alternative(Wire):
    """A change that would let a waiting job start sooner, verified before it is offered."""

    kind: Literal["move", "resize", "set-time", "set-priority", "wait", "limit"] = Field(
        default="resize", description="what changes: the pool, the GPUs, the time limit, …; `wait`: nothing"
    )
    text: str = Field(examples=["4 GPUs instead of 8"])
    command: str = Field(examples=["fairway resize 8f3k --gpus 4"])
    effect: str = Field(
        default="starts now", examples=["starts now", "in 5 to 20 min"], description="what it would do"
    )
    starts_now: bool = Field(default=True, description="whether it would start at once")
    starts_within_seconds: float | None = Field(
        default=None, description="it would start within this time in 19 of 20 futures; null: at once"
    )
    sooner_seconds: float | None = Field(
        default=None, description="how much earlier than without it, on average; null: not known"
    )
    pool: str
    slice: str | None
    gpus: int = Field(description="on each node")
    nodes: int
    price_change: Price | None = Field(description="per GPU-hour; null: the price is the same")


class ForecastStart(Wire):
    """When a waiting job is expected to start, by simulated futures, or why nobody can know."""

    earliest: Moment | None = Field(description="a tenth of the futures have it start by then")
    expected: Moment | None = Field(description="half of the futures have it start by then")
    latest: Moment | None = Field(
        description="nine tenths of the futures have it start by then; null: it is beyond what they reach"
    )
    confidence: float = Field(default=0.8, description="of the range from `earliest` to `latest`")
    started: float = Field(default=0.0, description="the part of the futures in which it starts at all")
    futures: int = Field(default=0, description="how many were simulated")
    computed_at: Moment | None = Field(default=None, description="of which moment they are")
    age_seconds: float | None = Field(default=None, description="how long ago that was")
    samples: int = Field(default=0, description="finished jobs that its own run time is predicted from")
    source: str = Field(default="", description="whose jobs these are", examples=["jobs of alice"])
    unknown: str = Field(default="", description="why nobody can know; empty: there is a forecast")


class Why(Wire):
    """Why a job waits; for one that runs or has ended, its state."""

    id: str = Field(examples=["8f3k"])
    name: str
    state: JobState
    summary: str = Field(description="the state of the job in one sentence")
    cluster: str
    pool: str | None
    slice: str | None
    nodes: list[str] = Field(description="where it runs, or ran last; empty: it never started")
    submitted_at: Moment
    started_at: Moment | None = Field(description="of the last attempt")
    ended_at: Moment | None
    reasons: list[WhyReason] = Field(
        description="why it does not start, in the order in which the reasons bind: each would remain if "
        "those before it were lifted; or why it ended; may be empty"
    )
    queue: JobQueue | None = Field(default=None, description="null: the job does not wait in a queue")
    expected: ForecastStart | None = Field(
        default=None, description="when it is expected to start; null: the job has started"
    )
    alternatives: list[Alternative] = Field(
        default=[], description="what would help, each verified in the model; the best first"
    )
    alternatives_pending: bool = Field(
        default=False, description="what would help is still being verified: ask again in some seconds"
    )
    diagnosis: Diagnosis | None = Field(
        default=None,
        description="what limits the use of its GPUs in the last hours or, if it has ended, what limited it; "
        "null: nothing to report, or its cluster has no telemetry",
    )
    use: Use | None = Field(
        default=None,
        description="what its GPUs did; null: it held none, or no metrics of its cluster are read",
    )
    cost: JobCost | None = Field(
        default=None, description="null: it never ran, has no pool, or the caller may not see its team's cost"
    )
    right_size: RightSize | None = Field(
        default=None, description="what the next job of this name should request; null: the same"
    )


class WaitSum(Wire):
    """The jobs that wait for the same reason."""

    code: str = Field(description="a reason code; empty: no reason is known yet")
    text: str = Field(description="what the reason means")
    hint: str = Field(description="what to do about it")
    jobs: int
    devices: int = Field(description="GPUs or slices that they request")
    gpu_hours: float = Field(description="devices times the hours since the submission")
    largest: list[str] = Field(description="at most three of the jobs, the most GPU-hours first")


class WaitSums(Wire):
    """What keeps jobs from starting, the most GPU-hours first."""

    reasons: list[WaitSum]


class Changed(Wire):
    """What came of cancel, hold or release."""

    changed: list[str] = Field(description="jobs that were changed; for an array, all its open tasks")
    unchanged: list[str] = Field(description="jobs that have ended, or were in this state already")


class ChangedValue(Wire):
    """One value of a job before and after a change."""

    name: str = Field(examples=["GPUs"])
    before: str = Field(examples=["8"])
    after: str = Field(examples=["4"])


class JobChanged(Wire):
    """What came of a change of a waiting job."""

    id: str = Field(examples=["8f3k"])
    requested: bool = Field(
        description="the change was stored, and is made at once, on the job's cluster too if it is there "
        "already; false: a dry run, or the job is so already"
    )
    changes: list[ChangedValue] = Field(description="empty: the job is so already")
    placement: Placement = Field(description="where it waits after the change")


class JobStates(Wire):
    """The states of some jobs."""

    states: dict[str, JobState] = Field(description="by id, as it was given")


class TaskCounts(Wire):
    """The tasks of an array by state; states without any are left out."""

    tasks: int
    counts: dict[JobState, int]


class LogPart(Wire):
    """A piece of what a job printed."""

    attempt: int = Field(description="from 1; 0: none has started yet")
    text: str = Field(description="bytes that are no UTF-8 show as U+FFFD")
    offset: int = Field(description="in bytes, where this piece begins")
    next_offset: int = Field(description="ask for this next")
    ended: bool = Field(description="no more will come of this attempt")


class JobCount(Wire):
    """How many open jobs of a team stand on a supply in a state."""

    cluster: str
    team: str | None
    pool: str | None
    slice: str | None
    state: JobState
    jobs: int
    devices: int = Field(description="GPUs or slices they hold or ask for")


class JobCounts(Wire):
    """Open jobs, counted."""

    counts: list[JobCount]


def _number(word: str) -> JobId:
    return parse_job_id(word) or JobId(0)  # the server has replaced names by ids
