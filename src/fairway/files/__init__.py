"""The files people write, into the model: every fault at once, each with its place and a hint.

`tree` knows YAML and positions, `shape` and `records` know how to say what a file may hold,
`fleet_shape` and `team_shape` say it for fleet files, `*_checks` and `pool_claims` hold what refers across
the file, `supplies` and `teams` what it comes to, `fleet` puts them together. `compose` goes the other way.
`job_shape` and `job_values` say it for jobs, `sbatch` and `manifest` turn scripts and Kubernetes Jobs into
the same keys, `job` puts them together; `gpus` and `times` know how people write those.
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
from fairway.files.gpus import gpus_text, parse_gpus
from fairway.files.job import (
    JobReport,
    check_flags,
    check_job_bytes,
    check_job_file,
    check_jobs,
    given_by_flags,
    is_job_text,
    name_of_command,
    parse_job,
    parse_jobs,
    read_job,
)
from fairway.files.job_shape import job_schema

__all__ = [
    "EXPLANATIONS",
    "Fault",
    "FaultCode",
    "InvalidFile",
    "JobReport",
    "Report",
    "Severity",
    "Spot",
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
    "parse_job",
    "parse_jobs",
    "read_fleet",
    "read_job",
]
