"""The files people write, into the model: every fault at once, each with its place and a hint.

`tree` knows YAML and positions, `shape` and `records` know how to say what a file may hold,
`fleet_shape` and `team_shape` say it for fleet files, `*_checks` and `pool_claims` hold what refers across
the file, `supplies` and `teams` what it comes to, `fleet` puts them together. `compose` goes the other way.
"""

from fairway.files.compose import compose_fleet
from fairway.files.faults import (
    EXPLANATIONS,
    Fault,
    FaultCode,
    InvalidFile,
    Severity,
    Spot,
    location_lines,
)
from fairway.files.fleet import (
    Report,
    check_bytes,
    check_fleet,
    check_text,
    fleet_digest,
    parse_fleet,
    read_fleet,
)
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
    "compose_fleet",
    "fleet_digest",
    "fleet_schema",
    "location_lines",
    "parse_fleet",
    "read_fleet",
]
