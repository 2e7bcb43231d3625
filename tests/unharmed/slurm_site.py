"""The files of a Slurm site, with and without Fairway's, and what its policy may decide about."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from fairway.engines.slurm.policy.partition_lines import NOT_SHOWN
from fairway.engines.slurm.policy.render import render_slurm
from fairway.model.fleet import SlurmPlace
from lab.slurm.cluster import configure
from lab.slurm.site import Site
from tests.slurm_conf import slurm_lines
from tests.unharmed.imported import SITE

if TYPE_CHECKING:
    from fairway.model.fleet import Fleet
    from lab.instance import Instance
    from tests.unharmed.leave_site import GovernedSite
    from tests.unharmed.probes import Probe

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


async def install(instance: Instance, governed: GovernedSite) -> None:
    """Install the rendered files beside the site's own, as an administrator does who reads them."""
    found = await governed.engine.find_policy()
    files = render_slurm(governed.fleet, SITE, found.engine_version, found.settings)
    site = Site(instance.site)
    lines = [
        _with_options_not_shown(line, site)
        for line in slurm_lines(files)
        if not line.startswith("PrivateData=")
    ]
    own = site.text("job_submit.lua")
    script = files["job_submit.lua"]
    script = f"{own}{BESIDE_SITE.format(fairway=script)}" if own else script
    await asyncio.to_thread(configure, instance, lines, script)


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


def is_governed(fleet: Fleet, probe: Probe) -> bool:
    """Whether a probe is GPU work of a team on a pool's partition: a policy may decide about it."""
    if not any("gpu" in option for option in probe.options):
        return False
    named = dict(option.removeprefix("--").split("=", 1) for option in probe.options if "=" in option)
    accounts = {team.account_name for team in fleet.teams}
    pools = {p for pool in fleet.pools if isinstance(pool.place, SlurmPlace) for p in pool.place.partitions}
    asked = named.get("partition", "")
    on_pool = not asked or bool(pools & set(asked.split(",")))
    return on_pool and (named.get("account") in accounts or "account" not in named)


def _with_options_not_shown(line: str, site: Site) -> str:
    """A line of a second partition with what slurmrestd does not show of the first, as its comment asks."""
    name = line.split(maxsplit=1)[0].removeprefix("PartitionName=")
    if not line.startswith("PartitionName=") or not name.endswith("-lent"):
        return line
    first = f"PartitionName={name.removesuffix('-lent')}"
    words = [w for own in site.lines("slurm.conf") if own.split(maxsplit=1)[0] == first for w in own.split()]
    return " ".join((line, *(word for word in words if word.partition("=")[0] in NOT_SHOWN.split(", "))))
