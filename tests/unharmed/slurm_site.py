"""A Slurm site before, with and after Fairway, by the very pieces the server uses."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.partition_lines import NOT_SHOWN
from fairway.engines.slurm.policy.render import render_slurm
from fairway.files import compose_fleet, parse_fleet
from fairway.model.fleet import EngineKind, SlurmPlace
from fairway.model.names import ClusterName
from fairway.services.import_cluster import import_cluster
from fairway.services.plans import plan_adoption, plan_cluster, write_plan
from lab.slurm.cluster import configure
from lab.slurm.site import Site
from tests.slurm_conf import slurm_lines

if TYPE_CHECKING:
    from fairway.engines.port import ImportedPolicy
    from fairway.model.fleet import Cluster, Fleet, Pool
    from fairway.policy.plan import ClusterPlan
    from lab.instance import Instance
    from tests.unharmed.probes import Probe

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: site
currency: USD
clusters:
  site: {{ engine: slurm, url: {url}, credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }} }}
"""
SITE = ClusterName("site")
# What an administrator does who has a script already: the site's rules first, then ours.
BESIDE_SITE = """
local site_submit, site_modify = slurm_job_submit, slurm_job_modify
{fairway}
local fairway_submit, fairway_modify = slurm_job_submit, slurm_job_modify
function slurm_job_submit(job, partitions, uid)
  local code = site_submit(job, partitions, uid)
  return code == slurm.SUCCESS and fairway_submit(job, partitions, uid) or code
end
function slurm_job_modify(job, before, partitions, uid)
  local code = site_modify(job, before, partitions, uid)
  return code == slurm.SUCCESS and fairway_modify(job, before, partitions, uid) or code
end
"""


@dataclass
class SlurmSite:
    """One site and the fleet that governs it."""

    instance: Instance
    fleet: Fleet | None = None
    text: str = ""
    """The fleet file."""

    async def import_fleet(self) -> ImportedPolicy:
        """Read what is there; the fleet goes through its file, as a user's does."""
        head = parse_fleet(HEAD.format(**self.instance.facts()), "head.yaml")
        imported = await import_cluster(self.build, head, SITE)
        remarks = [(remark.about, remark.text) for remark in imported.remarks]
        self.text = compose_fleet(imported.fleet, remarks)
        self.fleet = parse_fleet(self.text, "site.yaml")
        return imported

    def build(self, cluster: Cluster, pools: tuple[Pool, ...]) -> SlurmEngine:
        """An engine for the site, as the server builds one."""
        return SlurmEngine(cluster, pools)

    async def plan(self) -> ClusterPlan:
        """Plan the fleet; nothing is written."""
        fleet, engine = self._governed()
        try:
            return await plan_cluster(engine, fleet, SITE)
        finally:
            await engine.close()

    async def apply(self) -> ClusterPlan:
        """Adopt what people made, and apply the fleet. Returns the plan that was applied."""
        fleet, engine = self._governed()
        try:
            plan = await plan_cluster(engine, fleet, SITE)
            if plan.in_the_way:
                keys = [o.key for o in plan.in_the_way]
                adoption = await plan_adoption(engine, SITE, EngineKind.SLURM, keys)
                adopted = await write_plan(engine, adoption, force=True)
                assert adopted.refusal is None, adopted.refusal
                plan = await plan_cluster(engine, fleet, SITE)
            applied = await write_plan(engine, plan, force=True)
            assert applied.refusal is None, applied.refusal
            left = await plan_cluster(engine, fleet, SITE)
            assert left.changes == ()
            return plan
        finally:
            await engine.close()

    async def install(self) -> None:
        """Install the rendered files beside the site's own, as an administrator does who reads them."""
        fleet, engine = self._governed()
        try:
            found = await engine.find_policy()
        finally:
            await engine.close()
        files = render_slurm(fleet, SITE, found.engine_version, found.settings)
        site = Site(self.instance.site)
        lines = [
            _with_options_not_shown(line, site)
            for line in slurm_lines(files)
            if not line.startswith("PrivateData=")
        ]
        own = site.text("job_submit.lua")
        script = files["job_submit.lua"]
        script = f"{own}{BESIDE_SITE.format(fairway=script)}" if own else script
        await asyncio.to_thread(configure, self.instance, lines, script)

    def change_policy(self) -> None:
        """Change every team's share."""
        assert self.fleet is not None
        teams = tuple(replace(team, share=team.share + 1) for team in self.fleet.teams)
        self.fleet = replace(self.fleet, teams=teams)

    def is_governed(self, probe: Probe) -> bool:
        """Whether a probe is GPU work of a team on a pool's partition: a policy may decide about it."""
        fleet = self.fleet
        assert fleet is not None
        if not any("gpu" in option for option in probe.options):
            return False
        named = dict(option.removeprefix("--").split("=", 1) for option in probe.options if "=" in option)
        accounts = {team.account_name for team in fleet.teams}
        pools = {
            p for pool in fleet.pools if isinstance(pool.place, SlurmPlace) for p in pool.place.partitions
        }
        asked = named.get("partition", "")
        on_pool = not asked or bool(pools & set(asked.split(",")))
        return on_pool and (named.get("account") in accounts or "account" not in named)

    def _governed(self) -> tuple[Fleet, SlurmEngine]:
        assert self.fleet is not None
        return self.fleet, self.build(self.fleet.clusters[0], self.fleet.pools)


def uninstall(instance: Instance, *, twins: bool = False) -> None:
    """Restore the site's files; with `twins`, keep the partitions in which jobs may still run."""
    lines = instance.run("scontrol", "--oneliner", "show", "partitions").stdout.splitlines() if twins else []
    names = {line.split()[0].removeprefix("PartitionName="): line for line in lines}
    kept = [
        f"PartitionName={name} Nodes={dict(w.split('=', 1) for w in line.split() if '=' in w)['Nodes']}"
        for name, line in names.items()
        if name.endswith("-lent")
    ]
    configure(instance, kept, Site(instance.site).text("job_submit.lua") or None)


def _with_options_not_shown(line: str, site: Site) -> str:
    """A line of a second partition with what slurmrestd does not show of the first, as its comment asks."""
    name = line.split(maxsplit=1)[0].removeprefix("PartitionName=")
    if not line.startswith("PartitionName=") or not name.endswith("-lent"):
        return line
    first = f"PartitionName={name.removesuffix('-lent')}"
    words = [w for own in site.lines("slurm.conf") if own.split(maxsplit=1)[0] == first for w in own.split()]
    return " ".join((line, *(word for word in words if word.partition("=")[0] in NOT_SHOWN.split(", "))))
