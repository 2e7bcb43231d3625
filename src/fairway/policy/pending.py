"""Summarize what an administrator has yet to install as a condition of the cluster. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fairway.model.condition import Condition, ConditionType
from fairway.model.text import count
from fairway.policy.objects import Advice

CODE = "InstallPending"


def pending_condition(advice: Iterable[Advice]) -> tuple[Condition, ...]:
    """Return the condition of a cluster that still needs these lines, or none if it needs nothing.

    Lines that the engine does not show may be there: they count in no condition.
    """
    missing = [a for a in advice if not a.unseen]
    if not missing:
        return ()
    restarts = dict.fromkeys(a.restart for a in missing if a.restart)
    then = f", then:  {';  '.join(restarts)}" if restarts else ""
    return (
        Condition(
            ConditionType.INSTALL_PENDING,
            CODE,
            "; ".join(_messages(missing)),
            f"install what  fairway plan -f fleet.yaml -o wide  lists{then}",
            "\n".join(_diff(missing)),
        ),
    )


def _messages(missing: list[Advice]) -> Iterator[str]:
    lines = Counter(a.file for a in missing if not _is_whole_file(a))
    for file, number in lines.items():
        yield f"{file} must still get {count(number, 'line')}"
    for a in missing:
        if _is_whole_file(a):
            yield f"{a.file} must be installed again: {a.running}"


def _is_whole_file(advice: Advice) -> bool:
    return advice.line.startswith("-- ")


def _diff(missing: list[Advice]) -> Iterator[str]:
    """Yield the lines of a unified diff between what is installed and what is needed."""
    file = ""
    for a in missing:
        if a.file != file:
            file = a.file
            yield f"--- {file} (installed)"
            yield f"+++ {file} (needed)"
        if a.running:
            yield f"-{a.running}"
        yield from (f"+{line}" for line in a.line.splitlines())
