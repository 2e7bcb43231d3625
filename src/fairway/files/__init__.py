"""The files people write, into the model: every fault at once, each with its place and a hint.

`tree` knows YAML and positions, `shape` and `records` know how to say what a file may hold,
`fleet_shape` says it for fleet files, `fleet_checks` and `pool_claims` hold what refers across the file,
`fleet` puts them together.
"""

from fairway.files.faults import (
    EXPLANATIONS,
    Fault,
    FaultCode,
    InvalidFile,
    Severity,
    Spot,
    location_lines,
)
from fairway.files.fleet import Report, check_bytes, check_fleet, check_text, parse_fleet, read_fleet
from fairway.files.fleet_shape import fleet_schema

__all__ = [
    "EXPLANATIONS",
    "Fault",
    "FaultCode",
    "InvalidFile",
    "Report",
    "Severity",
    "Spot",
    "check_bytes",
    "check_fleet",
    "check_text",
    "fleet_schema",
    "location_lines",
    "parse_fleet",
    "read_fleet",
]
