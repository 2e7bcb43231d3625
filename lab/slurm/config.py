"""Slurm's configuration files, as text made from a few numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lab.slurm.site import Site

# Above this many nodes a burst of launches can bring a small machine to a standstill.
CALM_ABOVE_NODES = 40
# What a policy needs of slurm.conf: kept apart from it, as on a cluster whose slurm.conf is somebody else's.
POLICY_FILE = "policy.conf"


@dataclass(frozen=True, slots=True)
class Layout:
    """What one cluster looks like: its host, its ports, its nodes."""

    version: str
    host: str
    gpu_nodes: int
    control_port: int
    accounting_port: int
    node_ports: range  # one a GPU node, then one for the MIG node, then one a spot node
    spot_nodes: int = 0
    site: Site | None = None
    """Whose files it has instead of the lab's own."""
    partition_qos: bool = True
    """Whether the QOS that partitions of the site name exist already."""

    @property
    def gpu_names(self) -> list[str]:
        return [f"gpu{number:03}" for number in range(1, self.gpu_nodes + 1)]

    @property
    def mig_names(self) -> list[str]:
        return ["mig001"]

    @property
    def spot_names(self) -> list[str]:
        return [f"spot{number:03}" for number in range(1, self.spot_nodes + 1)]

    @property
    def node_names(self) -> list[str]:
        if self.site:
            return self.site.node_names
        return [*self.gpu_names, *self.mig_names, *self.spot_names]

    @property
    def gpu_range(self) -> str:
        return f"gpu[001-{self.gpu_nodes:03}]"

    @property
    def spot_range(self) -> str:
        return f"spot[001-{self.spot_nodes:03}]"


AUTHENTICATION = [
    "AuthType=auth/munge",
    "AuthAltTypes=auth/jwt",
    "AuthAltParameters=jwt_key=/etc/slurm/jwt.key",
    "SlurmUser=slurm",
    "LogTimeFormat=iso8601_ms,format_stderr",
]


def slurmdbd(layout: Layout, policy: Sequence[str] = ()) -> str:
    return _lines(
        [
            *AUTHENTICATION,
            f"DbdHost={layout.host}",
            "DbdAddr=127.0.0.1",
            f"DbdPort={layout.accounting_port}",
            "CommunicationParameters=NoInAddrAny",
            "StorageType=accounting_storage/mysql",
            "StorageHost=localhost",
            "StorageUser=slurm",
            "StorageLoc=slurm_acct_db",
            "PidFile=/run/slurm/slurmdbd.pid",
            *policy,
        ]
    )


_LISTS = {"accountingstorageenforce", "accountingstoragetres", "jobsubmitplugins", "privatedata"}
"""Parameters whose value is a list that several people add to."""


def slurm(layout: Layout, policy: Sequence[str] = ()) -> str:
    """slurm.conf. What `policy` sets too is left out and follows by an include; partitions are merged."""
    said = {_subject(line): line for line in policy}
    lines = _of_site(layout, layout.site) if layout.site else _of_lab(layout)
    kept = []
    for line in lines:
        if (other := said.get(_subject(line))) is None:
            kept.append(line)
        elif line.startswith("PartitionName="):
            kept.append(_merged(line, other))
    return _lines([*kept, f"Include {POLICY_FILE}"])


def _of_lab(layout: Layout) -> list[str]:
    return [
        *_control(layout),
        "TopologyPlugin=topology/tree",
        "JobSubmitPlugins=lua",
        *_scheduling(layout),
        *_database(layout),
        *_accounting(),
        *_nodes(layout),
        *_partitions(layout),
    ]


def _of_site(layout: Layout, site: Site) -> list[str]:
    """The site's lines, and of the lab's those that this machine needs and the site does not have."""
    own = site.slurm_conf(_where(layout), layout.node_ports, with_partition_qos=layout.partition_qos)
    has = {_subject(line) for line in own}
    lab = [*_control(layout), *(_database(layout) if site.has_accounting else [])]
    if site.text("job_submit.lua"):
        lab.append("JobSubmitPlugins=lua")
    return [*(line for line in lab if _subject(line) not in has), *own]


