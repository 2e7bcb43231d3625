"""How the faults of a file are shown, found here or by a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairway.cli.failures import say, show_hint
from fairway.files import Fault, FaultCode, Severity, Spot, location_lines

if TYPE_CHECKING:
    from fairway.api import wire


def show_fault(fault: Fault) -> None:
    """What is wrong, where, what was expected, what to do."""
    colour = "red" if fault.severity is Severity.ERROR else "yellow"
    say(f"{fault.severity}:", colour, fault.message)
    for line in location_lines(fault):
        click.echo(f"  {line}", err=True)
    if fault.expected and fault.expected not in fault.message:
        say("", "", f"  expected {fault.expected}")
    show_hint(fault.hint)
    click.echo(err=True)


def from_wire(fault: wire.Fault) -> Fault | None:
    """A fault that a server found in a file; None if it is about something else."""
    file = fault.file
    if file is None:
        return None
    return Fault(
        Severity.WARNING if file.severity == Severity.WARNING.value else Severity.ERROR,
        # A newer server may know faults that this command does not; what is shown is in its words anyway.
        FaultCode(file.code) if file.code in list(FaultCode) else FaultCode.BAD_VALUE,
        fault.message,
        file.source,
        file.line,
        file.column,
        file.path,
        file.found,
        file.expected,
        file.hint,
        tuple(Spot(s.line, s.column, s.path, s.found) for s in file.related),
    )
