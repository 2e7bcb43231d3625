"""Read and check the files that users write; report all faults at once, each with its position and a hint.

`yaml` parses YAML, `schema` has the building blocks of file schemas, `fleet`, `job` and `bill` read their
kind of file, `diagnostics` defines the faults.
"""

from fairway.files.diagnostics import Fault, FaultCode, InvalidFile, Location, Severity, location_lines
from fairway.files.fleet.load import (
    Report,
    check_bytes,
    check_fleet,
    check_text,
    fleet_digest,
    parse_fleet,
    read_fleet,
)
from fairway.files.fleet.schema import fleet_schema
from fairway.files.fleet.write import compose_fleet
from fairway.files.job.gpus import gpus_text, parse_gpus
from fairway.files.job.load import (
    JobReport,
    check_flags,
    check_job_bytes,
    check_job_file,
    check_jobs,
    given_by_flags,
    is_job_text,
    name_of_command,
)
from fairway.files.job.schema import job_schema

__all__ = [
    "Fault",
    "FaultCode",
    "InvalidFile",
    "JobReport",
    "Location",
    "Report",
    "Severity",
    "check_bytes",
    "check_flags",
    "check_fleet",
    "check_job_bytes",
    "check_job_file",
    "check_jobs",
    "check_text",
    "compose_fleet",
    "fleet_digest",
    "fleet_schema",
    "given_by_flags",
    "gpus_text",
    "is_job_text",
    "job_schema",
    "location_lines",
    "name_of_command",
    "parse_fleet",
    "parse_gpus",
    "read_fleet",
]
