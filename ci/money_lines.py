"""Count the lines of money code by package: python -m ci.money_lines [COMMIT ...]

Counted are `cost/` and what is named after usage, prices, charges and their documents in the other packages.
The review of 2026-11-16 counted 12.6 thousand lines at 4d17e88: cost 2.9, control 1.5, ledger 2.6, api 1.3,
web 1.1, cli 1.8, files and model 1.4. Of control, api and cli, much is in services, wire and views since.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter

NAMED = re.compile(
    r"cost|usage|meter(?!_)|metering|budget|price|bill|charge|focus|closing|closed|statement|report|fleet_history"
    r"|export|reconcile|money|spending|ledger/(usage/)?(archive|capacity|parquet)"
)
OTHER = re.compile(r"gpu_use|telemetry|parameter|import")
FILES = re.compile(
    r"^src/fairway/((?:cost|control|ledger|api|web|cli|files|model|services|wire|views)/.+\.py)$"
)


def money_lines(commit: str) -> Counter[str]:
    """Count lines by package."""
    found: Counter[str] = Counter()
    for path in _git("ls-tree", "-r", "--name-only", commit, "src/fairway").splitlines():
        name = FILES.match(path)
        if name and (name[1].startswith("cost/") or NAMED.search(name[1])) and not OTHER.search(name[1]):
            found[name[1].split("/")[0]] += _git("show", f"{commit}:{path}").count("\n")
    return found


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def main() -> None:
    """Print a line for each commit."""
    for commit in sys.argv[1:] or ["HEAD"]:
        found = money_lines(commit)
        rooms = ", ".join(f"{room} {lines}" for room, lines in sorted(found.items()))
        print(f"{commit}: {found.total()} lines ({rooms})")


if __name__ == "__main__":
    main()
