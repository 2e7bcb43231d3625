"""Serve what dcgm-exporter serves, for a fleet of GPU nodes from one process, and report the truth about it.

GET    /sd, /sd/host         the nodes as targets of Prometheus' http_sd
GET    /n/NODE/metrics       what the node's dcgm-exporter serves
GET    /n/NODE/host          what its cgroup_exporter and node_exporter serve (Kubernetes: its kubelet)
GET    /truth, /truth/JOB    what was held, and sums of what Prometheus was served, by job and GPU
PUT    /jobs                 [{"job": "17", "node": "gpu001", "gpus": [0, 1], "shape": "io"}], see `Hold`
DELETE /jobs/JOB, /jobs      end a job; forget all jobs and what was served of them
PUT    /nodes                [{"name": "gpu001", "gpus": 8}]: another fleet, see `Node`
PUT    /options              {"dcgm": "4.6"}, see `Options`
PUT    /n/NODE/g/GPU         {"xid": 79, "temperature": 91}, see `Fault`
PUT    /silence, /delay      {"nodes": ["gpu001"], "seconds": 20, "delay": 3}: no answers, or slow ones
"""

from __future__ import annotations

import argparse
import json
import threading
import time
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from lab.gpus.dcgm import Options, Refused
from lab.gpus.fleet import Fleet, Node

SCRAPE: Final = "x-prometheus-scrape-timeout-seconds"
"""Prometheus sends it with each scrape: what others read is not counted."""
MIG: Final = {"0": ["1g.10gb"] * 4, "1": ["3g.40gb"] * 2}
"""The slices of a MIG node of the lab's Slurm and Kubernetes."""


class Server(ThreadingHTTPServer):
    request_queue_size = 1024
    daemon_threads = True

    def __init__(self, fleet: Fleet, port: int) -> None:
        self.fleet = fleet
        self.lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        match self._parts():
            case ["n", name, "metrics"]:
                self._metrics(name)
            case ["n", name, "host"]:
                self._locked(lambda fleet: fleet.host(fleet.node(name), time.time()))
            case ["truth", *job]:
                self._locked(lambda fleet: fleet.truth(time.time(), *job))
            case ["sd", *host]:
                self._locked(lambda fleet: self._targets(fleet, "host" if host else "metrics"))
            case _:
                self.send_error(404)

    def do_PUT(self) -> None:
        said = self.rfile.read(int(self.headers["content-length"]))
        self._locked(lambda fleet: _put(fleet, self._parts(), json.loads(said), time.time()))

    def do_DELETE(self) -> None:
        match self._parts():
            case ["jobs", job]:
                self._locked(lambda fleet: fleet.end(job, time.time()))
            case ["jobs"]:
                self._locked(lambda fleet: fleet.forget())
            case _:
                self.send_error(404)

    def _parts(self) -> list[str]:
        return self.path.strip("/").split("/")

    def _locked(self, act: Callable[[Fleet], object]) -> None:
        try:
            with self.server.lock:
                answer = act(self.server.fleet)
        except Refused as refusal:
            self._answer(str(refusal), 400)
        except (KeyError, TypeError, ValueError) as error:
            self._answer(f"the request is not understood: {error!r}", 400)
        else:
            if isinstance(answer, str):
                self._answer(answer)
            else:
                self._answer(json.dumps(answer), kind="application/json")

    def _metrics(self, name: str) -> None:
        asked, fleet = time.time(), self.server.fleet
        with self.server.lock:
            node = fleet.nodes.get(name)
            if node is None or asked < node.silent_until:
                self.close_connection = True
                return
            text, values = fleet.metrics(node, asked)
            delay = node.delay if asked < node.slow_until else 0.0
        time.sleep(delay)
        patience = float(self.headers.get(SCRAPE, 0))
        if patience and time.time() - asked > patience:  # Prometheus has given up
            self.close_connection = True
            return
        self._answer(text)
        if patience:
            with self.server.lock:
                fleet.count(node, values, asked)

    def _targets(self, fleet: Fleet, path: str) -> list[dict[str, Any]]:
        address = f"127.0.0.1:{self.server.server_port}"
        return [
            {
                "targets": [address],
                "labels": {
                    "__metrics_path__": f"/n/{node.name}/{path}",
                    "instance": node.name,
                    "cluster": node.cluster,
                    **({"node": node.name} if path == "host" else {}),
                },
            }
            for node in fleet.nodes.values()
            if path == "metrics" or fleet.options.host
        ]

    def _answer(self, text: str, status: int = 200, kind: str = "text/plain; version=0.0.4") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        pass


def _put(fleet: Fleet, parts: list[str], said: Any, now: float) -> None:
    match parts:
        case ["jobs"]:
            for one in said:
                fleet.hold(one, now)
        case ["nodes"]:
            fleet.nodes = {node.name: node for node in (Node(**one) for one in said)}
        case ["options"]:
            fleet.options = fleet.options.changed(said)
        case ["n", name, "g", gpu]:
            node = fleet.node(name)
            if int(gpu) not in range(node.gpus):
                raise Refused(f"{name} has no GPU {gpu}")
            node.faults[int(gpu)].change(said, now)
        case ["silence" | "delay" as what]:
            _trouble(fleet, what, said, now)
        case _:
            raise Refused(f"nothing can be put at /{'/'.join(parts)}")


def _trouble(fleet: Fleet, what: str, said: Mapping[str, Any], now: float) -> None:
    for name in said.get("nodes") or list(fleet.nodes):
        node = fleet.node(name)
        if what == "silence":
            node.silent_until = now + said["seconds"]
        else:
            node.slow_until, node.delay = now + said["seconds"], said["delay"]


def fleet(nodes: int, mig_nodes: int, gpus: int, options: Options) -> Fleet:
    plain = [Node(f"gpu{number:03}", gpus) for number in range(1, nodes + 1)]
    sliced = [Node(f"mig{number:03}", 2, mig=MIG) for number in range(1, mig_nodes + 1)]
    return Fleet([*plain, *sliced], options)


def main() -> None:
    say = argparse.ArgumentParser(prog="python -m lab.gpus.exporter")
    say.add_argument("--port", type=int, required=True)
    say.add_argument("--nodes", type=int, default=4)
    say.add_argument("--mig-nodes", type=int, default=1)
    say.add_argument("--gpus", type=int, default=8, help="of a node")
    say.add_argument("--options", type=json.loads, default={}, help="as PUT /options takes them")
    told = say.parse_args()
    options = Options().changed(told.options)
    Server(fleet(told.nodes, told.mig_nodes, told.gpus, options), told.port).serve_forever()


if __name__ == "__main__":
    main()
