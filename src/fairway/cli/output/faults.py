"""Print the faults of a file, found locally or by a server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from fairway.cli.output.messages import print_labelled, show_hint
from fairway.files import Fault, FaultCode, Location, Severity, location_lines

if TYPE_CHECKING:
    from fairway.wire import fleet as wire


def show_fault(fault: Fault) -> None:
    """Print one fault: message, location, expected value, hint."""
    colour = "red" if fault.severity is Severity.ERROR else "yellow"
    print_labelled(f"{fault.severity}:", colour, fault.message)
    for line in location_lines(fault):
        click.echo(f"  {line}", err=True)
    if fault.expected and fault.expected not in fault.message:
        print_labelled("", "", f"  expected {fault.expected}")
    show_hint(fault.hint)
    click.echo(err=True)


def from_wire(fault: wire.Fault) -> Fault | None:
    """Convert a fault reported by a server. Returns None if it is not about a file."""
    file = fault.file
    if file is None:
        return None
    return Fault(
        Severity.WARNING if file.severity == Severity.WARNING.value else Severity.ERROR,
        # A newer server may report codes that this client does not know; its message is shown in any case.
        FaultCode(file.code) if file.code in list(FaultCode) else FaultCode.BAD_VALUE,
        fault.message,
        file.source,
        file.line,
        file.column,
        file.path,
        file.found,
        file.expected,
        file.hint,
        tuple(Location(s.line, s.column, s.path, s.found) for s in file.related),
    )
