"""How a plan reads, letter by letter."""

from __future__ import annotations

from fairway.cli.output.format import cell_width
from fairway.cli.output.plan import MAX_PROSE_LINES, plan_lines
from fairway.model.fleet import EngineKind
from fairway.policy.objects import Action
from fairway.views.plans import value_text
from fairway.wire import policy as wire


def said(team: str | None, sign: str, what: str, before: str | None, after: str | None) -> wire.FieldDiff:
    return wire.FieldDiff(team=team, sign=sign, what=what, before=before, after=after)


def change(action: Action, kind: str, name: str, **fields: tuple[wire.Value, wire.Value]) -> wire.Change:
    return wire.Change(
        action=action,
        kind=kind,
        name=name,
        stage=0,
        team=None,
        fields=[wire.FieldChange(field=f, before=b, after=a) for f, (b, a) in fields.items()],
    )


def cluster(name: str, *changes: wire.Change, **more: object) -> wire.ClusterPlan:
    given: dict[str, object] = {
        "cluster": name,
        "engine": EngineKind.SLURM,
        "engine_version": "slurm 24.11.5",
        "fingerprint": "f" * 64,
        "managed": 10,
        "changes": list(changes),
        "in_the_way": [],
        "touched": [],
        "notices": [],
        "advice": [],
        "objections": [],
    }
    return wire.ClusterPlan.model_validate(given | more)


def plan(*clusters: wire.ClusterPlan, said: list[wire.FieldDiff] | None = None) -> wire.Plan:
    return wire.Plan(
        fleet="acme", digest="d", diff=said or [], clusters=list(clusters), failures=[], warnings=[]
    )


def screen(made: wire.Plan, *, wide: bool = False, width: int | None = 100) -> list[str]:
    lines = [line.text for line in plan_lines(made, width, wide=wide)]
    assert width is None or wide or max(cell_width(line) for line in lines) <= width
    return lines


NOTE = wire.Notice(
    code="NoHeldBack",
    message="kueue cannot hold GPUs back for a waiting gang",
    hint="send gangs by  fairway submit",
    promise="no-starvation",
)
RAISED = plan(
    cluster(
        "hpc",
        change(Action.UPDATE, "qos", "research_own", GrpTRES=(16, 24)),
        change(Action.CREATE, "association", "product/dana", fairshare=(None, 40), comment=(None, None)),
    ),
    cluster(
        "cloud",
        change(Action.UPDATE, "ClusterQueue", "research", weight=(50, 60)),
        engine=EngineKind.KUBERNETES,
        engine_version="kueue 0.19",
        notices=[NOTE],
    ),
    said=[
        said("research", "~", "guarantee on hpc-a100", "16", "24"),
        said("research", "~", "share", "50", "60"),
        said("product", "+", "member", None, "dana"),
    ],
)


def test_words_first() -> None:
    assert screen(RAISED) == [
        "acme: 3 changes on 2 clusters",
        "",
        "  research",
        "    ~ guarantee on hpc-a100        16 → 24",
        "    ~ share                        50 → 60",
        "  product",
        "    + member                       dana",
        "",
        "  hpc     slurm 24.11.5   2 objects: 1 new, 1 changed",
        "  cloud   kueue 0.19      1 object: 1 changed   (-o wide lists them)",
        "",
        "  Nothing that runs is touched.",
        "  note: kueue cannot hold GPUs back for a waiting gang (promise no-starvation on cloud)",
    ]


def test_objects_on_demand() -> None:
    shown = screen(RAISED, wide=True, width=None)
    at = shown.index("  hpc     slurm 24.11.5   2 objects: 1 new, 1 changed")
    assert shown[at + 1 : at + 5] == [
        "    ~ qos research_own",
        "        GrpTRES   16 → 24",
        "    + association product/dana",
        "        fairshare   40",
    ]
    assert not any("-o wide" in line for line in shown)
    assert shown[-1] == "    hint: send gangs by  fairway submit"


