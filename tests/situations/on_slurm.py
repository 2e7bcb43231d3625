"""Situations of Slurm: what sbatch can ask for, and what a site configures beside Fairway."""

from __future__ import annotations

from tests.situations.resolve import engine_command, shorter, two_at_once
from tests.situations.situation import SLURM, situation
from tests.situations.slurm import SlurmDesk
from tests.waiting import until

NO_QOS = "Kueue has no QOS"
NO_ACCOUNTS = "Kubernetes has no accounts"
NO_PARTITIONS = "Kubernetes has no partitions"
GPU = "--gres=gpu:a100:1"


def site_qos(desk: SlurmDesk, *limits: str) -> None:
    """Make a QOS of the site's own that team research may use, until the situation is over."""
    desk.slurm.accounts("add", "qos", "sitecap", *limits)
    desk.undo.callback(desk.slurm.accounts, "delete", "qos", "sitecap")
    desk.slurm.accounts("modify", "user", "alice", "where", "account=research", "set", "qos+=sitecap")


def site_job(desk: SlurmDesk, gres: str = GPU, qos: str = "sitecap", partition: str = "gpu-lent") -> str:
    """Submit a job of alice's past job_submit.lua, which lets root alone choose a site's QOS."""
    where = (f"--qos={qos}", f"--partition={partition}")
    number = desk.slurm.sbatch(None, "--uid=alice", "--account=research", gres, *where)
    return desk.known(number, "alice")


# what the request says


@situation(
    "on hold by an administrator",
    "HeldByAdmin",
    only=SLURM,
    because="only Slurm tells them apart",
    resolve=engine_command(r"scontrol release \d+"),
)
def held_by_admin(desk: SlurmDesk) -> str:
    job = desk.sbatch("research", GPU, "--begin=now+1hour")
    desk.slurm.control("hold", str(desk.job(job).engine_id))
    desk.slurm.control("update", f"JobId={desk.job(job).engine_id}", "StartTime=now")
    return job


@situation(
    "its begin time is in the future (`--begin`)",
    "NotYetTime",
    shows=["starts no earlier than .* UTC, in (59|60) min"],
    only=SLURM,
    because="a Job has no begin time",
)
def begins_later(desk: SlurmDesk) -> str:
    return desk.sbatch("research", GPU, "--begin=now+1hour")


@situation(
    "after a native job that runs (`--dependency`)",
    "AfterAnother",
    shows=[r"starts after before \(\w+, running\) by alice"],
    only=SLURM,
    because="a Job has no dependencies of its own",
)
def after_a_native_job(desk: SlurmDesk) -> str:
    before = desk.sbatch("research", GPU, "--job-name=before")
    desk.until_running(before)
    return desk.sbatch("research", GPU, f"--dependency=afterok:{desk.job(before).engine_id}")


@situation(
    "after a job that failed, so that it can never start",
    "DependencyNeverMet",
    shows=["starts after broken", "dependency="],
    only=SLURM,
    because="Fairway cancels its own such jobs",
    resolve=engine_command(r"scontrol update jobid=\d+ dependency=", "alice"),
)
def dependency_never_met(desk: SlurmDesk) -> str:
    before = desk.sbatch("research", GPU, "--job-name=broken")
    desk.until_running(before)
    after = desk.sbatch("research", GPU, f"--dependency=afterok:{desk.job(before).engine_id}")
    desk.cancel(before)
    return after


@situation(
    "an array runs as many tasks at once as it allows (`%1`)",
    "ArrayTaskLimit",
    shows=["arraytaskthrottle"],
    only=SLURM,
    because="arrays on Kubernetes have no such limit",
    resolve=two_at_once,
)
def array_task_limit(desk: SlurmDesk) -> str:
    number = desk.slurm.sbatch("alice", "--account=research", GPU, "--array=0-1%1")
    first, second = (desk.known(f"{number}_{task}", "alice") for task in range(2))
    desk.until_running(first)
    return second


@situation(
    "the job requests more GPUs than one job of the team may use (native)",
    "JobAboveLimit",
    shows=["one job of team limited may use 3 GPUs"],
    only=SLURM,
    because="an admission policy refuses it at once",
)
def above_job_limit(desk: SlurmDesk) -> str:
    return desk.sbatch("limited", "--gres=gpu:a100:4")


