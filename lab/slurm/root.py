"""The file system Slurm lives in: a Debian root made once a version, and a layer of each instance's own."""

from __future__ import annotations

from pathlib import Path

from lab import apt, folders, mounts
from lab.errors import LabError
from lab.programs import output_of
from lab.progress import step
from lab.versions import SLURM_ROOT, SLURM_SUITES

PACKAGES = (
    "munge",
    "mariadb-server-core",
    "mariadb-client-core",
    "slurmctld",
    "slurmd",
    "slurmdbd",
    "slurmrestd",
    "slurm-client",
    "slurm-wlm-basic-plugins",
    "slurm-wlm-jwt-plugin",
    "slurm-wlm-mysql-plugin",
    "procps",
)
# People of the lab, the service user of Fairway, and the one slurmrestd runs as.
USERS = {"fairway": 2000, "alice": 2001, "bob": 2002, "carol": 2003, "slurmrest": 2999}
GPUS_A_NODE = 8


def installed(version: str) -> Path:
    """The root of a Slurm version, shared by all its instances and never written to."""

    def make(folder: Path) -> None:
        suite = SLURM_SUITES[version]
        apt.require("mmdebstrap", "mmdebstrap")
        with step(f"Install Slurm {version} (Debian {suite}) into a root of its own"):
            _bootstrap(suite, folder)
            _people_and_devices(folder)

    return folders.built("slurm", f"{version}-{SLURM_ROOT}", make)


def _bootstrap(suite: str, folder: Path) -> None:
    output_of(
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        '--aptopt=APT::Install-Recommends "false"',
        # The Release file of a suite in the making may have passed its date.
        '--aptopt=Acquire::Check-Valid-Until "false"',
        f"--include={','.join(PACKAGES)}",
        suite,
        str(folder),
        apt.mirror(),
    )
    for archive in (folder / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()


def _people_and_devices(folder: Path) -> None:
    for name, number in USERS.items():
        output_of("chroot", str(folder), "useradd", "--create-home", "--uid", str(number), name)
    output_of("chroot", str(folder), "useradd", "--system", "--no-create-home", "mysql")
    for number in range(GPUS_A_NODE):  # a GPU is a device file to Slurm; these are more of /dev/null
        output_of("mknod", "-m", "666", str(folder / f"dev/fakegpu{number}"), "c", "1", "3")


def mounted(version: str, instance: Path) -> Path:
    """The instance's own view of the root: what it writes stays in its folder."""
    lower = installed(version)
    root, upper, work = instance / "root", instance / "upper", instance / "work"
    if not (root / ".copied").exists() and not mounts.mounted(root):
        for folder in (root, upper, work):
            folder.mkdir(parents=True, exist_ok=True)
        layers = f"lowerdir={lower},upperdir={upper},workdir={work}"
        if not mounts.mount("-t", "overlay", "overlay", "-o", layers, root):
            _copy(lower, root)
    for name, how in (("proc", ("-t", "proc", "proc")), ("sys", ("--bind", "/sys"))):
        if not mounts.mounted(root / name) and not mounts.mount(*how, root / name):
            raise LabError(f"{root / name} cannot be mounted", hint="the lab's Slurm needs root")
    return root


def _copy(lower: Path, root: Path) -> None:
    """For kernels without overlay mounts: slower and larger, otherwise the same."""
    output_of("cp", "--archive", "--reflink=auto", f"{lower}/.", str(root))
    (root / ".copied").touch()
