"""Find which GPUs the nodes of each ResourceFlavor have, as settings of a FoundPolicy. Pure.

A flavor may select nodes by labels of the site's own, which do not say which GPU it is; the nodes do.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.nodes.devices import PRODUCT, REPLICAS, is_known_gpu

FLAVOR: Final = "flavor-product/"
"""Prefix of a flavor's name: the one GPU product of its nodes."""
FLAVOR_REPLICAS: Final = "flavor-replicas/"
"""Prefix of a flavor's name: how many replicas each GPU of its nodes has, where pods share them."""
UNCOUNTED_REPLICAS: Final = "uncounted-replicas/"
"""Prefix of a GPU product: the same of its nodes that no flavor selects."""
UNCOUNTED: Final = "uncounted-product/"
"""Prefix of a GPU product: the resources of its nodes that no flavor selects."""


def flavor_settings(flavors: Mapping[str, Mapping[str, str]], nodes: Iterable[NodeObject]) -> dict[str, str]:
    """Return product and replicas of each flavor, given its labels, and those that no flavor selects."""
    products: dict[str, set[str]] = {}
    replicas: dict[str, set[str]] = {}
    uncounted: dict[str, set[str]] = {}
    for node in nodes:
        labels = node.metadata.labels
        product = labels.get(PRODUCT)
        gpus = {name for name in node.status.capacity if is_known_gpu(name)}
        if product is None or not gpus:
            continue
        selecting = [name for name, wanted in flavors.items() if wanted.items() <= labels.items()]
        shared = labels.get(REPLICAS, "1")
        for name in selecting:
            products.setdefault(name, set()).add(product)
            replicas.setdefault(f"{FLAVOR_REPLICAS}{name}", set()).add(shared)
        if not selecting:
            uncounted.setdefault(product, set()).update(gpus)
            replicas.setdefault(f"{UNCOUNTED_REPLICAS}{product}", set()).add(shared)
    return {
        **{f"{FLAVOR}{name}": found.pop() for name, found in products.items() if len(found) == 1},
        **{f"{UNCOUNTED}{product}": ",".join(sorted(names)) for product, names in uncounted.items()},
        **{key: found.pop() for key, found in replicas.items() if len(found) == 1 and found != {"1"}},
    }