@situation(
    "the job requests more time than one job of the team may have (native)",
    "JobTimeLimit",
    shows=["requests 5 h, and one job of team limited may run for (1 h|60 min)"],
    only=SLURM,
    because="an admission policy refuses it at once",
)
def above_time_limit(desk: SlurmDesk) -> str:
    return desk.sbatch("limited", GPU, time="5:00:00")


@situation(
    "more memory than any node has",
    "NoNodeFits",
    shows=["900 GB of memory per node"],
    only=SLURM,
    because="Fairway's queues count GPUs only; see the taint and the label below",
)
def more_memory_than_any_node(desk: SlurmDesk) -> str:
    return desk.sbatch("research", GPU, "--mem=900G")


@situation(
    "GPUs are free, but not the memory that the job requests with them",
    "NotEnoughFree",
    shows=["GPUs are free, but not the CPUs or memory"],
    only=SLURM,
    because="Fairway's queues count GPUs only",
)
def no_memory_free(desk: SlurmDesk) -> str:
    for node in desk.engine.nodes:
        desk.sbatch("research", GPU, "--mem=400G", f"--nodelist={node}")
    for job in list(desk.line.client("admin").jobs(states=["open"], most=50)):
        desk.until_running(job.id)
    return desk.sbatch("research", GPU, "--mem=200G")


@situation(
    "a feature that no node of the pool has (`--constraint`)",
    "NoNodeFits",
    shows=["requests nodes with mig"],
    only=SLURM,
    because="see the label below",
)
def no_such_feature(desk: SlurmDesk) -> str:
    return desk.sbatch("research", GPU, "--constraint=mig")


@situation(
    "the licenses that it requests are in use",
    "LicensesInUse",
    shows=["licenses matlab@flex"],
    only=SLURM,
    because="Kubernetes has no licenses",
)
def licenses_in_use(desk: SlurmDesk) -> str:
    license_ = ["add", "resource", "name=matlab", "server=flex", "count=1", "type=license"]
    desk.slurm.accounts(*license_, "servertype=flexlm", "cluster=fairway", "allowed=100")
    desk.undo.callback(desk.slurm.accounts, "delete", "resource", "name=matlab")
    until(lambda: "matlab@flex" in desk.slurm.control("show", "licenses"), 30, "the license is known")
    desk.undo.callback(desk.clear)
    holder = desk.sbatch("research", GPU, "--licenses=matlab@flex:1")
    desk.until_running(holder)
    return desk.sbatch("research", GPU, "--licenses=matlab@flex:1")


# reservations


def reserve(desk: SlurmDesk, *words: str) -> None:
    def gone() -> None:
        desk.slurm.instance.run("scontrol", "delete", "ReservationName=demo", check=False)

    gone()  # of a run that was ended
    desk.undo.callback(gone)
    desk.slurm.control("create", "reservation", "ReservationName=demo", "Duration=60", *words)


@situation(
    "its reservation has not begun",
    "ReservationWait",
    shows=["reservation demo"],
    only=SLURM,
    because="Kubernetes has no reservations",
)
def reservation_not_begun(desk: SlurmDesk) -> str:
    reserve(desk, "StartTime=now+60minutes", "Users=alice", "Nodes=gpu001")
    desk.undo.callback(desk.clear)
    return desk.sbatch("research", GPU, "--reservation=demo")


@situation(
    "the node that it names is reserved for others",
    "NodesUnavailable",
    shows=["gpu001"],
    only=SLURM,
    because="Kubernetes has no reservations",
)
def node_reserved_for_others(desk: SlurmDesk) -> str:
    reserve(desk, "StartTime=now", "Users=bob", "Nodes=gpu001")
    return desk.sbatch("research", GPU, "--nodelist=gpu001")


# partitions


@situation(
    "more time than its partition allows",
    "TimeAbovePartition",
    shows=["requests 5 h, and gpu, gpu-lent allows 2 h at most"],
    only=SLURM,
    because=NO_PARTITIONS,
    resolve=shorter,
)
def above_partition_time(desk: SlurmDesk) -> str:
    desk.undo.callback(desk.slurm.partitions, "MaxTime=UNLIMITED")
    desk.slurm.partitions("MaxTime=02:00:00")
    return desk.sbatch("research", GPU, time="5:00:00")


@situation(
    "the partition is down",
    "PartitionClosed",
    shows=["gpu is down"],
    only=SLURM,
    because=NO_PARTITIONS,
)
def partition_down(desk: SlurmDesk) -> str:
    desk.undo.callback(desk.slurm.partitions, "State=UP")
    desk.slurm.partitions("State=DOWN")
    return desk.sbatch("research", GPU)


