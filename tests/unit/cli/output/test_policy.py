"""How applies, drift, teams and interventions look, letter by letter, at 100 columns."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from fairway.cli.output.applies import applies_view, apply_lines, outcome_lines
from fairway.cli.output.format import TableView, cell_width, table
from fairway.cli.output.policy import drift_view, interventions_view, teams_view
from fairway.model.apply import ApplyKind, ApplyState, DriftKind
from fairway.policy.objects import Action
from fairway.wire import policy as wire

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def shown(view: TableView, width: int | None = 100) -> list[str]:
    lines = table(view.columns, view.rows, width)
    assert width is None or max(cell_width(line) for line in lines) <= width
    return lines


def kept(name: str, *, made: bool) -> wire.AppliedChange:
    return wire.AppliedChange(
        action=Action.UPDATE,
        kind="qos",
        name=name,
        stage=0,
        team=None,
        fields=[wire.FieldChange(field="GrpTRES", before=16, after=24)],
        made=made,
    )


def cluster(
    name: str,
    state: ApplyState,
    *changes: wire.AppliedChange,
    code: str = "",
    message: str = "",
    hint: str = "",
) -> wire.ApplyClusterDetail:
    return wire.ApplyClusterDetail(
        cluster=name,
        state=state,
        total=len(changes),
        done=sum(c.made for c in changes),
        current="",
        code=code,
        message=message,
        hint=hint,
        started_at=NOW - timedelta(seconds=60),
        finished_at=NOW - timedelta(seconds=57),
        changes=list(changes),
    )


def apply(*clusters: wire.ApplyClusterDetail, state: ApplyState = ApplyState.DONE) -> wire.ApplyDetail:
    return wire.ApplyDetail(
        id=12,
        kind=ApplyKind.APPLY,
        state=state,
        created_at=NOW - timedelta(seconds=60),
        created_by="dana",
        revision=7,
        digest="d",
        force=False,
        objects=[],
        diff=[wire.FieldDiff(team="research", sign="~", what="share", before="50", after="60")],
        clusters=list(clusters),
    )


DONE = apply(cluster("hpc", ApplyState.DONE, kept("a", made=True), kept("b", made=True)))
STOPPED = apply(
    cluster(
        "hpc",
        ApplyState.FAILED,
        kept("a", made=True),
        *(kept(f"b{i}", made=False) for i in range(12)),
        code="Refused",
        message="slurmdbd says no",
        hint="sacctmgr show qos b0",
    ),
    cluster(
        "cloud",
        ApplyState.REFUSED,
        code="PlanOutdated",
        message="cloud moved on since the plan was made",
        hint="plan again",
    ),
    state=ApplyState.FAILED,
)


def test_what_came_of_it() -> None:
    assert [line.text for line in outcome_lines(DONE, 100)] == [
        "  hpc: done, 2 of 2 changes made in 3 s",
        "  recorded as:  fairway history 12",
    ]
    assert [line.text for line in outcome_lines(STOPPED, 100)] == [
        "  hpc: stopped, 1 of 13 changes made in 3 s",
        "    Refused: slurmdbd says no",
        "    hint: sacctmgr show qos b0",
        "    not made: 12 changes",
        *(f"      update qos b{i}" for i in range(10)),
        "      … and 2 more",
        "  cloud: refused, nothing was changed",
        "    PlanOutdated: cloud moved on since the plan was made",
        "    hint: plan again",
        "  recorded as:  fairway history 12",
    ]


def test_one_of_the_past() -> None:
    assert [line.text for line in apply_lines(DONE, NOW, 100, wide=False)] == [
        "apply 12 by dana, 2026-03-01 11:59Z (60 s ago), fleet revision 7",
        "",
        "  research",
        "    ~ share                        50 → 60",
        "",
        "  hpc: done, 2 of 2 changes made in 3 s",
        "",
        "  fairway history 12 -o wide  lists every object, before and after",
    ]
    overruled = DONE.model_copy(update={"force": True, "reprice_past": True})
    first = apply_lines(overruled, NOW, 100, wide=False)[0].text
    assert first.endswith(", with --force --reprice-past")
    wide = [line.text for line in apply_lines(DONE, NOW, None, wide=True)]
    assert wide[-4:] == [
        "    ~ qos a",
        "        GrpTRES   16 → 24",
        "    ~ qos b",
        "        GrpTRES   16 → 24",
    ]


def test_all_of_the_past() -> None:
    view = applies_view([STOPPED, DONE], NOW, filtered=False)
    assert shown(view) == [
        "APPLY  WHEN               BY    WHAT   CLUSTER  STATE    CHANGES  TOOK  REASON",
        "   12  2026-03-01 11:59Z  dana  apply  hpc      failed      1/13   3 s  Refused: slurmdbd says no",
        "   12  2026-03-01 11:59Z  dana  apply  cloud    refused      0/0   3 s  PlanOutdated: cloud moved o…",  # noqa: E501
        "   12  2026-03-01 11:59Z  dana  apply  hpc      done         2/2   3 s",
    ]
    assert view.alarming == {0, 1}
    assert applies_view([], NOW, filtered=False).empty == "nothing has been applied yet"


def drifted(
    kind: DriftKind, field: str = "", wanted: wire.Value = None, found: wire.Value = None
) -> wire.Drift:
    return wire.Drift(
        cluster="hpc",
        kind="qos",
        name="research_own",
        difference=kind,
        field=field,
        wanted=wanted,
        found=found,
        changed_by="eve" if field else None,
        team="research",
        since=NOW - timedelta(minutes=5),
    )


def test_drift() -> None:
    view = drift_view(
        [
            drifted(DriftKind.CHANGED, "GrpTRES.gpu", 16, 99),
            drifted(DriftKind.MISSING),
            drifted(DriftKind.EXTRA),
            drifted(DriftKind.UNMARKED),
        ],
        NOW,
    )
    assert shown(view) == [
        "CLUSTER  OBJECT            FIELD        APPLIED              FOUND                       BY   SINCE",
        "hpc      qos research_own  GrpTRES.gpu  16                   99                          eve  5 min",
        "hpc      qos research_own               there                gone                             5 min",
        "hpc      qos research_own               not there            there, with Fairway's mark       5 min",
        "hpc      qos research_own               with Fairway's mark  without it                       5 min",
    ]
    assert view.notes[0] == "1 object on hpc differs from what was applied"
    assert "fairway apply" in view.notes[1]
    assert drift_view([], NOW).empty == "no drift: every cluster matches the applied policy"


def team(name: str, *path: str, grants: list[wire.Grant], draining: bool = False) -> wire.Team:
    return wire.Team(
        name=name,
        parent=path[-1] if path else None,
        path=[*path, name],
        share=60,
        grants=grants,
        limits=wire.Limits(job_gpus=64, job_seconds=72 * 3600, user_gpus=None),
        priorities=["urgent", "normal"],
        members=["alice", "bob"],
        draining=draining,
    )


def grant(supply: str, guarantee: int, borrow: int | None, **held: int) -> wire.Grant:
    return wire.Grant(supply=supply, cluster="hpc", guarantee=guarantee, borrow=borrow, **held)


def test_teams() -> None:
    teams = [
        team(
            "research",
            grants=[
                grant("hpc-a100", 16, 16, held=12, on_loan=4, waiting=64),
                grant("hpc-mig/1g.10gb", 0, None, held=0, on_loan=0, waiting=0),
            ],
        ),
        team("nlp", "research", grants=[grant("hpc-a100", 8, None)], draining=True),
        team("guests", grants=[]),
    ]
    assert shown(teams_view(teams, wide=False)) == [
        "TEAM      SHARE  POOL             CLUSTER  GUARANTEE  BORROW  HELD  ON LOAN  WAITING  STATE",
        "research     60  hpc-a100         hpc             16      16    12        4       64",
        "                 hpc-mig/1g.10gb  hpc              0    idle     0        0        0",
        "  nlp        60  hpc-a100         hpc              8    idle     -        -        -  draining",
        "guests       60  -                -                -       -     -        -        -",
    ]
    wide = shown(teams_view(teams, wide=True), None)
    assert wide[1].endswith("64       3 d          -  urgent, normal  alice, bob")


def test_interventions() -> None:
    intervention = wire.Intervention(
        id=1,
        cluster="hpc",
        at=NOW - timedelta(minutes=5),
        promise="priority",
        verb="scontrol requeue 17",
        job="17",
        why="urgent job 18 of research waits while 17 runs in its place, and Slurm 24.11 would not say so",
    )
    lines = shown(interventions_view([intervention], NOW))
    assert lines[0].split() == ["WHEN", "CLUSTER", "PROMISE", "JOB", "DONE", "WHY"]
    assert lines[1].startswith("5 min ago  hpc      priority  17   scontrol requeue 17  urgent job 18")
    assert interventions_view([], NOW).empty.startswith("no interventions")
