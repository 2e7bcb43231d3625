"""One cluster: which daemons it has, in which order they start and end, and what tests may do to it."""

from __future__ import annotations

import http.client
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from lab import apt, versions
from lab.errors import LabError
from lab.kinds import Command
from lab.kubernetes import access, control_plane, dra, etcd, kueue, kwok
from lab.kubernetes.api import NOT_NOW, Api, Json
from lab.kubernetes.builds import control_builds, operator_build
from lab.kubernetes.control_plane import LOOPBACK, ControlPorts
from lab.kubernetes.kueue import KueuePorts
from lab.kubernetes.nodes import RealNodes
from lab.kubernetes.operators import OPERATORS, PORTS, Running
from lab.kubernetes.pki import ADMIN, FAIRWAY, PEOPLE, TESTERS, Pki
from lab.kubernetes.site import Site
from lab.progress import step
from lab.waiting import listening, wait_until

if TYPE_CHECKING:
    from lab.instance import Instance

CONTROL = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kueue", "kwok")
SINGLE_PORTS = (
    "api",
    "etcd",
    "peer",
    "controllers",
    "scheduler",
    "webhook",
    "visibility",
    "metrics",
    "probe",
    "kwok",
)
START_SECONDS = 120
NODE_SECONDS = 0.5  # patience for each KWOK node, beyond START_SECONDS: 1,000 took 133 s on a busy machine