def policy_file(layout: Layout, policy: Sequence[str]) -> str:
    """The lines of a policy that slurm.conf does not have itself."""
    partitions = layout.site.lines("slurm.conf") if layout.site else _partitions(layout)
    own = {_subject(line) for line in partitions if line.startswith("PartitionName=")}
    # Slurm complains of an empty file.
    return _lines(["# what a policy needs", *(line for line in policy if _subject(line) not in own)])


def beside_site(lines: Sequence[str], site: Site) -> list[str]:
    """`lines` as an administrator writes them who keeps what the site's own lists have."""
    own = {_subject(line): line.partition("=")[2].strip() for line in site.lines("slurm.conf")}
    merged = []
    for line in lines:
        key, _, value = line.partition("=")
        words = own[_subject(line)].split(",") if _subject(line) in _LISTS & own.keys() else []
        has = {word.lower() for word in words}
        all_words = [*words, *(word for word in value.split(",") if word.lower() not in has)]
        if "limits" in has:
            all_words = words  # enough for a policy, and jobs may have any QOS as before
        merged.append(f"{key}={','.join(all_words)}" if words else line)
    return merged


def _merged(line: str, other: str) -> str:
    """A partition as an administrator edits it: what `other` says, beside what stood there."""
    words = {}
    for word in [*line.split(), *other.split()]:
        words[word.partition("=")[0].lower()] = word
    return " ".join(words.values())


def _subject(line: str) -> str:
    """What a line sets: a parameter, or a partition by its name."""
    key, _, value = line.partition("=")
    return f"{key}={value.split()[0]}".lower() if key.lower() == "partitionname" else key.strip().lower()


def _control(layout: Layout) -> list[str]:
    return [
        "ClusterName=fairway",
        f"SlurmctldHost={layout.host}(127.0.0.1)",
        f"SlurmctldPort={layout.control_port}",
        *AUTHENTICATION,
        # A requeued job may start again only after this many seconds.
        "AuthInfo=cred_expire=10",
        "CommunicationParameters=NoInAddrAny,NoCtldInAddrAny",
        "StateSaveLocation=/var/spool/slurm/ctld",
        "SlurmdSpoolDir=/var/spool/slurm/d/%n",
        "SlurmctldPidFile=/run/slurm/slurmctld.pid",
        "SlurmdPidFile=/run/slurm/slurmd-%n.pid",
        "ProctrackType=proctrack/linuxproc",
        "TaskPlugin=task/none",
        "JobAcctGatherType=jobacct_gather/none",
        "SlurmdParameters=config_overrides",
        "MailProg=/bin/true",
        "ReturnToService=2",
        "SlurmdTimeout=20",
        "KillWait=5",
        "MinJobAge=300",
        "MaxJobCount=200000",
        "MaxArraySize=100001",
        *(["MetricsType=metrics/openmetrics"] if layout.version != "24.11" else []),
    ]


def _scheduling(layout: Layout) -> list[str]:
    starts = "sched_min_interval=200000,batch_sched_delay=1"
    if layout.gpu_nodes > CALM_ABOVE_NODES:
        starts = "defer,sched_min_interval=1000000,sched_max_job_start=40,bf_max_job_start=40"
    return [
        "SelectType=select/cons_tres",
        "SelectTypeParameters=CR_Core_Memory",
        "SchedulerType=sched/backfill",
        f"SchedulerParameters={starts},sched_interval=10,bf_interval=5,bf_continue,bf_max_job_test=1000,default_queue_depth=500",
        "PreemptType=preempt/qos",
        "PreemptMode=REQUEUE",
        "PreemptParameters=send_user_signal",
        "JobRequeue=1",
        "PriorityType=priority/multifactor",
        "PriorityDecayHalfLife=00:05:00",
        "PriorityCalcPeriod=00:01:00",
        "PriorityWeightAge=1000",
        "PriorityWeightFairshare=100000",
        "PriorityWeightQOS=10000",
        "PriorityWeightTRES=GRES/gpu=1000",
    ]