@situation(
    "more nodes than its partition allows for one job",
    "PartitionLimit",
    shows=["requests 2 nodes, and gpu, gpu-lent allows 1 at most"],
    only=SLURM,
    because=NO_PARTITIONS,
)
def above_partition_nodes(desk: SlurmDesk) -> str:
    desk.undo.callback(desk.slurm.partitions, "MaxNodes=UNLIMITED")
    desk.slurm.partitions("MaxNodes=1")
    return desk.sbatch("research", GPU, "--nodes=2")


@situation(
    "the partition admits other accounts only",
    "AccountRefused",
    shows=["admits the accounts product, not research"],
    only=SLURM,
    because=NO_PARTITIONS,
)
def account_not_allowed(desk: SlurmDesk) -> str:
    desk.undo.callback(desk.slurm.partitions, "AllowAccounts=ALL")
    job = desk.sbatch("research", GPU, "--hold")
    desk.slurm.partitions("AllowAccounts=product")
    desk.slurm.control("release", str(desk.job(job).engine_id))
    return job


# limits of the site


@situation(
    "a QOS of the site allows no more jobs",
    "QosLimit",
    only=SLURM,
    because=NO_QOS,
)
def site_qos_jobs(desk: SlurmDesk) -> str:
    site_qos(desk, "GrpJobs=0")
    desk.undo.callback(desk.clear)
    return site_job(desk)


@situation(
    "fewer GPUs than a QOS of the site requires",
    "JobBelowMinimum",
    only=SLURM,
    because=NO_QOS,
)
def below_qos_minimum(desk: SlurmDesk) -> str:
    site_qos(desk, "MinTRESPerJob=gres/gpu=4")
    desk.undo.callback(desk.clear)
    return site_job(desk)


@situation(
    "more GPUs than a QOS of the site allows for one job",
    "JobAboveLimit",
    only=SLURM,
    because=NO_QOS,
)
def above_qos_maximum(desk: SlurmDesk) -> str:
    site_qos(desk, "MaxTRESPerJob=gres/gpu=1")
    desk.undo.callback(desk.clear)
    return site_job(desk, "--gres=gpu:a100:4")


@situation(
    "the QOS of the job was removed",
    "QosGone",
    only=SLURM,
    because=NO_QOS,
    except_on={"slurm-26": "Slurm 26.05 refuses to remove a QOS that jobs have"},
)
def qos_gone(desk: SlurmDesk) -> str:
    site_qos(desk, "GrpJobs=0")
    job = site_job(desk)
    desk.why(job, ("QosLimit",))
    desk.undo.close()
    return job


@situation(
    "a limit of the site on the account: CPUs",
    "AccountLimit",
    only=SLURM,
    because=NO_ACCOUNTS,
)
def account_cpu_limit(desk: SlurmDesk) -> str:
    limit(desk, "GrpTRES=cpu=0", "GrpTRES=cpu=-1")
    return desk.sbatch("research", GPU)


@situation(
    "a limit of the site on GPU minutes",
    "UsageLimit",
    only=SLURM,
    because=NO_ACCOUNTS,
)
def usage_limit(desk: SlurmDesk) -> str:
    limit(desk, "GrpTRESRunMins=gres/gpu=1", "GrpTRESRunMins=gres/gpu=-1")
    return desk.sbatch("research", GPU)


def limit(desk: SlurmDesk, setting: str, without: str) -> None:
    """Set a limit on one user of an account, until the situation is over."""
    user = ("modify", "user", "alice", "where", "account=research", "set")
    desk.undo.callback(desk.slurm.accounts, *user, without)
    desk.slurm.accounts(*user, setting)


# the translation of the policy


@situation(
    "the guarantee is in use, and the job may not borrow",
    "GuaranteeInUse",
    "NotEnoughFree",
    shows=["No GPU is free"],
    scene="full",
    only=SLURM,
    because="a queue always has what the team may borrow",
)
def guarantee_in_use(desk: SlurmDesk) -> str:
    return desk.sbatch("research", "--gres=gpu:a100:8", "--qos=research.gpu.own")


@situation(
    "native sbatch that job_submit.lua has not seen",
    "NotAdmitted",
    only=SLURM,
    because="see `no queue` below",
)
def past_job_submit(desk: SlurmDesk) -> str:
    return site_job(desk, qos="fairway.lent", partition="gpu")
