"""Define the JSON of policy: plans, applies, drift, teams and interventions."""

from __future__ import annotations

from typing import Annotated, Any, Final

from pydantic import Field

from fairway.model.apply import ApplyKind, ApplyState, DriftKind
from fairway.model.fleet import EngineKind
from fairway.policy.objects import Action
from fairway.policy.removals import RemovalKind
from fairway.wire.fleet import Fault, Moment, Page, RequestBody, Wire

MAX_FLEET_CHARACTERS: Final = 1024 * 1024
MAX_FLEET_BYTES: Final = 4 * 1024 * 1024
"""Of a request with a fleet file: a thousand teams exceed the usual limit, and JSON may escape characters."""
MAX_NAMES: Final = 1000
"""Objects that one adoption may name, clusters a request may name."""

Value = str | int | bool | list[Any] | None
"""What a field of an engine's object holds; null: not set."""
ClusterName = Annotated[str, Field(min_length=1, max_length=253)]
_Fingerprint = Annotated[str, Field(max_length=100, pattern=r"^[0-9A-Za-z:_-]*$")]


class FleetRequest(RequestBody):
    """A fleet file, as text."""

    fleet: str = Field(
        min_length=1,
        max_length=MAX_FLEET_CHARACTERS,
        description="the fleet file; relative paths in it count from the server's folder",
    )
    source: str = Field(
        default="fleet.yaml",
        max_length=300,
        pattern=r"^[^\x00-\x1f\x7f]+$",
        description="what to call the file in faults",
    )


class PlanRequest(FleetRequest):
    """Plan this fleet."""

    cluster: ClusterName | None = Field(default=None, description="only this cluster; null: all")


class ApplyRequest(FleetRequest):
    """Make a planned fleet so."""

    fingerprints: dict[ClusterName, _Fingerprint] = Field(
        min_length=1,
        max_length=MAX_NAMES,
        description="of the plan that was read, by cluster; clusters that are not named stay as they are",
    )
    force: bool = Field(default=False, description="overrule the objections that can be overruled")
    reprice_past: bool = Field(
        default=False,
        description="apply although charges of closed months change: the next statement corrects them",
    )
    confirmed: list[Annotated[str, Field(min_length=1, max_length=253)]] = Field(
        default_factory=list,
        max_length=MAX_NAMES,
        description="names of what may be removed, as the plan's removals name them; force confirms all",
    )


class RenderRequest(FleetRequest):
    """Write the files of an engine that Fairway does not write itself."""

    cluster: ClusterName


class ObjectRef(Wire):
    """One object of a cluster, in the engine's own words."""

    kind: str = Field(min_length=1, max_length=100, pattern=r"^[^\x00]*$", examples=["qos"])
    name: str = Field(min_length=1, max_length=600, pattern=r"^[^\x00]*$", examples=["research_own"])


class AdoptionRequest(RequestBody):
    """Put Fairway's mark on these objects."""

    cluster: ClusterName
    objects: list[ObjectRef] = Field(min_length=1, max_length=MAX_NAMES)


class LeaveRequest(RequestBody):
    """Return a cluster to its state before Fairway."""

    cluster: ClusterName
    fingerprint: _Fingerprint = Field(
        default="", description="of the plan that was read; a plan request leaves it out"
    )


class ReleaseRequest(RequestBody):
    """Lift every guard of a cluster."""

    cluster: ClusterName


class ImportRequest(RequestBody):
    """Read what people made by hand on a cluster."""

    cluster: ClusterName


class FieldDiff(Wire):
    """A difference between two fleets, in the words of the fleet file."""

    team: str | None = Field(description="whose; null: the fleet's", examples=["nlp"])
    sign: str = Field(description="+ new, - gone, ~ other", examples=["~"])
    what: str = Field(examples=["guarantee on hpc-a100"])
    before: str | None
    after: str | None


class FieldChange(Wire):
    """One field of an engine's object; null: not set."""

    field: str
    before: Value
    after: Value


class Change(ObjectRef):
    """One write to one object."""

    action: Action
    stage: int = Field(description="stages are done in order")
    team: str | None = Field(description="whose object it is; null: the fleet's")
    fields: list[FieldChange] = Field(description="what differs; of a new object every field")


class Notice(Wire):
    """Something the reader of a plan should know."""

    code: str
    message: str
    hint: str
    promise: str | None = Field(description="the promise it is about")


class Advice(Wire):
    """A line of an engine's own configuration that Fairway cannot write and the policy needs."""

    file: str = Field(examples=["slurm.conf"])
    line: str = Field(description="exactly what must stand there")
    running: str = Field(description="what the engine runs with now; empty: nothing")
    why: str
    restart: str = Field(description="what makes it count")
    unseen: bool = Field(default=False, description="the engine does not show what it runs with")


class Touched(ObjectRef):
    """Jobs that depend on an object which changes or goes."""

    running: int
    waiting: int


