"""The pages of policy, over applies, drift and interventions that the ledger really keeps."""

from __future__ import annotations

import base64
import html
import json
import re
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.apply import ApplyState, DriftKind
from fairway.policy.drift import DriftEntry
from fairway.policy.objects import FoundObject, Intervention, ObjectKey
from fairway.policy.recent_use import RecentUse, TakenAway
from fairway.services.fleets import Fleets
from fairway.settings import Settings
from fairway.web.app import add_pages
from fairway.wire.policy import PlanFile
from tests.unit.api.conftest import build_policy_services
from tests.unit.api.governed import Memory
from tests.unit.api.test_policy import FLEET, RAISED, WITHOUT_DREAM, apply, digest
from tests.unit.web.conftest import SignIn


@pytest.fixture
async def app(ledger: Ledger, memory: Memory, settings: Settings) -> FastAPI:
    """Pages over a fleet file that is read for what it says."""
    await ledger.revisions.add(FLEET, digest(FLEET), "test")
    parts = build_policy_services(memory)
    made = create_app(
        ledger,
        CollectorRegistry(),
        Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet", Path("/srv"))),
        parts,
        NO_JOB_SERVICES,
    )
    add_pages(made, ledger, made.state.fleets, parts, NO_JOB_SERVICES, settings)
    return made


@pytest.fixture
async def operator(sign_in: SignIn) -> httpx2.AsyncClient:
    return await sign_in(Role.OPERATOR)


async def opened(client: httpx2.AsyncClient, path: str, status: int = 200) -> str:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


def seen(text: str) -> str:
    """The words of a page, without its tags."""
    return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))


async def plan(client: httpx2.AsyncClient, text: str, **headers: str) -> httpx2.Response:
    page = await opened(client, "/policy/plan")
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found
    return await client.post("/policy/plan", data={"csrf": found[1], "fleet": text}, headers=headers)


async def test_before_anything_was_applied(viewer: httpx2.AsyncClient) -> None:
    page = seen(await opened(viewer, "/policy"))
    assert "nothing applied yet" in page
    assert "No drift: the clusters match" in page
    assert "Nothing has been applied yet. Plan a change" in page
    assert "Fleet file, revision 1" in page
    assert "Nothing has been applied yet" in seen(await opened(viewer, "/policy/history"))


