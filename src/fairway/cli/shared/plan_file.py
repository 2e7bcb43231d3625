"""Read and write plan files: written for the owner only, validated on reading because they can be edited."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fairway.cli.shared.fleet_file import FleetText
from fairway.client.private_file import write_private
from fairway.model.errors import PermanentError
from fairway.views.plans import suggested_name
from fairway.wire.policy import Plan, PlanFile

FORMAT: Final = "fairway/plan/v1"
_MAX_BYTES: Final = 256 * 1024 * 1024


def write_plan(path: Path, plan: Plan, fleet: FleetText) -> Path:
    """Write a plan to `path`, in a folder under its suggested name. Returns the path of the file."""
    file = path / suggested_name(plan) if path.is_dir() else path
    made_at = datetime.now(UTC)
    plan_file = PlanFile(format=FORMAT, made_at=made_at, source=fleet.source, text=fleet.text, plan=plan)
    try:
        write_private(file, plan_file.model_dump_json(indent=1) + "\n")
    except OSError as error:
        raise PermanentError(
            "PlanNotWritten", f"cannot write {file}: {error.strerror or error}", "choose another --out FILE"
        ) from error
    return file


def read_plan(path: Path) -> PlanFile:
    """Read a plan file. Raises PermanentError if it is unreadable, not a plan or of another version."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise PermanentError(
            "PlanUnreadable",
            f"cannot read {path}: {error.strerror or error}",
            "create one:  fairway plan -f fleet.yaml --out plan.json",
        ) from error
    format: object = None
    try:
        document = json.loads(data)
        format = document.get("format") if isinstance(document, dict) else None
        if format == FORMAT:
            return PlanFile.model_validate(document)
    except (ValueError, RecursionError):  # pydantic's ValidationError is a ValueError
        pass
    hint = "a fleet file is applied with -f:  fairway apply -f fleet.yaml"
    if isinstance(format, str) and format.startswith("fairway/plan/"):
        hint = f"create it again with this release (format {FORMAT}):  fairway plan -f fleet.yaml --out FILE"
    raise PermanentError("NotAPlan", f"{path} is not a plan that this release can read", hint)