class Objection(Wire):
    """Why a plan is not applied as it stands."""

    code: str
    message: str
    hint: str
    forceable: bool = Field(description="whether force overrules it")

    @property
    def option(self) -> str:
        """Return the option that overrules it; empty if none does."""
        if self.code == "ClosedMonthWouldChange":
            return "--reprice-past"
        return "--force" if self.forceable else ""

    def overruled(self, *, force: bool, reprice_past: bool = False) -> bool:
        """Return whether these options overrule it."""
        return {"--force": force, "--reprice-past": reprice_past}.get(self.option, False)


class UserUse(Wire):
    """What one user used of something."""

    user: str
    gpu_hours: float


class RecentUse(Wire):
    """Who used something in the last 30 days."""

    users: list[UserUse] = Field(description="the five who used it most, most first")
    more: int = Field(description="users beside those")
    gpu_hours: float = Field(description="of all users")
    unknown: str = Field(description="why it is not known; empty: it is")


class TakenAway(Wire):
    """Something of a cluster that people could use and that the policy takes from them on purpose."""

    what: str = Field(examples=["GPU jobs of account physics, which is no team"])
    team: str | None = Field(description="whose members lose it; null: people of no team")
    user: str | None = Field(description="the only one who loses it; null: everybody of the account")
    used: RecentUse


class ClusterPlan(Wire):
    """What changes on one cluster."""

    cluster: str
    engine: EngineKind
    engine_version: str
    fingerprint: str
    managed: int = Field(description="objects with Fairway's mark that were found")
    changes: list[Change]
    in_the_way: list[ObjectRef] = Field(description="objects without Fairway's mark that bear a wanted name")
    touched: list[Touched]
    notices: list[Notice]
    advice: list[Advice]
    objections: list[Objection]
    taken: list[TakenAway] = Field(
        default_factory=list, description="what people could use before, and who did in the last 30 days"
    )


class Removal(Wire):
    """Something that the last applied fleet has and the planned one has not, or has less of."""

    kind: RemovalKind
    name: str = Field(
        description="what it is, or belongs to, and what confirms its removal", examples=["cloud"]
    )
    what: str = Field(
        description="which of the things of that name; empty: itself", examples=["GPUs of a job"]
    )
    value: str = Field(description="what it was; empty: it has no value", examples=["120,000 a month"])
    detail: str = Field(description="what goes with it", examples=["pools cloud-a100, cloud-h100"])
    gpus: int | None = Field(description="GPUs of a cluster or pool as last observed; null: not observed")
    running: int = Field(description="jobs of a cluster, pool or team that run now")
    waiting: int
    recent: int = Field(description="jobs that a team submitted within 30 days")
    used: RecentUse | None = Field(
        default=None, description="who used it in the last 30 days; null: nobody can use such a thing"
    )
    needs_force: bool = Field(description="whether it needs force, or its name among the confirmed ones")
    refused: bool = Field(default=False, description="the fleet file is partial and cannot remove it at all")


class ClusterFailure(Wire):
    """Why a cluster has no plan."""

    cluster: str
    code: str
    message: str
    hint: str


class StoppedApply(Wire):
    """An apply that stopped on a cluster before its end: part of its fleet is live there, part is not."""

    apply: int
    cluster: str
    revision: int
    total: int = Field(description="changes to make")
    done: int
    code: str
    message: str
    hint: str
    stopped_at: Moment
    live: list[str] = Field(description="teams whose changes were all made")
    partly_live: list[str]
    not_live: list[str] = Field(description="teams of whose changes none was made")


class Plan(Wire):
    """What a fleet file would change, cluster by cluster."""

    fleet: str
    digest: str = Field(description="SHA-256 of the fleet file's text")
    diff: list[FieldDiff] = Field(
        description="what differs from the last applied fleet, in the fleet file's words"
    )
    removals: list[Removal] = Field(default_factory=list, description="what the fleet no longer has")
    stopped: list[StoppedApply] = Field(
        default_factory=list, description="applies that stopped before their end: what is live differs"
    )
    clusters: list[ClusterPlan]
    failures: list[ClusterFailure] = Field(description="clusters that could not be read")
    warnings: list[Fault] = Field(description="of the fleet file")
    objections: list[Objection] = Field(
        default_factory=list,
        description="against the fleet as a whole; `reprice_past` overrules `ClosedMonthWouldChange`",
    )

    @property
    def changes(self) -> int:
        """Return the number of objects that change."""
        return sum(len(c.changes) for c in self.clusters)


class PlanFile(Wire):
    """A plan that was kept: what it was made from, and what was shown. No write is ever taken from it."""

    format: str = Field(default="fairway/plan/v1")
    made_at: Moment
    source: str
    text: str = Field(description="the fleet file")
    plan: Plan

    @property
    def fingerprints(self) -> dict[str, str]:
        """Return the fingerprints that the server compares before it changes anything."""
        return {c.cluster: c.fingerprint for c in self.plan.clusters}


