"""What a refusal of the API server says of a job."""

from __future__ import annotations

import json

from fairway.engines.kubernetes.api.errors import ApiCall
from fairway.engines.kubernetes.jobs.submit import _create_error
from fairway.engines.kubernetes.policy.admission_policies import NEEDS_QUEUE
from fairway.engines.port import Unreachable
from fairway.model.errors import Refused
from fairway.model.workload_kinds import JOB
from tests.unit.engines.kubernetes.jobs.test_manifest import order


def refusal(message: str) -> Exception:
    body = json.dumps({"kind": "Status", "message": message, "reason": "Invalid", "code": 422}).encode()
    call = ApiCall("http://127.0.0.1", "create", "jobs")
    return _create_error(422, body, call, JOB, order())


def test_a_policy_that_is_not_in_force_yet_refuses_no_job_for_good() -> None:
    denied = "ValidatingAdmissionPolicy 'fairway-jobs' with binding 'fairway-jobs' denied request: "
    error = refusal(denied + NEEDS_QUEUE)
    assert isinstance(error, Unreachable)
    assert error.code == "QueuesNotAssigned"
    other = refusal(denied + "nodeName and other schedulers are not allowed")
    assert isinstance(other, Refused)
    assert other.message == "nodeName and other schedulers are not allowed"