def test_nothing_to_do() -> None:
    assert screen(plan(cluster("hpc"))) == ["acme: no changes", "", "  hpc   slurm 24.11.5   no changes"]


def test_an_unchanged_policy_that_somebody_bent() -> None:
    bent = plan(cluster("hpc", change(Action.UPDATE, "qos", "research_own", GrpTRES=(99, 16))))
    assert screen(bent)[:5] == [
        "acme: the policy has not changed; 1 object on 1 cluster differs from it",
        "",
        "  hpc   slurm 24.11.5   1 object: 1 changed",
        "    ~ qos research_own",
        "        GrpTRES   99 → 16",
    ]


def test_words_that_no_engine_has_to_hear() -> None:
    priced = plan(cluster("hpc"), said=[said("pool hpc-a100", "~", "price", "1.90", "2.10")])
    assert screen(priced)[0] == "acme: 1 change to the fleet file; nothing changes on the clusters"


def test_what_speaks_against_it_and_jobs_that_are_touched() -> None:
    shown = screen(
        plan(
            cluster(
                "hpc",
                change(Action.DELETE, "account", "product"),
                touched=[{"kind": "account", "name": "product", "running": 3, "waiting": 1}],
                objections=[
                    {
                        "code": "TeamHasJobs",
                        "message": "team product would be removed, and has 3 running and 1 waiting jobs",
                        "hint": "keep product with  draining: true  until its jobs have finished",
                        "forceable": True,
                    },
                    {"code": "InTheWay", "message": "qos x is there", "hint": "adopt it", "forceable": False},
                ],
            )
        )
    )
    assert "  Nothing that runs is touched." not in shown
    text = " ".join(" ".join(shown).split())
    assert "needs --force: team product would be removed" in text
    assert "has 3 running and 1 waiting jobs (on hpc) hint: keep product" in text
    assert "refused: qos x is there (on hpc) hint: adopt it" in text


def test_jobs_under_what_changes_are_never_left_out() -> None:
    touching = wire.Notice(
        code="JobsUnderChanges",
        message="3 running jobs affected; no running job is stopped",
        hint="h",
        promise="no-surprise",
    )
    others = [NOTE.model_copy(update={"promise": p, "message": p}) for p in ("share", "memory", "gang")]
    shown = screen(
        plan(
            cluster(
                "hpc",
                change(Action.UPDATE, "account", "product", Fairshare=(1, 2)),
                touched=[{"kind": "account", "name": "product", "running": 3, "waiting": 0}],
                notices=[*others, touching],
            )
        )
    )
    assert shown[-2:] == [
        "  3 running jobs affected; no running job is stopped (on hpc)",
        "  3 notes on promises: share, memory, gang (-o wide shows them)",
    ]


def advice(line: str, running: str, *, unseen: bool = False, file: str = "slurm.conf") -> dict[str, object]:
    return {
        "file": file,
        "line": line,
        "running": running,
        "why": "what is lent must come back",
        "restart": "scontrol reconfigure",
        "unseen": unseen,
    }


def test_lines_people_must_write_themselves() -> None:
    told = [
        advice("PreemptType=preempt/qos", "preempt/none"),
        advice("PriorityDecayHalfLife=7-00:00:00", ""),
        advice("JobSubmitPlugins=lua", "not shown", unseen=True),
        advice("PrivateData=jobs", "not shown", unseen=True, file="slurmdbd.conf"),
    ]
    made = plan(cluster("hpc", advice=told))
    shown = screen(made)
    at = shown.index("  slurm.conf of hpc needs these lines, which an administrator must add:")
    assert shown[at + 1 :] == [
        "      PreemptType=preempt/qos",
        "      PriorityDecayHalfLife=7-00:00:00",
        "    then:  scontrol reconfigure",
        "",
        "  hpc does not show 1 line of slurm.conf and 1 line of slurmdbd.conf that the policy needs: compare",
        "    them once (-o wide lists them)",
    ]
    wide = screen(made, wide=True, width=None)
    assert "      JobSubmitPlugins=lua" in wide and "      PrivateData=jobs" in wide
    assert "        # now preempt/none; what is lent must come back" in wide
    assert "        # what is lent must come back" in wide


