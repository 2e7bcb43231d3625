"""The control plane's command lines: etcd, kube-apiserver, kube-controller-manager, kube-scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.kubernetes.pki import Pki

LOOPBACK = "127.0.0.1"
# An address nobody listens on: the API server will not advertise loopback, and nothing here follows it.
ADVERTISED = "10.255.0.1"
SERVICES = "10.254.0.0/16"
ETCD_BYTES = 8 << 30

Words = list[str]


@dataclass(frozen=True, slots=True)
class ControlPorts:
    api: int
    etcd: int
    peer: int
    controllers: int
    scheduler: int


def flags(**values: object) -> Words:
    """--some-flag=value for each some_flag=value."""
    return [f"--{name.replace('_', '-')}={_worded(value)}" for name, value in values.items()]


def _worded(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def etcd(program: Path, ports: ControlPorts, pki: Pki, data: Path) -> Words:
    """One member. Its data need not survive a power cut of the machine, so it does not wait for the disk."""
    client, peer = f"https://{LOOPBACK}:{ports.etcd}", f"https://{LOOPBACK}:{ports.peer}"
    return [
        str(program),
        *flags(
            data_dir=data,
            listen_client_urls=client,
            advertise_client_urls=client,
            listen_peer_urls=peer,
            initial_advertise_peer_urls=peer,
            initial_cluster=f"default={peer}",
            cert_file=pki.crt("server"),
            key_file=pki.key("server"),
            trusted_ca_file=pki.ca,
            client_cert_auth=True,
            peer_cert_file=pki.crt("server"),
            peer_key_file=pki.key("server"),
            peer_trusted_ca_file=pki.ca,
            peer_client_cert_auth=True,
            unsafe_no_fsync=True,
            quota_backend_bytes=ETCD_BYTES,
            log_level="warn",
        ),
    ]


def apiserver(program: Path, ports: ControlPorts, pki: Pki) -> Words:
    return [
        str(program),
        *flags(
            etcd_servers=f"https://{LOOPBACK}:{ports.etcd}",
            etcd_cafile=pki.ca,
            etcd_certfile=pki.crt("server"),
            etcd_keyfile=pki.key("server"),
            bind_address=LOOPBACK,
            advertise_address=ADVERTISED,
            secure_port=ports.api,
            tls_cert_file=pki.crt("server"),
            tls_private_key_file=pki.key("server"),
            client_ca_file=pki.ca,
            token_auth_file=pki.tokens,
            authorization_mode="Node,RBAC",
            anonymous_auth=False,
            service_cluster_ip_range=SERVICES,
            service_account_issuer="https://kubernetes.default.svc",
            service_account_key_file=pki.key("service-account"),
            service_account_signing_key_file=pki.key("service-account"),
            kubelet_client_certificate=pki.crt("kubelet-client"),
            kubelet_client_key=pki.key("kubelet-client"),
            kubelet_certificate_authority=pki.ca,
            kubelet_preferred_address_types="InternalIP",
            requestheader_client_ca_file=pki.ca,
            requestheader_allowed_names="front-proxy",
            requestheader_username_headers="X-Remote-User",
            requestheader_group_headers="X-Remote-Group",
            requestheader_extra_headers_prefix="X-Remote-Extra-",
            proxy_client_cert_file=pki.crt("front-proxy"),
            proxy_client_key_file=pki.key("front-proxy"),
            # Pods get no token: nothing in them can reach the API server.
            disable_admission_plugins="ServiceAccount",
            # Else a server that is asked to end waits a minute for watches that nobody closes.
            shutdown_watch_termination_grace_period="2s",
            max_requests_inflight=2000,
            max_mutating_requests_inflight=1000,
        ),
    ]


def controller_manager(program: Path, ports: ControlPorts, pki: Pki) -> Words:
    """Every controller as its own service account, as in a cluster out in the world."""
    kubeconfig = pki.client("kube-controller-manager", "system:kube-controller-manager")
    return [
        str(program),
        *flags(
            kubeconfig=kubeconfig,
            bind_address=LOOPBACK,
            secure_port=ports.controllers,
            leader_elect=False,
            use_service_account_credentials=True,
            service_account_private_key_file=pki.key("service-account"),
            root_ca_file=pki.ca,
            controllers="*,-node-ipam-controller,-service-lb-controller,-cloud-node-lifecycle-controller",
            kube_api_qps=500,
            kube_api_burst=1000,
            concurrent_job_syncs=20,
        ),
    ]


def scheduler(program: Path, ports: ControlPorts, pki: Pki) -> Words:
    return [
        str(program),
        *flags(
            kubeconfig=pki.client("kube-scheduler", "system:kube-scheduler"),
            bind_address=LOOPBACK,
            secure_port=ports.scheduler,
            leader_elect=False,
            kube_api_qps=500,
            kube_api_burst=1000,
        ),
    ]