async def test_the_file_as_applied(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    number = await apply(ledger, RAISED)
    await ledger.revisions.add(FLEET + "# later\n", digest(FLEET + "# later\n"), "test")
    page = await opened(viewer, "/policy")
    line = next(i for i, text in enumerate(RAISED.splitlines(), 1) if "share: 70" in text)
    row = re.search(rf'<tr id="L{line}">(.*?)</tr>', page, re.DOTALL)
    assert row and "share:" in row[1] and " 70" in row[1]
    assert "revision 2" in page and "The newest is" in page
    assert f'href="/policy/history/{number}"' in page
    assert "share: 70" not in seen(await opened(viewer, "/policy?revision=1"))
    assert "NoSuchRevision" in await opened(viewer, "/policy?revision=99", 404)
    await opened(viewer, "/policy?revision=x", 422)


async def test_the_file_is_not_for_members(
    member: httpx2.AsyncClient, lead: httpx2.AsyncClient, ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    number = await apply(ledger, RAISED)
    for one in (member, lead):
        for path in ("/policy", "/policy?revision=1", f"/policy/history/{number}"):
            page = await opened(one, path)
            assert "share: 70" not in seen(page) and "share:" not in page
        assert "the budgets of all teams" in seen(await opened(one, "/policy"))


async def test_clusters_at_different_revisions(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    await apply(ledger, RAISED)  # to hpc alone
    page = await opened(viewer, "/policy")
    hpc = re.search(r'<tr id="policy-hpc">(.*?)</tr>', page, re.DOTALL)
    dream = re.search(r'<tr id="policy-dream">(.*?)</tr>', page, re.DOTALL)
    assert hpc and dream
    assert "revision=2" in hpc[1] and "dana" in hpc[1]
    assert "nothing applied yet" in dream[1]


async def test_no_password_is_shown(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    text = FLEET + "# was https://slurm:hunter2@hpc.example:6820\n"
    await apply(ledger, FLEET)
    number = await apply(ledger, text)
    for path in ("/policy", "/policy?revision=2", f"/policy/history/{number}"):
        page = await opened(viewer, path)
        assert "hunter2" not in page
        assert "https://…@hpc.example:6820" in page


async def test_drift_and_interventions(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    number = await apply(ledger, FLEET)
    lease = await ledger.leases.take("drift", "hpc", "test", 30)
    assert lease
    async with ledger.writing(lease) as tx:
        await tx.drift.write(
            number,
            [
                DriftEntry(
                    ObjectKey("account", "research"), DriftKind.CHANGED, "share", 60, 95, "<b>mallory</b>"
                ),
                DriftEntry(ObjectKey("qos", "product_own"), DriftKind.MISSING),
            ],
        )
    await ledger.leases.release(lease)
    lease = await ledger.leases.take("intervene", "hpc", "test", 30)
    assert lease
    async with ledger.writing(lease) as tx:
        await tx.drift.write_interventions(
            [Intervention("guarantee", "scontrol requeue 17", "17", "product waits")]
        )
    html = await opened(viewer, "/policy")
    page = seen(html)
    assert "2 objects differ" in page
    assert "account research" in page and "share 60 95" in page and "there gone" in page
    assert "&lt;b&gt;mallory" in html and "<b>mallory" not in html
    assert "scontrol requeue 17" in page and "product waits" in page
    assert "No drift" not in page


async def test_one_apply(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    await apply(ledger, FLEET)
    number = await apply(ledger, RAISED, by="dana")
    html = await opened(viewer, f"/policy/history/{number}")
    page = seen(html)
    assert "done, 1 of 1 change made" in page
    assert re.search(r"research.*share 60 → 70", page)
    assert "1 object: 1 changed on hpc" in page and "account research" in page
    removed = re.search(r'<tr class="removed">(.*?)</tr>', html, re.DOTALL)
    added = re.search(r'<tr class="added">(.*?)</tr>', html, re.DOTALL)
    assert removed and "−" in removed[1] and "share: 60" in removed[1]
    assert added and ">+<" in added[1] and "share: 70" in added[1]
    assert "Changes in the file: revision 1 → 2" in page


async def test_the_first_apply_and_one_that_failed(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    number = await apply(ledger, FLEET, ApplyState.FAILED)
    page = seen(await opened(viewer, f"/policy/history/{number}"))
    assert "stopped, 0 of 1 change made" in page
    assert "Unreachable: hpc is off" in page and "hint: turn it on" in page
    assert "not made" in page
    assert "This is the first file that was applied" in page
    listed = seen(await opened(viewer, "/policy/history"))
    assert "failed" in listed and "hpc is off" in listed


@pytest.mark.parametrize("number", ["99", "0", "nothing", "9" * 40])
async def test_no_such_apply(viewer: httpx2.AsyncClient, number: str) -> None:
    assert "NoSuchApply" in await opened(viewer, f"/policy/history/{number}", 404)


async def test_history_by_cluster_and_page(
    viewer: httpx2.AsyncClient, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = [await apply(ledger, text) for text in (FLEET, RAISED, FLEET)]
    monkeypatch.setattr("fairway.web.pages.policy.page.PER_PAGE", 2)
    first = await opened(viewer, "/policy/history?cluster=hpc")
    assert re.findall(r'id="apply-(\d+)-hpc"', first) == [str(numbers[2]), str(numbers[1])]
    assert f"before={numbers[1]}&amp;cluster=hpc" in first
    rest = await opened(viewer, f"/policy/history?cluster=hpc&before={numbers[1]}")
    assert re.findall(r'id="apply-(\d+)-hpc"', rest) == [str(numbers[0])]
    assert "Nothing has been applied to dream yet" in seen(
        await opened(viewer, "/policy/history?cluster=dream")
    )


async def test_a_live_part_alone(viewer: httpx2.AsyncClient, ledger: Ledger) -> None:
    await apply(ledger, FLEET)
    for path, part in (
        ("/policy", "policy-part"),
        ("/policy/history", "history-part"),
        ("/policy/history/1", "apply-part"),
    ):
        answer = await viewer.get(path, headers={"HX-Request": "true", "HX-Target": part})
        assert answer.status_code == 200
        assert "<html" not in answer.text and "dana" in answer.text
        assert 'id="L1"' not in answer.text


async def test_a_plan(operator: httpx2.AsyncClient, memory: Memory, ledger: Ledger) -> None:
    memory.objects["hpc"] = [
        FoundObject(ObjectKey("account", "research"), {"share": 60}, ours=True),
        FoundObject(ObjectKey("account", "nlp"), {"share": 1}, ours=True),
        FoundObject(ObjectKey("account", "product"), {"share": 40}, ours=True),
    ]
    await apply(ledger, FLEET)
    html = (await plan(operator, RAISED)).text
    page = seen(html)
    assert "acme: 1 change on 2 clusters" in page
    assert re.search(r"research.*share 60 → 70", page)
    assert "share: 70" in html, "the form keeps what was planned"
    name = re.search(r"fairway apply (plan-[0-9a-f]{4}\.json)", page)
    file = re.search(r'download="(plan-\w+\.json)" href="data:application/json;base64,([^"]+)"', html)
    assert name and file and name[1] == file[1]
    kept = PlanFile.model_validate(json.loads(base64.b64decode(file[2])))
    assert kept.text == RAISED and set(kept.fingerprints) == {"hpc", "dream"}


async def test_what_is_taken_from_a_cluster_is_on_the_page_unless_a_removal_says_it(
    operator: httpx2.AsyncClient, memory: Memory, ledger: Ledger
) -> None:
    used = RecentUse.of({"eve": 7200})
    memory.taken = (
        TakenAway("GPU jobs of account guests, which is no team", used),
        TakenAway("jobs in account product", used, team="product"),
    )
    await apply(ledger, FLEET)
    without_product = FLEET[: FLEET.index("  product:")]
    words = seen((await plan(operator, without_product)).text)
    assert (
        "removes on hpc: GPU jobs of account guests, which is no team; "
        "used in the last 30 days by eve (2 GPU-hours)" in words
    )
    assert "jobs in account product" not in words


async def test_nothing_to_plan(operator: httpx2.AsyncClient, memory: Memory) -> None:
    memory.objects["hpc"] = [FoundObject(ObjectKey("account", "product"), {"share": 1}, ours=False)]
    page = seen((await plan(operator, FLEET)).text)
    assert "exist already and are not managed by Fairway: account product" in page
    assert "Refused: " in page
    assert "Apply this plan" not in page


async def test_a_cluster_that_does_not_answer(operator: httpx2.AsyncClient, memory: Memory) -> None:
    memory.lost = {"hpc"}
    page = seen((await plan(operator, FLEET)).text)
    assert "hpc has no plan: hpc is off" in page and "hint: turn it on" in page
    assert "Apply this plan" not in page


async def test_faults_with_their_lines(operator: httpx2.AsyncClient) -> None:
    html = (await plan(operator, RAISED.replace("share: 70", "shares: 70"))).text
    line = next(i for i, text in enumerate(RAISED.splitlines(), 1) if "share: 70" in text)
    assert f'data-line="{line}"' in html
    assert "1 error in the file" in html and "hint:" in html
    assert "Apply this plan" not in html


async def test_a_file_is_checked_and_compared_while_it_is_edited(
    operator: httpx2.AsyncClient, ledger: Ledger, memory: Memory
) -> None:
    memory.lost = {"hpc"}  # no cluster is asked
    csrf = await csrf_of(operator)

    async def check(text: str) -> str:
        answer = await operator.post("/policy/check", data={"csrf": csrf, "fleet": text})
        assert answer.status_code == 200 and "<html" not in answer.text
        return answer.text

    assert "The file is valid" in await check(FLEET) and "Same as revision 1" in await check(FLEET)
    changed = await check(RAISED)
    assert "Differences from revision 1" in changed
    assert re.search(r'<tr class="added">.*?share: 70', changed, re.DOTALL)
    wrong = await check(RAISED.replace("share: 70", "shares: 70"))
    line = next(i for i, text in enumerate(RAISED.splitlines(), 1) if "share: 70" in text)
    assert f'data-fault="{line}" data-severity="error" data-message="' in wrong
    assert "1 error in the file" in wrong
    assert "The fleet file is empty" in await check(" ")
    assert len(await ledger.applies.page()) == 0


async def test_an_empty_file(operator: httpx2.AsyncClient) -> None:
    assert "the fleet file is empty" in (await plan(operator, "  ")).text


async def test_only_an_admin_says_where_a_cluster_is(
    operator: httpx2.AsyncClient, admin: httpx2.AsyncClient
) -> None:
    elsewhere = FLEET.replace("hpc.example", "evil.example")
    refused = seen((await plan(operator, elsewhere)).text)
    assert "hpc is reached in another way" in refused and "Apply this plan" not in refused
    assert "On the clusters" in seen((await plan(admin, elsewhere)).text)


async def test_a_large_file(operator: httpx2.AsyncClient) -> None:
    """Past the edge's limit for everybody; htmx says in a header where it comes from."""
    page = await opened(operator, "/policy/plan")
    found = re.search(r'name="csrf" value="(\w+)"', page)
    assert found
    large = RAISED + "# filler\n" * 20_000
    answer = await operator.post(
        "/policy/plan",
        data={"fleet": large},
        headers={"X-CSRF": found[1], "HX-Request": "true", "HX-Target": "plan-answer"},
    )
    assert answer.status_code == 200 and "<html" not in answer.text
    assert "share" in answer.text


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER, Role.LEAD])
async def test_only_operators_plan(sign_in: SignIn, role: Role) -> None:
    client = await sign_in(role)
    assert "RoleTooLow" in await opened(client, "/policy/plan", 403)


async def test_a_plan_from_elsewhere(operator: httpx2.AsyncClient) -> None:
    answer = await operator.post("/policy/plan", data={"fleet": FLEET, "csrf": "guessed"})
    assert answer.status_code == 403 and "NotFromHere" in answer.text


async def csrf_of(client: httpx2.AsyncClient) -> str:
    found = re.search(r'name="csrf" value="(\w+)"', await opened(client, "/policy/plan"))
    assert found
    return found[1]


async def test_an_old_revision_is_compared_planned_and_applied(
    operator: httpx2.AsyncClient, ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    await apply(ledger, RAISED)
    listed = seen(await opened(operator, "/policy/revisions"))
    assert "Revisions of the fleet file" in listed and "hpc" in listed
    page = await opened(operator, "/policy/revisions/1")
    assert "Differences from the applied revision 2" in seen(page)
    assert "Plan this revision" in page
    file = await operator.get("/policy/revisions/1/fleet.yaml")
    assert file.text == FLEET and 'filename="fleet-1.yaml"' in file.headers["content-disposition"]
    assert 'data-copy="/policy/revisions/1/fleet.yaml"' in page
    assert "share: 70" in page and "share: 60" in page
    csrf = await csrf_of(operator)
    planned = await operator.post("/policy/plan", data={"csrf": csrf, "revision": "1"})
    marks = re.search(r'name="fingerprints" value="([^"]+)"', planned.text)
    assert marks and 'name="revision" value="1"' in planned.text
    form = {"csrf": csrf, "revision": "1", "fingerprints": html.unescape(marks[1])}
    done = await operator.post("/policy/apply", data=form, follow_redirects=False)
    assert done.status_code == 303
    assert "rollback to 1" in seen(await opened(operator, "/policy/history"))
    assert done.headers["location"] in await opened(operator, "/policy/history")
    newest = await ledger.revisions.newest()
    assert newest is not None and (newest.id, newest.text) == (3, FLEET)


async def test_removals_come_first_and_are_confirmed_on_the_page(
    operator: httpx2.AsyncClient, ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    planned = await plan(operator, WITHOUT_DREAM)
    words = seen(planned.text)
    assert (
        "removes cluster dream: not used in the last 30 days; pool dream-a100" in words
        and "Type the names of everything that is removed" in words
    )
    form = {"csrf": await csrf_of(operator), "fleet": WITHOUT_DREAM, "fingerprints": '{"hpc": "f"}'}
    refused = await operator.post("/policy/apply", data=form, follow_redirects=False)
    assert refused.status_code == 409 and "RemovalsNotConfirmed" in refused.text
    for more in ({"confirm": "dream"}, {"force": "yes"}):
        done = await operator.post("/policy/apply", data=form | more, follow_redirects=False)
        assert done.status_code == 303
    bad = await operator.post("/policy/apply", data=form | {"fingerprints": "x"}, follow_redirects=False)
    assert bad.status_code == 422 or bad.status_code == 400


async def test_only_operators_apply_and_members_see_no_revision(
    viewer: httpx2.AsyncClient, member: httpx2.AsyncClient, ledger: Ledger
) -> None:
    await apply(ledger, FLEET)
    page = await opened(viewer, "/policy/revisions/1")
    assert "Plan revision" not in page
    found = re.search(r'name="csrf" value="(\w+)"', await opened(viewer, "/policy"))
    form = {"csrf": found[1] if found else "", "revision": "1", "fingerprints": "{}"}
    assert (await viewer.post("/policy/apply", data=form)).status_code == 403
    assert "FleetFileNotShown" in await opened(member, "/policy/revisions/1", 403)
    await opened(member, "/policy/revisions")
