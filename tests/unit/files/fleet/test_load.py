"""A sound file becomes the model, value by value."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import pytest

from fairway.files import (
    InvalidFile,
    check_bytes,
    check_fleet,
    check_text,
    parse_fleet,
    read_fleet,
)
from fairway.files.fleet.load import MAX_BYTES
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import (
    Capacity,
    Cluster,
    EngineKind,
    KubernetesConnection,
    KubernetesPlace,
    SlurmConnection,
    SlurmPlace,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, SliceName
from tests.unit.files.fleets import FOLDER, SHARED, SOUND, changed, checked

EXAMPLE = Path(__file__).parents[4].parent / "shared" / "fleet-example.yaml"


def test_a_sound_file_has_no_faults_and_every_value() -> None:
    report = checked(SOUND)
    fleet = report.fleet
    assert report.faults == () and fleet is not None
    assert (fleet.name, fleet.currency) == ("acme", "USD")
    assert fleet.clusters == (
        Cluster(
            ClusterName("hpc"),
            SlurmConnection("https://slurm.example.org:6820", "fairway", "/etc/fairway/hpc.jwt", None),
        ),
        Cluster(ClusterName("cloud"), KubernetesConnection("/etc/fairway/cloud.kubeconfig", None)),
        Cluster(ClusterName("lab"), VirtualConnection()),
    )
    assert [c.engine for c in fleet.clusters] == list(EngineKind)
    hpc, cloud, lab = fleet.pools
    assert (hpc.name, hpc.cluster, hpc.gpu) == ("hpc-a100", "hpc", CATALOGUE["A100-80GB"])
    assert (hpc.capacity, hpc.price, hpc.place) == (
        Capacity.OWNED,
        Decimal("1.90"),
        SlurmPlace("gpu", "a100"),
    )
    assert cloud.place == KubernetesPlace({"example.org/pool": "h100"}, (), "nvidia.com/gpu")
    assert lab.slices == (SliceName("1g.10gb"), SliceName("3g.40gb"))
    assert lab.place == VirtualPlace(2, 8, {SliceName("1g.10gb"): 4, SliceName("3g.40gb"): 1})


def test_a_price_keeps_its_digits() -> None:
    for digits in ("1.90", "0.1", "0", "999999.999999", "+2.5"):
        fleet = parse_fleet(changed("1.90", digits), "x", FOLDER)
        assert str(fleet.pools[0].price) == digits.removeprefix("+")
    assert str(parse_fleet(changed("1.90", "-0"), "x", FOLDER).pools[0].price) == "0"


def test_paths_count_from_the_files_folder(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_text(SOUND)
    connection = read_fleet(path).clusters[0].connection
    assert isinstance(connection, SlurmConnection)
    assert connection.jwt_key_file == str(tmp_path / "hpc.jwt")


def test_an_amd_pool_asks_for_amds_resource_unless_told_otherwise() -> None:
    text = changed("gpu: H100-80GB", "gpu: MI300X")
    place = parse_fleet(text, "x", FOLDER).pools[1].place
    assert isinstance(place, KubernetesPlace) and place.resource == "amd.com/gpu"
    text = text.replace("kubernetes: {", "kubernetes: { resource: example.org/gpu,")
    place = parse_fleet(text, "x", FOLDER).pools[1].place
    assert isinstance(place, KubernetesPlace) and place.resource == "example.org/gpu"


def test_a_gpu_type_of_ones_own() -> None:
    own = "gpu_types: { X9: { memory: 48GB, products: [Nine], vendor: amd } }\nclusters:"
    text = changed("clusters:", own).replace("gpu: H100-80GB", "gpu: X9")
    gpu = parse_fleet(text, "x", FOLDER).pools[1].gpu
    assert (gpu.name, gpu.memory_gb, gpu.products, gpu.vendor, gpu.profiles) == (
        "X9",
        48,
        ("Nine",),
        "amd",
        (),
    )


def test_anchors_aliases_and_merge_keys() -> None:
    text = SOUND.replace("  cloud-h100:\n", "  cloud-h100: &h\n")
    text += "  cloud-more:\n    <<: *h\n    price: 0.5\n    kubernetes: { node_labels: { zone: b } }\n"
    more = parse_fleet(text, "x", FOLDER).pools[-1]
    assert (more.name, more.cluster, more.price) == ("cloud-more", "cloud", Decimal("0.5"))


def test_a_fleet_without_pools_is_a_fleet() -> None:
    assert parse_fleet(SOUND[: SOUND.index("pools:")], "x", FOLDER).pools == ()


def test_byte_order_mark_and_windows_line_ends_are_no_fault() -> None:
    report = check_bytes(b"\xef\xbb\xbf" + SOUND.replace("\n", "\r\n").encode(), "fleet.yaml", FOLDER)
    assert report.faults == () and report.fleet == checked(SOUND).fleet


def test_the_example_of_the_design_passes() -> None:
    if not EXAMPLE.exists():
        pytest.skip("no fleet-example.yaml here: the design stands beside the checkout, in shared/")
    report = checked(EXAMPLE.read_text())
    assert report.faults == ()
    assert report.fleet is not None and len(report.fleet.pools) == 4 and len(report.fleet.teams) == 4
    assert any(team.budget is not None for team in report.fleet.teams)


@pytest.mark.parametrize("name", ["missing.yaml", ".", "nul\0byte"])
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, name: str) -> None:
    report = check_fleet(tmp_path / name)
    assert [f.code for f in report.faults] == ["FileUnreadable"]
    with pytest.raises(InvalidFile):
        read_fleet(tmp_path / name)


def test_a_file_that_is_too_large_is_not_read_to_its_end(tmp_path: Path) -> None:
    path = tmp_path / "fleet.yaml"
    path.write_bytes(b"#" * MAX_BYTES)
    assert [f.code for f in check_fleet(path).faults] == ["EmptyFile"]
    path.write_bytes(b"#" * (MAX_BYTES + 1))
    assert [f.code for f in check_fleet(path).faults] == ["FileTooLarge"]
    assert [f.code for f in check_fleet(Path("/dev/zero")).faults] == ["FileTooLarge"]


def test_invalid_file_says_the_first_error_and_where_to_see_the_rest() -> None:
    with pytest.raises(InvalidFile) as one:
        parse_fleet(changed("cluster: hpc", "cluster: hcp"), "fleet.yaml", FOLDER)
    assert one.value.code == "InvalidFile"
    assert one.value.message == "pool hpc-a100 is on cluster hcp, which the file does not have"
    assert one.value.hint == "did you mean hpc?"
    assert one.value.details == ("fleet.yaml:17:14  pools.hpc-a100.cluster   hcp",)
    with pytest.raises(InvalidFile) as two:
        parse_fleet(changed("cluster: hpc", "cluster: hcp").replace("3.67", "x"), "fleet.yaml", FOLDER)
    assert two.value.message.startswith("fleet.yaml has 2 errors, the first: pool hpc-a100")
    assert two.value.hint == "see them all, each with a hint:  fairway check -f fleet.yaml"
    assert len(two.value.faults) == 2


def test_a_pool_has_several_partitions_over_its_nodes() -> None:
    text = changed("partition: gpu,", "partition: gpu, other_partitions: [short, vip],")
    fleet = parse_fleet(text, "x", FOLDER)
    place = fleet.pools[0].place
    assert place == SlurmPlace("gpu", "a100", ("short", "vip"))
    assert place.partitions == ("gpu", "short", "vip")
    assert check_text(compose_fleet(fleet), "x", FOLDER).fleet == fleet
    twice = checked(changed("partition: gpu,", "partition: gpu, other_partitions: [gpu],"))
    assert [f.code for f in twice.faults] == ["RepeatedValue"]


def test_pools_over_one_partition_claim_the_same_gpus() -> None:
    other = "  hpc-vip:\n    cluster: hpc\n    gpu: A100-80GB\n    capacity: owned\n    price: 1\n"
    other += "    slurm: { partition: vip, other_partitions: [gpu], gres: a100 }\n"
    assert [f.code for f in checked(changed("  cloud-h100:", f"{other}  cloud-h100:")).faults] == ["SameGpus"]


def test_a_team_has_an_account_of_another_name() -> None:
    text = changed("share: 60", "share: 60\n    account: ML_Team", SHARED)
    fleet = parse_fleet(text, "x", FOLDER)
    assert (fleet.teams[0].account, fleet.teams[0].account_name) == ("ML_Team", "ML_Team")
    assert (fleet.teams[1].account, fleet.teams[1].account_name) == (None, "nlp")
    assert check_text(compose_fleet(fleet), "x", FOLDER).fleet == fleet
    same = parse_fleet(changed("share: 60", "share: 60\n    account: research", SHARED), "x", FOLDER)
    assert same.teams[0].account is None
    taken = checked(changed("share: 60", "share: 60\n    account: Product", SHARED))
    assert [f.code for f in taken.faults] == ["DuplicateAccount"]
    odd = checked(changed("share: 60", "share: 60\n    account: a/b", SHARED))
    assert [f.code for f in odd.faults] == ["BadValue"]


def test_a_partial_file_says_so() -> None:
    fleet = parse_fleet(changed("currency: USD", "currency: USD\npartial: true"), "x", FOLDER)
    assert fleet.partial
    assert check_text(compose_fleet(fleet), "x", FOLDER).fleet == fleet
    assert not parse_fleet(SOUND, "x", FOLDER).partial