@dataclass(frozen=True, slots=True)
class Cluster:
    """A Kubernetes instance with the words that only Kubernetes has."""

    instance: Instance

    @property
    def pki(self) -> Pki:
        if "api" not in self.instance.rows:
            name = self.instance.name
            raise LabError(f"{name} was never up", hint=f"python -m lab up kubernetes --name {name}")
        server = f"https://{LOOPBACK}:{self.instance.port('api')}"
        return Pki(self.instance.folder / "pki", server)

    @property
    def api(self) -> Api:
        """The API server as an administrator."""
        return Api.from_kubeconfig(self.pki.admin_kubeconfig)

    @property
    def nodes(self) -> RealNodes:
        return RealNodes(self.instance, self.pki)

    @property
    def site(self) -> Site | None:
        """Whose objects it has, if it is set up as a site's."""
        return Site(self.instance.site) if self.instance.site else None

    @property
    def daemons(self) -> Sequence[str]:
        """What runs beside real nodes."""
        without = self.site is not None and self.site.kueue is None
        control = [daemon for daemon in CONTROL if not (without and daemon == "kueue")]
        return [*control, *self.operators]

    @property
    def operators(self) -> list[str]:
        """Those it was given by `--with` or by its site, in the order in which they start."""
        of_site = self.site.operators if self.site else ()
        return [name for name in OPERATORS if self.instance.options.get(name) or name in of_site]

    # what tests do to it

    def compact_etcd(self) -> int:
        """Make etcd forget every resource version before now; its revision at that moment.

        The API server remembers some minutes of them by itself: restart it to see them expire at once.
        """
        return etcd.compact(self.instance.port("etcd"), self.pki)

    def set_node_ready(self, name: str, ready: bool) -> None:
        """Make a KWOK node NotReady, or Ready again."""
        kwok.set_ready(self.api, name, ready)

    def set_sick_gpus(self, name: str, sick: int) -> None:
        """So many GPUs of a node, KWOK's or real, are unhealthy from now on."""
        if name in self.nodes.names:
            self.nodes.set_sick_gpus(name, range(sick))
        else:
            kwok.set_sick_gpus(self.api, name, sick)

    def configure_kueue(self, extra: Mapping[str, object]) -> None:
        """Replace top-level keys of Kueue's configuration and restart it; {} for the lab's own."""
        kueue.keep_extra(self.instance.folder, yaml.safe_dump(dict(extra)))
        self.instance.restart("kueue")

    # how it starts

    def up(self) -> None:
        _need_root()
        apt.require("openssl", "openssl")
        self._reserve()
        control_builds()
        for operator in self.operators:
            operator_build(OPERATORS[operator])
        if self.instance.options["real_nodes"]:
            self.nodes.build()
        self.pki.make()
        self._end_outdated_kueue()
        with step(f"{self.instance.name}: control plane"):
            for daemon in CONTROL[:4]:
                self.start(daemon)
        if self.operators:  # before Kueue, which finds their kinds at once then
            with step(f"{self.instance.name}: kinds of {', '.join(self.operators)}"):
                self._define_operators()
        with step(f"{self.instance.name}: Kueue and KWOK"):
            if "kueue" in self.daemons:
                self.start("kueue")
            for wanted in access.fairway_access():  # some of it lies in Kueue's namespace
                if "kueue" in self.daemons or wanted["metadata"].get("namespace") != kueue.NAMESPACE:
                    self.api.apply(wanted)
            self.start("kwok")
        for operator in self.operators:
            with step(f"{self.instance.name}: {operator} {OPERATORS[operator].version}"):
                self.start(operator)
        self._keep_kwok_nodes()
        for wanted in dra.objects(self.instance.options.get("dra_nodes", 0), self.instance.options["gpus"]):
            self.api.apply(wanted)
        self.nodes.up()
        self._set_up_site()

    def _set_up_site(self) -> None:
        done = self.instance.folder / "site-made"
        if self.site is None or done.exists():
            return
        api = self.api
        with step(f"{self.instance.name}: objects of {self.site.name}"):
            for wanted in self.site.objects:
                if "namespace" in wanted["metadata"]:  # its service account comes a moment after it
                    account = f"/api/v1/namespaces/{wanted['metadata']['namespace']}/serviceaccounts/default"
                    wait_until(partial(_exists, api, account), 30, f"there is no {account}")
                for owner in wanted["metadata"].get("ownerReferences", ()):
                    owner["uid"] = _uid(api, owner, wanted)
                api.apply(wanted)
                if wanted["kind"] == "CustomResourceDefinition":
                    wait_until(partial(_serves, api, wanted), 30, f"no {wanted['metadata']['name']} appear")
        done.touch()

    def _reserve(self) -> None:
        real = self.instance.options["real_nodes"]
        counts = dict.fromkeys(SINGLE_PORTS, 1) | dict.fromkeys(self.operators, PORTS)
        self.instance.reserve(**counts, **({"kubelets": real} if real else {}))

    def _keep_kwok_nodes(self) -> None:
        options = self.instance.options
        if self.site is None:
            wanted = kwok.wanted_nodes(options["nodes"], options["gpus"], options.get("spot_nodes", 0))
            wanted += dra.nodes(options.get("dra_nodes", 0))
        else:
            wanted = self.site.nodes
        names = {node["metadata"]["name"] for node in wanted}
        with step(f"{self.instance.name}: {len(wanted)} KWOK nodes"):
            kwok.keep_nodes(self.api, wanted)
            wait_until(
                lambda: self._are_ready(names),
                START_SECONDS + NODE_SECONDS * len(wanted),
                f"the KWOK nodes of {self.instance.name} are not ready",
                why=lambda: self.instance.last_words("kwok"),
            )

    def _are_ready(self, names: set[str]) -> bool:
        try:
            return names <= kwok.ready_nodes(self.api)
        except NOT_NOW:
            return False

    def start(self, daemon: str) -> None:
        """Start one daemon unless it runs; return when it serves."""
        starters: dict[str, Callable[[], None]] = {
            "etcd": self._start_etcd,
            "kube-apiserver": self._start_apiserver,
            "kube-controller-manager": self._start_controller_manager,
            "kube-scheduler": self._start_scheduler,
            "kueue": self._start_kueue,
            "kwok": self._start_kwok,
        }
        if daemon in starters:
            starters[daemon]()
        elif daemon in OPERATORS:
            self._start_operator(daemon)
        else:
            self.nodes.start(daemon)

    @property
    def _control_ports(self) -> ControlPorts:
        port = self.instance.port
        return ControlPorts(
            api=port("api"),
            etcd=port("etcd"),
            peer=port("peer"),
            controllers=port("controllers"),
            scheduler=port("scheduler"),
        )

    @property
    def _kueue_ports(self) -> KueuePorts:
        port = self.instance.port
        return KueuePorts(
            webhook=port("webhook"),
            visibility=port("visibility"),
            metrics=port("metrics"),
            probe=port("probe"),
        )

    def _serve(
        self,
        daemon: str,
        command: Sequence[str],
        serves: Callable[[], bool],
        more: Mapping[str, str] | None = None,
    ) -> None:
        # Nothing of the caller's environment: a proxy set there would take what is meant for loopback.
        # Garbage took 58 of the 120 s of CPU that the API server used in a test run: collect it less often.
        path = os.environ.get("PATH", os.defpath)
        env = {"PATH": path, "HOME": str(self.instance.folder), "GOGC": "400", **(more or {})}
        self.instance.launch(daemon, command, env=env)
        wait_until(
            lambda: self._alive(daemon) and serves(),
            START_SECONDS,
            f"{daemon} of {self.instance.name} does not serve",
            why=lambda: self.instance.last_words(daemon),
            hint=f"its log: {self.instance.log(daemon)}",
        )

    def _alive(self, daemon: str) -> bool:
        if self.instance.daemon(daemon):
            return True
        raise LabError(
            f"{daemon} of {self.instance.name} ended at once",
            self.instance.last_words(daemon),
            f"its log: {self.instance.log(daemon)}",
        )

    def _start_etcd(self) -> None:
        ports = self._control_ports
        data = self.instance.folder / "etcd"
        command = control_plane.etcd(control_builds().etcd / "etcd", ports, self.pki, data)
        self._serve("etcd", command, lambda: listening(ports.etcd))

    def _start_apiserver(self) -> None:
        program = control_builds().kubernetes / "kube-apiserver"
        command = control_plane.apiserver(program, self._control_ports, self.pki)
        self._serve("kube-apiserver", command, self.api.ready)

    def _start_controller_manager(self) -> None:
        ports = self._control_ports
        program = control_builds().kubernetes / "kube-controller-manager"
        command = control_plane.controller_manager(program, ports, self.pki)
        self._serve("kube-controller-manager", command, lambda: listening(ports.controllers))

    def _start_scheduler(self) -> None:
        ports = self._control_ports
        program = control_builds().kubernetes / "kube-scheduler"
        command = control_plane.scheduler(program, ports, self.pki)
        self._serve("kube-scheduler", command, lambda: listening(ports.scheduler))

    def _start_kueue(self) -> None:
        build, ports, api = control_builds().kueue, self._kueue_ports, self.api
        if not self.instance.daemon("kueue"):
            for wanted in kueue.definitions(build / "manifests", ports, self.pki):
                api.apply(wanted)
            wait_until(lambda: _knows_kueue(api), START_SECONDS, "Kueue's kinds do not appear")
            config = self._kueue_config()
            command = kueue.prepare_root(self._kueue_root, build / "kueue", self.pki, config)
            api.apply(kueue.config_map(config))
        else:
            command = []  # not launched: it runs
        # It calls itself ready before its visibility server runs; if the API server goes away then, it ends.
        visibility = Api(LOOPBACK, ports.visibility, api.tls, token=None)
        self._serve("kueue", command, lambda: _probed(ports.probe) and visibility.ready())
        for wanted in kueue.webhooks(build / "manifests", ports, self.pki):
            api.apply(wanted)

    @property
    def _kueue_root(self) -> Path:
        return self.instance.folder / "kueue-root"

    def _kueue_config(self) -> Json:
        own = kueue.OWN if self.site is None else self.site.kueue or {}
        return kueue.configuration(self._kueue_ports, {**own, **kueue.extra_of(self.instance.folder)})

    def _end_outdated_kueue(self) -> None:
        """After `up --kueue FILE` on a running cluster, Kueue must start anew to read it."""
        if self.instance.daemon("kueue") and not kueue.has_config(self._kueue_root, self._kueue_config()):
            self.instance.end("kueue")

    def _start_kwok(self) -> None:
        build, port = control_builds().kwok, self.instance.port("kwok")
        if not self.instance.daemon("kwok"):
            kwok.free_leases(self.api, self.nodes.names)
        config = kwok.write_config(build / "stages", self.instance.folder)
        command = kwok.command(build / "kwok", port, self.pki, config)
        self._serve("kwok", command, lambda: listening(port))

    def _operator(self, name: str) -> Running:
        return Running(
            operator=OPERATORS[name],
            build=operator_build(OPERATORS[name]),
            folder=self.instance.folder / "operators" / name,
            ports=self.instance.rows[name],
            pki=self.pki,
        )

    def _define_operators(self) -> None:
        api = self.api
        wanted = [one for name in self.operators for one in self._operator(name).definitions]
        missing = [one for one in wanted if not _serves(api, one)]
        api.each(api.apply, missing)
        for one in missing:
            what = f"the API server does not serve {one['metadata']['name']}"
            wait_until(partial(_serves, api, one), START_SECONDS, what)

    def _start_operator(self, name: str) -> None:
        running = self._operator(name)
        command = [] if self.instance.daemon(name) else running.prepare()  # not launched if it runs
        self._serve(name, command, partial(_operator_ready, running), running.env)
        for wanted in (*running.webhooks(), *running.objects()):
            self.api.apply(wanted)

    # how it ends

    def down(self) -> None:
        """Those who talk end before those they talk to."""
        if not self.instance.rows:  # its ports are the first thing an `up` takes
            return
        self.nodes.down()
        self.instance.end("kwok", "kueue", *self.operators, "kube-scheduler", "kube-controller-manager")
        self.instance.end("kube-apiserver")
        self.instance.end("etcd")