class AppliedChange(Change):
    """A change of an apply, and whether it was made."""

    made: bool


class ApplyCluster(Wire):
    """How an apply goes on one cluster."""

    cluster: str
    state: ApplyState
    total: int = Field(description="changes to make")
    done: int
    current: str = Field(description="the object written last; empty before the first and at the end")
    code: str = Field(description="why it was refused, failed or is held up; empty when all is well")
    message: str
    hint: str
    started_at: Moment | None
    finished_at: Moment | None


class Apply(Wire):
    """One request to change clusters: who, when, what, and what came of it."""

    id: int
    kind: ApplyKind
    state: ApplyState = Field(description="of all its clusters together")
    created_at: Moment
    created_by: str
    revision: int | None = Field(description="of the fleet; null: of an adoption")
    digest: str = Field(description="SHA-256 of the fleet file's text; empty of an adoption")
    force: bool
    objects: list[ObjectRef] = Field(description="what is adopted; empty of an apply")
    rollback_to: int | None = Field(
        default=None, description="the older revision whose text is applied again; null: the text is new"
    )
    reprice_past: bool = Field(default=False, description="whether it was allowed to change closed months")
    clusters: list[ApplyCluster]

    @property
    def options(self) -> str:
        """The options that overruled objections, `--force --reprice-past`; empty: none."""
        given = (("--force", self.force), ("--reprice-past", self.reprice_past))
        return " ".join(option for option, used in given if used)


class ApplyClusterDetail(ApplyCluster):
    """How an apply goes on one cluster, with what it changes."""

    changes: list[AppliedChange]


class ApplyDetail(Apply):
    """An apply with everything that was kept of it."""

    diff: list[FieldDiff] = Field(description="what differs from the fleet before, in the fleet file's words")
    clusters: list[ApplyClusterDetail]  # type: ignore[assignment]


class FleetRevision(Wire):
    """One revision of the fleet file, without its text."""

    revision: int
    created_at: Moment
    created_by: str
    digest: str = Field(description="SHA-256 of its text")
    applied_to: list[str] = Field(description="the clusters on which it is in force")


class FleetFile(FleetRevision):
    """One revision of the fleet file."""

    text: str


class Drift(ObjectRef):
    """One difference between a cluster and what was last applied to it."""

    cluster: str
    difference: DriftKind
    field: str = Field(description="empty unless the difference is `changed`")
    wanted: Value
    found: Value
    changed_by: str | None = Field(description="where the engine tells")
    team: str | None
    since: Moment = Field(description="when it was first seen")


class NotChecked(Wire):
    """A cluster that could not be compared with what was applied to it: its drift is not known."""

    cluster: str
    since: Moment
    code: str = Field(examples=["ClusterUnreachable"])
    message: str
    hint: str


class DriftPage(Page[Drift]):
    """A part of the list of differences, and the clusters of which none are known."""

    not_checked: list[NotChecked] = Field(
        default_factory=list,
        description="clusters that could not be read: their drift is unknown",
    )


class Intervention(Wire):
    """A command that Fairway ran because the engine alone would not keep a promise."""

    id: int
    cluster: str
    at: Moment
    promise: str
    verb: str = Field(examples=["scontrol requeue 17"])
    job: str
    why: str


class Grant(Wire):
    """What a team may have of one supply."""

    supply: str = Field(examples=["hpc-a100", "hpc-mig/1g.10gb"])
    cluster: str
    guarantee: int
    borrow: int | None = Field(description="null: whatever is idle, as far as its parent may hold it")
    held: int | None = Field(default=None, description="what its running jobs and those of its subteams use")
    waiting: int | None = Field(default=None, description="what their waiting jobs request")
    on_loan: int | None = Field(
        default=None, description="guaranteed to it, not used by it and not free: other teams use it now"
    )


class Limits(Wire):
    """The most one job, and one user of the team, may have; null: no limit."""

    job_gpus: int | None
    job_seconds: int | None
    user_gpus: int | None


class Team(Wire):
    """Who shares the fleet, and on what terms, as last applied."""

    name: str
    parent: str | None
    path: list[str] = Field(description="its ancestors from the top, and itself")
    share: int
    grants: list[Grant]
    limits: Limits
    priorities: list[str]
    members: list[str]
    draining: bool
    not_live_on: list[str] = Field(
        default_factory=list, description="clusters where an apply stopped before all of the team was written"
    )
    colour: int | None = Field(default=None, description="number of its fixed colour in charts")


class Rendered(Wire):
    """Files of an engine that Fairway does not write itself."""

    cluster: str
    files: dict[str, str] = Field(description="text by name")


class Imported(Wire):
    """An existing cluster in Fairway's words."""

    cluster: str
    fleet: str = Field(description="a fleet file")
    remarks: int = Field(description="things that have no word in Fairway, each a comment in the file")
