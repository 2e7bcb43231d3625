"""What runs on a Kubernetes site."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from lab.instance import Instance


def running_jobs(instance: Instance) -> dict[str, str]:
    """The site's own Jobs' pods that run, by their uids: they keep their place."""
    done = instance.run("kubectl", "get", "pods", "--all-namespaces", "--output=json")
    return {
        pod["metadata"]["uid"]: f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in json.loads(done.stdout)["items"]
        if pod["status"].get("phase") == "Running"
        and any(owner["kind"] == "Job" for owner in pod["metadata"].get("ownerReferences", ()))
    }
