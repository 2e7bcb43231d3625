"""The FOCUS Foundation's validator from PyPI, in an environment of its own under build/, made from its lock.

python -m tests.integration.cost.focus_validator FILE.csv      what it says of a file
"""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
LOCK = ROOT / "requirements/focus.txt"
VERSION = "1.2"
"""Of FOCUS: the newest whose rules the validator brings with it; it would download others."""

CRITERIA = (
    "ACCOUNT_NAMING_SUPPORTED",
    "BILLING_BASED_ON_PROVISIONED_RESOURCES_SUPPORTED",
    "CAPACITY_RESERVATION_SUPPORTED",
    "COMMITMENT_DISCOUNT_SUPPORTED",
    "MULTIPLE_BILLING_ACCOUNT_TYPES_SUPPORTED",
    "MULTIPLE_PRICING_CATEGORIES_SUPPORTED",
    "MULTIPLE_SUB_ACCOUNT_TYPES_SUPPORTED",
    "NEGOTIATED_PRICING_SUPPORTED",
    "PUBLIC_PRICE_LIST_SUPPORTED",
    "REGION_SUPPORTED",
    "RESOURCE_TYPE_ASSIGNMENT_SUPPORTED",
    "SUB_ACCOUNT_SUPPORTED",
    "TAGGING_SUPPORTED",
    "UNIT_PRICING_SUPPORTED",
    "USAGE_MEASUREMENT_SUPPORTED",
)
"""Everything that a provider may support and Fairway does: without them most rules are not looked at."""

UNSATISFIABLE = frozenset(
    {
        # Both of a pair stand in the rules without a condition; whoever keeps one breaks the other. Their
        # parent, that one of them must hold, passes.
        "InvoiceId-C-004-C",
        # The condition is written {"AND": …}, which the validator does not read: it asks all rows to be null,
        # and (004) all rows not to be.
        "CapacityReservationStatus-C-003-C",
        "CapacityReservationStatus-C-004-C",
        "CapacityReservationStatus-C-002-C",
        "CapacityReservationStatus-C-000-C",
        # The condition is the opposite of the rule's words: a status is asked for without a commitment.
        "CommitmentDiscountStatus-C-004-C",
        "CommitmentDiscountStatus-C-002-C",
        "CommitmentDiscountStatus-C-000-C",
    }
)
"""Rules of model 1.2.0.1 that no file with and without commitments can keep, as it is written."""


class NoValidator(Exception):
    """It cannot be had here; the text says why."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What it said."""

    passed: int
    skipped: int
    failed: frozenset[str]
    text: str


def environment() -> Path:
    """Its Python, made when the lock changed; raises NoValidator."""
    digest = hashlib.sha256(LOCK.read_bytes()).hexdigest()[:12]
    home = ROOT / "build" / f"focus-validator-{digest}"
    python = home / "bin/python"
    if not (home / ".done").exists():
        _run("uv", "venv", "--quiet", "--allow-existing", "--python", str(_python312()), str(home))
        _run("uv", "pip", "sync", "--quiet", "--python", str(python), "--require-hashes", str(LOCK))
        (home / ".done").touch()
    return python


def validate(
    path: Path, criteria: tuple[str, ...] = CRITERIA, seconds: float = 3600, only: str = ""
) -> Verdict:
    """What it says of a CSV file. It looks for its own files from where it is installed."""
    python = environment()
    inside = next((python.parents[1] / "lib").glob("python3.*/site-packages"))
    command = [str(python), "-m", "focus_validator.main", "--data-file", str(path.absolute())]
    command += ["--validate-version", VERSION, "--block-download"]
    command += ["--applicability-criteria", ",".join(criteria)] if criteria else []
    command += ["--filter-rules", only] if only else []
    ran = subprocess.run(command, cwd=inside, capture_output=True, text=True, timeout=seconds, check=False)
    counts = re.search(r"Pass: (\d+) \| Fail: (\d+) \| Skipped: (\d+)", ran.stdout)
    if counts is None:
        raise AssertionError(f"the validator said nothing: {ran.stderr[-2000:]}")
    failed = frozenset(re.findall(r"^\S+ ([A-Za-z]+-[A-Z]-\d{3}-[A-Z]): FAIL", ran.stdout, re.MULTILINE))
    assert len(failed) == int(counts[2]), ran.stdout[-4000:]
    return Verdict(int(counts[1]), int(counts[3]), failed, ran.stdout)


def _python312() -> Path:
    folders = sorted(Path.home().glob(".pyenv/versions/3.12*/bin"), reverse=True)
    for found in (shutil.which("python3.12"), *(str(folder / "python3.12") for folder in folders)):
        if found is None:
            continue
        ran = subprocess.run([found, "--version"], capture_output=True, text=True, timeout=30, check=False)
        if ran.returncode == 0 and ran.stdout.startswith("Python 3.12"):
            return Path(found)
    raise NoValidator("there is no Python 3.12 here, which the validator needs")


def _run(*command: str) -> None:
    try:
        ran = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NoValidator(f"{command[0]} could not make its environment: {error}") from None
    if ran.returncode:
        raise NoValidator(f"its packages could not be had: {ran.stderr.strip()[-300:]}")


if __name__ == "__main__":
    said = validate(Path(sys.argv[1]))
    sys.stdout.write(f"{said.text[-3000:]}\n")
    left = sorted(said.failed - UNSATISFIABLE)
    sys.stdout.write(f"passed {said.passed}, skipped {said.skipped}, failed {', '.join(left) or 'none'}\n")
    sys.exit(bool(left))
