"""What came of the promise `unharmed` on one site, for docs/promises.md."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from tests.scenarios import results
from tests.scenarios.results import Result
from tests.scenarios.stage import Verdict
from tests.scenarios.table import UNHARMED
from tests.unharmed.probes import Outcome


@dataclass
class Report:
    """One site: what people tried, and what broke the promise after each step."""

    site: str
    """For people: `Slurm, campus`."""
    before: Iterable[Outcome]
    steps: list[str] = field(default_factory=list)
    harms: dict[str, list[str]] = field(default_factory=dict)
    """What broke the promise, by step; empty if nothing did."""
    governed: int = 0
    """GPU work of teams, and what the plan announces, that comes out differently under the policy."""
    seconds: float = 0

    def add(self, step: str, harms: Sequence[str]) -> None:
        """Add what a step did."""
        self.steps.append(step)
        if harms:
            self.harms[step] = list(harms)

    def keep(self) -> None:
        """Put it where `make promises` finds it."""
        counts = Counter(outcome.result for outcome in self.before)
        tried = ", ".join(f"{count} {result}" for result, count in sorted(counts.items()))
        evidence = (
            f"{counts.total()} probes before Fairway: {tried}",
            f"the same after {', '.join(self.steps)}" if not self.harms else "",
            f"{self.governed} of teams' GPU work come out differently under the policy",
        )
        broken = "; ".join(f"after {step}: {', '.join(found)}" for step, found in self.harms.items())
        verdict = Verdict.FAILED if self.harms else Verdict.KEPT
        results.keep(
            UNHARMED, self.site, Result(verdict, self.seconds, tuple(filter(None, evidence)), broken)
        )