def _need_root() -> None:
    if os.geteuid():
        raise LabError(
            "the Kubernetes lab needs root",
            "Kueue gets a root folder of its own, real nodes get namespaces and cgroups",
            "run it in a container or a virtual machine of yours, as root",
        )


def _knows_kueue(api: Api) -> bool:
    try:
        return {each["kind"] for each in api.get(kueue.API_ROOT)["resources"]} >= kueue.KINDS
    except NOT_NOW:
        return False


def _serves(api: Api, definition: Json) -> bool:
    """Whether the API server knows the kind of a CustomResourceDefinition."""
    spec = definition["spec"]
    return _exists(
        api, f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}?limit=1"
    )


def _uid(api: Api, owner: Json, owned: Json) -> str:
    """The uid of an owner in the same namespace; no file can know it."""
    where = {"name": owner["name"], "namespace": owned["metadata"]["namespace"]}
    return str(api.get(api.path_of({**owner, "metadata": where}))["metadata"]["uid"])


def _exists(api: Api, path: str) -> bool:
    try:
        return bool(api.get(path))
    except NOT_NOW:
        return False


def _operator_ready(running: Running) -> bool:
    webhooks = not running.operator.webhooks or listening(running.webhook_port)
    return webhooks and _probed(running.probe_port)


def _probed(port: int) -> bool:
    connection = http.client.HTTPConnection(LOOPBACK, port, timeout=5)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


