"""A release of the chart on a real cluster, and what its users do to it: helm, kubectl, the API."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from lab import helm
from lab.kubernetes import Cluster
from lab.kubernetes.builds import control_builds
from tests.waiting import until

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "fairway"
EXAMPLES = CHART.parent / "examples"
DOWNGRADE = CHART.parents[1] / "kubernetes" / "downgrade.yaml"
NAMESPACE = "fairway-deploy"
NAME = "fw"
PARTS = ("server", "control")
# Half a minute where nothing else runs; CI's machine is busy.
READY_SECONDS = 240.0


@dataclass
class Release:
    """The chart as `fw` in a namespace of its own, its pods on the real node, in this machine's network."""

    cluster: Cluster
    ports: dict[str, int]
    image: str
    values: dict[str, Any]
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def environment(self) -> dict[str, str]:
        return {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"], "KUBECONFIG": str(self.kubeconfig)}

    @property
    def kubeconfig(self) -> Path:
        return self.cluster.pki.admin_kubeconfig

    def run(self, *words: str | Path, stdin: str | None = None, check: bool = True) -> str:
        done = subprocess.run(
            [str(word) for word in words],
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert not check or done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"
        return done.stdout if check else done.stdout + done.stderr

    def kubectl(self, *words: str, stdin: str | None = None, check: bool = True) -> str:
        program = control_builds().kubernetes / "kubectl"
        return self.run(program, "--namespace", NAMESPACE, *words, stdin=stdin, check=check)

    def helm(self, *words: str | Path) -> str:
        return self.run(helm.program(), "--namespace", NAMESPACE, *words)

    def change(self, verb: str, tag: str) -> None:
        """`helm install` or `helm upgrade` to an image's tag."""
        wanted = {**self.values, "image": {"repository": self.image, "tag": tag, "pullPolicy": "Never"}}
        file = Path(self.cluster.instance.folder) / "values.yaml"
        file.write_text(yaml.safe_dump(wanted))
        self.helm(verb, NAME, CHART, "--values", file, "--wait", "--timeout", f"{READY_SECONDS:.0f}s")

    def until_ready(self) -> None:
        for part in PARTS:
            self.kubectl(
                "rollout", "status", f"deployment/{NAME}-fairway-{part}", f"--timeout={READY_SECONDS:.0f}s"
            )
        for part in PARTS:
            until(partial(self.answers, part), READY_SECONDS, f"{part} is ready")

    def answers(self, part: str) -> bool:
        return self.status(part, "/readyz") == 200

    def fairway(self, *words: str, check: bool = True) -> str:
        """The command line inside a server's container."""
        return self.kubectl("exec", f"deploy/{NAME}-fairway-server", "--", "fairway", *words, check=check)

    def downgrade(self, tag: str, step: str) -> str:
        """As docs/operating/deploy-rollback.md says: a job of the newer image; what it said."""
        text = DOWNGRADE.read_text().replace("IMAGE", f"{self.image}:{tag}").replace("STEP", step)
        job = yaml.safe_load(text)
        job["spec"]["template"]["spec"] |= {"hostNetwork": True, "nodeSelector": {"type": "real"}}
        self.kubectl("apply", "--filename", "-", stdin=json.dumps(job))
        name = f"job/{job['metadata']['name']}"
        self.kubectl("wait", "--for=condition=complete", name, f"--timeout={READY_SECONDS:.0f}s")
        return self.kubectl("logs", name)

    def status(self, part: str, path: str, token: str = "") -> int:
        return self._answer(part, path, token)[0]

    def get(self, path: str, token: str) -> Any:
        status, body = self._answer("server", path, token)
        assert status == 200, body
        return json.loads(body)

    def post(self, path: str, token: str, body: object) -> Any:
        status, answer = self._answer("server", path, token, json.dumps(body).encode(), seconds=60)
        assert status == 200, answer
        return json.loads(answer)

    def _answer(
        self, part: str, path: str, token: str, body: bytes | None = None, seconds: float = 10
    ) -> tuple[int, bytes]:
        asked = urllib.request.Request(f"http://127.0.0.1:{self.ports[part]}{path}", data=body)
        if body is not None:
            asked.add_header("Content-Type", "application/json")
        if token:
            asked.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(asked, timeout=seconds) as answer:
                return answer.status, answer.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()
        except OSError:
            return 0, b""

    def restarts(self, part: str) -> int:
        told = self.kubectl(
            "get",
            "pods",
            "--selector",
            f"app.kubernetes.io/component={part}",
            "-o",
            "jsonpath={.items[*].status.containerStatuses[*].restartCount}",
        )
        return sum(map(int, told.split()))

    def kill(self, part: str) -> int:
        """kill -9 of the container's process, as the machine sees it; its pid."""
        wanted = f"127.0.0.1:{self.ports[part]}".encode()
        for process in Path("/proc").glob("[0-9]*"):
            try:
                words = (process / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if wanted in words and b"server" in words:
                os.kill(int(process.name), signal.SIGKILL)
                return int(process.name)
        raise AssertionError(f"no process of {part} runs")

    def run_down(self) -> None:
        """Nothing of it stays, however far it came."""
        own = (helm.program(), "--namespace", NAMESPACE)
        self.run(*own, "uninstall", NAME, "--ignore-not-found", check=False)
        self.kubectl("delete", "namespace", NAMESPACE, "--timeout=60s", check=False)