def _database(layout: Layout) -> list[str]:
    return [
        "AccountingStorageType=accounting_storage/slurmdbd",
        "AccountingStorageHost=127.0.0.1",
        f"AccountingStoragePort={layout.accounting_port}",
    ]


def _accounting() -> list[str]:
    return [
        "AccountingStorageEnforce=associations,limits,qos,safe",
        "AccountingStorageTRES=gres/gpu,gres/gpu:a100,gres/gpu:1g.10gb,gres/gpu:3g.40gb",
        "GresTypes=gpu",
    ]


def _where(layout: Layout) -> str:
    return f"NodeHostname={layout.host} NodeAddr=127.0.0.1"


def _nodes(layout: Layout) -> list[str]:
    where = _where(layout)
    gpu, mig = layout.node_ports[: layout.gpu_nodes], layout.node_ports[layout.gpu_nodes]
    spot = layout.node_ports[layout.gpu_nodes + 1 :][: layout.spot_nodes]
    return [
        "NodeName=DEFAULT Sockets=1 CoresPerSocket=64 ThreadsPerCore=1 RealMemory=512000 State=UNKNOWN",
        f"NodeName={layout.gpu_range} {where} Port=[{gpu[0]}-{gpu[-1]}] Gres=gpu:a100:8 Feature=a100",
        f"NodeName=mig001 {where} Port={mig} Gres=gpu:1g.10gb:4,gpu:3g.40gb:2 Feature=mig",
        *(
            [f"NodeName={layout.spot_range} {where} Port=[{spot[0]}-{spot[-1]}] Gres=gpu:a100:8 Feature=a100"]
            if spot
            else []
        ),
    ]


def _partitions(layout: Layout) -> list[str]:
    # Without the weights fair-share would count CPUs.
    weights = 'TRESBillingWeights="CPU=0.0,GRES/gpu=1.0"'
    return [
        f"PartitionName=DEFAULT MaxTime=INFINITE DefaultTime=10 State=UP DefMemPerCPU=1000 {weights}",
        f"PartitionName=gpu Nodes={layout.gpu_range} Default=YES",
        "PartitionName=mig Nodes=mig001",
        *([f"PartitionName=spot Nodes={layout.spot_range}"] if layout.spot_nodes else []),
    ]


def gres(layout: Layout) -> str:
    if layout.site:
        return layout.site.text("gres.conf")
    return _lines(
        [
            f"NodeName={layout.gpu_range} Name=gpu Type=a100 File=/dev/fakegpu[0-7]",
            "NodeName=mig001 Name=gpu Type=1g.10gb File=/dev/fakegpu[0-3]",
            "NodeName=mig001 Name=gpu Type=3g.40gb File=/dev/fakegpu[4-5]",
            *(
                [f"NodeName={layout.spot_range} Name=gpu Type=a100 File=/dev/fakegpu[0-7]"]
                if layout.spot_nodes
                else []
            ),
        ]
    )


def topology(layout: Layout) -> str:
    """Two racks of GPU nodes, and one of all others."""
    if layout.site:
        return layout.site.text("topology.conf")
    names = layout.gpu_names
    half = (len(names) + 1) // 2
    racks = [r for r in (names[:half], names[half:], [*layout.mig_names, *layout.spot_names]) if r]
    return _lines(
        [
            *(f"SwitchName=rack{n} Nodes={','.join(rack)}" for n, rack in enumerate(racks, 1)),
            f"SwitchName=core Switches=rack[1-{len(racks)}]",
        ]
    )


CGROUP = "CgroupPlugin=disabled\n"

# Lets every job through. Slurm reads it anew when it changes, so a policy may replace it.
JOB_SUBMIT = """\
function slurm_job_submit(job, partitions, uid)
  return slurm.SUCCESS
end

function slurm_job_modify(job, record, partitions, uid)
  return slurm.SUCCESS
end
"""


def _lines(lines: Sequence[str]) -> str:
    return "\n".join(lines) + "\n"
