"""What the whole of the results must reach; run after the scenarios, on the file they wrote."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.scenarios.promises import PROMISES
from tests.scenarios.results import load, results_file
from tests.scenarios.stage import Verdict
from tests.tier import NIGHTLY, ON_SOME_ENGINES

REAL = ("slurm-24.11", "slurm-26.05", "kueue")
MIN_STORED, MAX_DIFFERENT = 18, 2


@pytest.mark.parametrize("engine", ("virtual", *REAL))
def test_the_engine_keeps_what_it_must(engine: str) -> None:
    results = load()
    if not any(engine in engines for engines in results.values()):
        pytest.skip(f"no results of {engine} in {results_file()}: make scenarios")
    missing = [p for p in PROMISES if engine not in results.get(p, {}) and not _on_the_other_slurm(p, engine)]
    assert not missing, f"never played on {engine}: {missing}"
    found = {p: results[p][engine].verdict for p in PROMISES if engine in results.get(p, {})}
    count = Counter(found.values())
    told = {p: v.value for p, v in found.items() if v is not Verdict.KEPT}
    assert count[Verdict.FAILED] == 0, told
    assert count[Verdict.DIFFERS] <= MAX_DIFFERENT, told
    assert count[Verdict.KEPT] >= MIN_STORED - (len(PROMISES) - len(found)), told
    assert all(results[p][engine].evidence for p in found), "a verdict without evidence"


def _on_the_other_slurm(promise: str, engine: str) -> bool:
    """Whether CI plays it on the other version of Slurm only."""
    name = engine.partition(".")[0]
    if NIGHTLY or f"test_promise[{promise}-{name}]" not in ON_SOME_ENGINES:
        return False
    (other,) = (e for e in REAL if e.startswith("slurm") and e != engine)
    return other in load().get(promise, {})
