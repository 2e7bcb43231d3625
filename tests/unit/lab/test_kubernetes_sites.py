"""The Kubernetes sites of the lab: each is complete in itself, and nothing in it is tuned to Fairway."""

from __future__ import annotations

import pytest

from lab.errors import LabError
from lab.kubernetes.site import Site, site_names


def test_there_are_nine_sites_one_of_them_without_kueue() -> None:
    assert len(site_names()) == 9
    assert [name for name in site_names() if Site(name).kueue is None] == ["plain"]
    with pytest.raises(LabError, match="no site nowhere"):
        Site("nowhere")


@pytest.mark.parametrize("name", site_names())
def test_a_site_is_complete(name: str) -> None:
    site = Site(name)
    names = {(o["kind"], o["metadata"]["name"]) for o in site.objects}
    for wanted in site.objects:
        namespace = wanted["metadata"].get("namespace")
        assert namespace is None or ("Namespace", namespace) in names, wanted["metadata"]
        if wanted["kind"] == "LocalQueue":
            assert ("ClusterQueue", wanted["spec"]["clusterQueue"]) in names
        for group in wanted["spec"].get("resourceGroups", []) if wanted["kind"] == "ClusterQueue" else []:
            assert {("ResourceFlavor", flavor["name"]) for flavor in group["flavors"]} <= names
    labels = [node["metadata"]["labels"].items() for node in site.nodes]
    for flavor in (o for o in site.objects if o["kind"] == "ResourceFlavor"):
        assert any(flavor["spec"]["nodeLabels"].items() <= node for node in labels), (
            "no node is of the flavor"
        )


@pytest.mark.parametrize("name", site_names())
def test_a_site_knows_nothing_of_fairway(name: str) -> None:
    site = Site(name)
    for wanted in [*site.objects, *site.nodes]:
        assert "fairway.dev" not in str(wanted)
        assert "topology.fairway" not in str(wanted)
    if site.kueue is None:
        assert not any("kueue" in o["apiVersion"] for o in site.objects)