class Kubernetes:
    """The kind `kubernetes`."""

    versions = (versions.KUBERNETES.lstrip("v"),)
    options: Mapping[str, int] = {
        "nodes": 4,
        "real_nodes": 0,
        "gpus": 8,
        "spot_nodes": 0,
        "dra_nodes": 0,
        **dict.fromkeys(OPERATORS, 0),
    }
    variables: Mapping[str, str] = {
        "url": "KUBERNETES_URL",
        "kubeconfig": "KUBECONFIG",
        "fairway_kubeconfig": "FAIRWAY_KUBECONFIG",
        **{f"{person.name}_kubeconfig": f"{person.name.upper()}_KUBECONFIG" for person in TESTERS},
        "token": "KUBERNETES_TOKEN",
    }

    def up(self, instance: Instance) -> None:
        Cluster(instance).up()

    def down(self, instance: Instance) -> None:
        Cluster(instance).down()

    def daemons(self, instance: Instance) -> Sequence[str]:
        return (*Cluster(instance).daemons, *RealNodes.named(instance.options["real_nodes"]))

    def start(self, instance: Instance, daemon: str) -> None:
        Cluster(instance).start(daemon)

    def facts(self, instance: Instance) -> dict[str, str]:
        pki = Cluster(instance).pki
        own = {
            f"{person.name}_kubeconfig": str(pki.kubeconfig(person.name)) for person in (FAIRWAY, *TESTERS)
        }
        return {"url": pki.server, "kubeconfig": str(pki.admin_kubeconfig), **own}

    def secrets(self, instance: Instance) -> dict[str, str]:
        return {"token": Cluster(instance).pki.token(ADMIN.name)}

    def command(self, instance: Instance, argv: Sequence[str], user: str | None) -> Command:
        names = [person.name for person in PEOPLE]
        if user not in (None, *names):
            raise LabError(f"{instance.name} knows no user {user}", hint=f"--as, one of: {', '.join(names)}")
        tools = f"{control_builds().kubernetes}:{os.environ.get('PATH', os.defpath)}"
        kubeconfig = Cluster(instance).pki.kubeconfig(user or ADMIN.name)
        env = {**os.environ, "PATH": tools, "KUBECONFIG": str(kubeconfig)}
        # execvp looks along the caller's PATH, not along the one that the program gets
        program = shutil.which(argv[0], path=tools) or argv[0]
        return Command([program, *argv[1:]], env)