def test_the_same_note_of_two_clusters_is_said_once() -> None:
    new = change(Action.CREATE, "account", "x")
    shown = screen(plan(cluster("a", new, notices=[NOTE]), cluster("b", notices=[NOTE])))
    assert sum("note:" in line for line in shown) == 1
    assert any("on a, b)" in line for line in shown)


def test_what_stands_anyway_is_quiet() -> None:
    nothing = plan(cluster("a", notices=[NOTE]))
    assert screen(nothing)[-1] == "  1 note on promises: no-starvation (-o wide shows them)"
    other = [
        NOTE.model_copy(update={"promise": p, "message": p}) for p in ("share", "memory", "gang", "time")
    ]
    many = plan(cluster("a", change(Action.CREATE, "account", "x"), notices=other))
    assert screen(many)[-1] == "  4 notes on promises: share, memory, gang, time (-o wide shows them)"
    assert any("note: share (promise share on a)" in line for line in screen(many, wide=True))


def test_a_first_fleet() -> None:
    words = [
        said(None, "+", "fleet", None, "acme"),
        *(said(None, "+", "pool", None, f"p{i}") for i in range(3)),
        said("research", "+", "team", None, "research"),
        said("nlp", "+", "team", None, "nlp"),
        said("nlp", "+", "parent", None, "research"),
        *(said("nlp", "+", "member", None, f"m{i}") for i in range(12)),
        *(said(f"old{i}", "-", "team", f"old{i}", None) for i in range(3)),
    ]
    shown = screen(plan(cluster("hpc", change(Action.CREATE, "account", "nlp")), said=words))
    assert shown[:10] == [
        "acme: a new fleet, 2 teams on 1 cluster",
        "",
        "  the fleet",
        "    + fleet                        acme",
        "    + pool                         p0, p1, p2",
        "  + research",
        "  + nlp in research",
        "    + member                       m0, m1, m2, m3, m4, m5, m6, m7 and 4 more",
        "  - old0, old1, old2",
        "",
    ]


def test_a_thousand_teams_are_no_wall_of_text() -> None:
    many = [said(f"team-{i}", "+", "team", None, f"team-{i}") for i in range(1000)]
    made = plan(cluster("hpc", change(Action.CREATE, "account", "x")), said=many)
    assert len(screen(made)) < 2 * MAX_PROSE_LINES
    assert f"  … and {1000 - MAX_PROSE_LINES} teams more (-o wide shows all)" in screen(made)
    assert "  + team-999" in screen(made, wide=True, width=None)


def test_an_engines_words_cannot_move_the_cursor() -> None:
    evil = plan(cluster("hpc", change(Action.CREATE, "qos", "a\x1b[2Jb\n", note=(None, "x\x07\ny"))))
    assert not any(ord(ch) < 32 for line in screen(evil, wide=True, width=None) for ch in line)


def test_of_long_lists_only_what_comes_and_goes() -> None:
    changed = change(Action.UPDATE, "association", "nlp/alice", QOS=(["lent", "low"], ["lent", "own"]))
    assert "        QOS   + own, - low" in screen(plan(cluster("hpc", changed)), wide=True, width=None)
    order = change(Action.UPDATE, "x", "y", levels=(["a", "b"], ["b", "a"]))
    assert "        levels   a, b → b, a" in screen(plan(cluster("hpc", order)), wide=True, width=None)


def test_values() -> None:
    shown = [value_text(v) for v in (None, True, 0, "", ["a", 1], [], "x" * 100)]
    assert shown == ["not set", "yes", "0", '""', "a, 1", "none", "x" * 59 + "…"]
