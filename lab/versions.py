"""Every version the lab knows, in one place."""

# Slurm comes as Debian packages; which suite carries which release.
SLURM_SUITES = {"24.11": "trixie", "26.05": "forky"}
SLURM_DEFAULT = "24.11"
# Part of the cached root's name: raise it when what goes into the root changes.
SLURM_ROOT = 1

KUBERNETES = "v1.36.3"
KUBERNETES_STAGING = "v0.36.3"
KUEUE = "v0.19.2"
KWOK = "v0.8.0"
# Operators on request (`up kubernetes --with`): releases that Kueue's own go.mod builds.
JOBSET = "v0.12.0"
LWS = "v0.9.0"
TRAINER = "v2.2.1"
KUBERAY = "v1.6.2"
ETCD = "v3.7.3"
CONTAINERD = "v2.4.2"
RUNC = "v1.5.2"
CNI_PLUGINS = "v1.9.1"
# The newest that is one Go module: later ones refer to parts of themselves by folder.
OPENCOST = "v1.108.1"
# Of npm; runs on Node 20.
OIDC_PROVIDER = "9.13.3"
HELM = "v3.22.0"
# For the schema of what the chart asks of it; nothing of it runs.
PROMETHEUS_OPERATOR = "v0.85.0"
# Real nodes' own image; raise the number when what goes into it changes.
NODE_IMAGE_SUITE = "trixie"
NODE_IMAGES = 1

# These are what the machine's own Debian carries: see `versions` of each kind.
POSTGRES_PACKAGE = "postgresql"
PROMETHEUS_PACKAGE = "prometheus"
ALERTMANAGER_PACKAGE = "prometheus-alertmanager"
