"""Each mistake gives one fault: its code, its place, and a hint that helps."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairway.files import FaultCode, Severity, check_bytes
from fairway.files.diagnostics import MAX_FAULTS
from tests.unit.files.fleets import SOUND, changed, checked, codes, only_fault

HERE = Path(__file__).parents[1]

# old text, new text, code, line:column, path, a piece of the hint
MISTAKES = [
    ("kind: Fleet", "kind: Flet", "NotOneOf", "2:7", "kind", "did you mean Fleet?"),
    ("fairway/v1alpha1", "fairway/v1", "NotOneOf", "1:13", "apiVersion", "did you mean fairway/v1alpha1?"),
    ("currency: USD", "currency: usd", "BadValue", "4:11", "currency", "write USD"),
    ("currency: USD\n", "", "MissingKey", "1:1", "currency", "add:  currency: USD"),
    ("name: acme", "name: ACME_1", "BadName", "3:7", "name", "write acme"),
    ("name: acme", "name: 12", "WrongType", "3:7", "name", 'put it in quotes:  "12"'),
    ("name: acme", "name:", "WrongType", "3:1", "name", "write a value after the ':'"),
    ("name: acme", "name: true", "WrongType", "3:7", "name", 'put it in quotes:  "true"'),
    ("name: acme", "nmae: acme", "UnknownKey", "3:1", "nmae", "did you mean name?"),
    ("name: acme", "name: acme\nname: x", "DuplicateKey", "4:1", "name", "take one of them away"),
    ("engine: slurm", "engine: slrum", "NotOneOf", "7:13", "clusters.hpc.engine", "did you mean slurm?"),
    ("    engine: slurm\n", "", "MissingKey", "6:3", "clusters.hpc.engine", "add:  engine: slurm"),
    ("engine: slurm", "engin: slurm", "MissingKey", "7:5", "clusters.hpc.engin", "did you mean engine?"),
    (
        "https://slurm.example.org:6820",
        "slurm:6820",
        "BadUrl",
        "8:10",
        "clusters.hpc.url",
        "https://slurm:6820",
    ),
    (
        "https://slurm.example.org:6820",
        "ftp://slurm",
        "BadUrl",
        "8:10",
        "clusters.hpc.url",
        "https://slurm.exam",
    ),
    ("https://slurm.example.org:6820", "https://[::1", "BadUrl", "8:10", "clusters.hpc.url", "for example"),
    (
        "https://slurm.example.org:6820",
        "https://h:99999",
        "BadUrl",
        "8:10",
        "clusters.hpc.url",
        "for example",
    ),
    ("https://slurm.example.org:6820", "https://h?x=1", "BadUrl", "8:10", "clusters.hpc.url", "for example"),
    (
        "https://slurm.example.org",
        "https://me:pw@h",
        "SecretInFile",
        "8:10",
        "clusters.hpc.url",
        "token_file: PATH",
    ),
    (
        "jwt_key_file: hpc.jwt",
        "jwt_key_file: ~/k",
        "BadPath",
        "9:34",
        "clusters.hpc.credentials.jwt_key_file",
        "whole",
    ),
    ("{ jwt_key_file: hpc.jwt }", "{}", "NotExactlyOne", "9:5", "clusters.hpc.credentials", "name one file"),
    (
        "jwt_key_file: hpc.jwt",
        "jwt_key_file: a, token_file: b",
        "NotExactlyOne",
        "9:20",
        "clusters.hpc.credentials.jwt_key_file",
        "name one file",
    ),
    (
        "engine: virtual",
        "engine: virtual\n    url: https://x",
        "UnknownKey",
        "15:5",
        "clusters.lab.url",
        "engine: slurm",
    ),
    (
        "cluster: hpc",
        "cluster: hcp",
        "UnknownCluster",
        "17:14",
        "pools.hpc-a100.cluster",
        "did you mean hpc?",
    ),
    (
        "gpu: A100-80GB",
        "gpu: a100-80gb",
        "UnknownGpuType",
        "18:10",
        "pools.hpc-a100.gpu",
        "did you mean A100-80GB?",
    ),
    (
        "gpu: A100-80GB",
        "gpu: H200",
        "UnknownGpuType",
        "18:10",
        "pools.hpc-a100.gpu",
        "did you mean H200-141GB?",
    ),
    (
        "gpu: A100-80GB",
        "gpu: NVIDIA-A100-SXM4-80GB",
        "UnknownGpuType",
        "18:10",
        "pools.hpc-a100.gpu",
        "did you mean A100-80GB?",
    ),
    ("gpu: A100-80GB", "gpu: Zzz", "UnknownGpuType", "18:10", "pools.hpc-a100.gpu", "gpu_types: { Zzz:"),
    (
        "capacity: owned",
        "capacity: ownd",
        "NotOneOf",
        "19:15",
        "pools.hpc-a100.capacity",
        "did you mean owned?",
    ),
    ("price: 1.90", "prise: 1.90", "UnknownKey", "20:5", "pools.hpc-a100.prise", "did you mean price?"),
    (
        "price: 1.90",
        'price: "1.90"',
        "WrongType",
        "20:12",
        "pools.hpc-a100.price",
        "take the quotes away:  1.90",
    ),
    ("price: 1.90", "price: -1", "OutOfRange", "20:12", "pools.hpc-a100.price", "from 0 to"),
    ("price: 1.90", "price: 0.0000001", "OutOfRange", "20:12", "pools.hpc-a100.price", "at most 6 digits"),
    ("price: 1.90", "price: .nan", "BadValue", "20:12", "pools.hpc-a100.price", "plain decimal"),
    ("price: 1.90", "price: 1e9999999999", "BadValue", "20:12", "pools.hpc-a100.price", "plain decimal"),
    ("price: 1.90", "price: 0x10", "BadValue", "20:12", "pools.hpc-a100.price", "plain decimal"),
    ("price: 1.90", "price: 1_9", "WrongType", "20:12", "pools.hpc-a100.price", "write a number"),
    ("gres: a100", "gres: gpu:a100", "BadValue", "21:36", "pools.hpc-a100.slurm.gres", "write a100"),
    ("partition: gpu, ", "", "MissingKey", "21:5", "pools.hpc-a100.slurm.partition", "add:  partition: gpu"),
    (
        "slurm: { partition: gpu, gres: a100 }",
        "slurm: gpu",
        "WrongType",
        "21:12",
        "pools.hpc-a100.slurm",
        "key: value",
    ),
    (
        "    slurm: { partition: gpu, gres: a100 }\n",
        "",
        "NotExactlyOne",
        "16:3",
        "pools.hpc-a100",
        "slurm: {",
    ),
    (
        "slurm: { partition: gpu, gres: a100 }",
        "virtual: { nodes: 1 }",
        "WrongEngine",
        "21:5",
        "pools.hpc-a100.virtual",
        "slurm: { part",
    ),
    (
        "pool: h100 }",
        "pool: true }",
        "WrongType",
        "27:52",
        'pools.cloud-h100.kubernetes.node_labels."example.org/pool"',
        '"true"',
    ),
    (
        "{ node_labels",
        "{ taints: [a, a], node_labels",
        "RepeatedValue",
        "27:31",
        "pools.cloud-h100.kubernetes.taints[1]",
        "one of them",
    ),
    (
        "{ node_labels",
        "{ taints: ['a b'], node_labels",
        "BadValue",
        "27:28",
        "pools.cloud-h100.kubernetes.taints[0]",
        "fairway/spot",
    ),
    ("[1g.10gb, 3g.40gb]", "1g.10gb", "WrongType", "31:13", "pools.lab-mig.slices", "[1g.10gb]"),
    (
        "    virtual: { nodes: 2,",
        "    gpus: 8\n    virtual: { nodes: 2,",
        "GpusDisagree",
        "34:11",
        "pools.lab-mig.gpus",
        "take gpus away",
    ),
    ("{ nodes: 2,", "{ nodes: 0,", "OutOfRange", "34:23", "pools.lab-mig.virtual.nodes", "from 1 to"),
    ("{ nodes: 2,", "{ nodes: 010,", "BadValue", "34:23", "pools.lab-mig.virtual.nodes", "leading zero"),
    (
        "{ nodes: 2,",
        "{ nodes: " + "9" * 9000 + ",",
        "OutOfRange",
        "34:23",
        "pools.lab-mig.virtual.nodes",
        "from 1",
    ),
    ("{ nodes: 2,", "{ nodes: 2.5,", "WrongType", "34:23", "pools.lab-mig.virtual.nodes", "a whole number"),
    (
        "1g.10gb: 4, 3g",
        "1g.10gb: 5, 3g",
        "SlicesDoNotFit",
        "34:26",
        "pools.lab-mig.virtual.slices_per_gpu",
        "lower",
    ),
    (
        "slices: [1g.10gb, 3g.40gb]",
        "slices: [1g.10gb]",
        "SlicesDisagree",
        "34:26",
        "pools.lab-mig.virtual.slices_per_gpu",
        "slices: [1g.10gb, 3g.40gb]",
    ),
    (
        ", slices_per_gpu: { 1g.10gb: 4, 3g.40gb: 1 }",
        "",
        "SlicesDisagree",
        "31:13",
        "pools.lab-mig.slices",
        "slices_per_gpu: { 1g.10gb: 1",
    ),
    ("pools:\n", "pools:\n  1: {}\n", "KeyNotText", "16:3", "pools", 'put it in quotes:  "1"'),
    ("pools:\n", "pools:\n  ? [a]\n  : b\n", "KeyNotText", "16:5", "pools", "write a word"),
    ("name: acme", "name: !!str acme", "TagNotAllowed", "3:7", "name", "take the tag away"),
    ("name: acme", "name: *a", "UnknownAlias", "3:7", "name", "&a before"),
    (
        "clusters:\n",
        "gpu_types: { A30: { memory: 24GB } }\nclusters:\n",
        "KnownGpuType",
        "5:14",
        "gpu_types.A30",
        "another name",
    ),
    (
        "clusters:\n",
        "gpu_types: { X: { memory: 24 } }\nclusters:\n",
        "WrongType",
        "5:27",
        "gpu_types.X.memory",
        "write 24GB",
    ),
    (
        "clusters:\n",
        "gpu_types: { X: { memory: 24GiB } }\nclusters:\n",
        "BadValue",
        "5:27",
        "gpu_types.X.memory",
        "write 24GB",
    ),
]


@pytest.mark.parametrize(("old", "new", "code", "at", "path", "hint"), MISTAKES, ids=lambda v: str(v)[:24])
def test_one_mistake_is_one_fault(old: str, new: str, code: str, at: str, path: str, hint: str) -> None:
    faults = checked(changed(old, new)).faults
    assert len(faults) == 1, [(f.code, f.message) for f in faults]
    fault = faults[0]
    assert (fault.code, f"{fault.line}:{fault.column}", fault.path) == (code, at, path)
    assert fault.severity is Severity.ERROR
    assert hint in fault.hint


def test_every_fault_at_once_in_the_order_of_the_file() -> None:
    text = changed("cluster: hpc", "cluster: hcp").replace("3.67", "x").replace("kind: Fleet", "kind: Fleets")
    assert codes(text) == ["NotOneOf", "UnknownCluster", "WrongType"]


def test_what_was_expected_and_what_was_found() -> None:
    fault = only_fault(changed("capacity: owned", "capacity: ownd"))
    assert fault.found == "ownd"
    assert fault.expected == "one of owned, reserved, on-demand, spot"


def test_a_slice_of_another_gpu_and_of_a_gpu_without_mig() -> None:
    slices = "capacity: owned\n    slices: [{}]"
    fault = only_fault(changed("capacity: owned", slices.format("1g.5gb")))
    assert (fault.code, fault.path) == ("UnknownSlice", "pools.hpc-a100.slices[0]")
    assert "1g.10gb" in fault.hint
    text = changed("gpu: A100-80GB", "gpu: L4").replace("capacity: owned", slices.format("1g.10gb"), 1)
    assert only_fault(text).code == "NoMig"
    fault = only_fault(changed("capacity: owned", slices.format("1G.10GB")))
    assert (fault.code, fault.hint) == ("BadValue", "write 1g.10gb")


def test_a_faulty_cluster_is_not_also_an_unknown_one() -> None:
    assert codes(changed("engine: slurm", "engine: slrum")) == ["NotOneOf"]


def test_a_faulty_gpu_type_is_not_also_an_unknown_one() -> None:
    text = changed("clusters:\n", "gpu_types: { X: 3 }\nclusters:\n").replace("gpu: H100-80GB", "gpu: X")
    assert codes(text) == ["WrongType"]


@pytest.mark.parametrize(
    "url",
    [
        "https://me:hunter2@h",
        "https://me:hunter2@h:99999",
        "ftp://me:hunter2@h",
        "me:hunter2@h:6820",
        "https://me:hunter2@[::1",
    ],
)
def test_a_password_in_a_url_is_a_fault_and_is_not_repeated(url: str) -> None:
    fault = only_fault(changed("https://slurm.example.org:6820", url))
    assert "hunter2" not in str(fault)
    assert fault.severity is Severity.ERROR


# --- two things that are one ------------------------------------------------------------------------------


def second_pool(place: str, cluster: str = "hpc", gpu: str = "L4", more: str = "") -> str:
    what = f"    cluster: {cluster}\n    gpu: {gpu}\n    capacity: owned\n    price: 1\n"
    return f"{SOUND}  other:\n{what}    {place}\n{more}"


@pytest.mark.parametrize(
    ("place", "clash"),
    [
        ("slurm: { partition: gpu, gres: a100 }", True),
        ("slurm: { partition: gpu }", True),
        ("slurm: { partition: gpu, gres: l4 }", False),
        ("slurm: { partition: other, gres: a100 }", False),
    ],
)
def test_pools_of_one_partition_and_type_clash(place: str, clash: bool) -> None:
    report = checked(second_pool(place))
    assert [f.code for f in report.faults] == (["SameGpus"] if clash else [])
    if clash:
        fault = report.faults[0]
        assert fault.path == "pools.other.slurm"
        assert [spot.path for spot in fault.related] == ["pools.hpc-a100.slurm"]
        assert "hpc-a100 and other" in fault.message


def test_pools_of_one_partition_with_different_slices_do_not_clash() -> None:
    slices = "    slices: [{}]\n"
    text = second_pool("slurm: { partition: mig }", gpu="A100-80GB", more=slices.format("1g.10gb"))
    text += "  third:\n    cluster: hpc\n    gpu: A100-80GB\n    capacity: owned\n    price: 1\n"
    text += "    slurm: { partition: mig }\n    slices: [SLICE]\n"
    assert codes(text.replace("SLICE", "3g.40gb")) == []
    assert codes(text.replace("SLICE", "3g.40gb, 1g.10gb")) == ["SameGpus"]


def test_the_same_partition_on_another_cluster_is_another() -> None:
    more = "clusters:\n  hpc2: { engine: slurm, url: https://b, credentials: { token_file: t } }\n"
    text = second_pool("slurm: { partition: gpu, gres: a100 }", cluster="hpc2").replace("clusters:\n", more)
    assert codes(text) == []


@pytest.mark.parametrize(
    ("labels", "expected"),
    [
        ("{ example.org/pool: h100 }", ["SameGpus"]),
        ("{ example.org/pool: h100, zone: a }", ["OverlappingPools"]),
        ("{}", []),  # the wider pool comes last and gets what is left
        ("{ example.org/pool: l4 }", []),
        ("{ zone: a }", []),
    ],
)
def test_pools_of_the_same_nodes_clash(labels: str, expected: list[str]) -> None:
    report = checked(second_pool(f"kubernetes: {{ node_labels: {labels} }}", cluster="cloud"))
    assert [f.code for f in report.faults] == expected
    assert (report.fleet is None) == (expected == ["SameGpus"])


def test_pools_of_the_same_nodes_with_another_resource_do_not_clash() -> None:
    text = second_pool(
        "kubernetes: { node_labels: { example.org/pool: h100 } }", cluster="cloud", gpu="MI300X"
    )
    assert codes(text) == []


def test_one_cluster_under_two_names() -> None:
    url = "https://slurm.example.org:6820/"
    more = f"clusters:\n  hpc2: {{ engine: slurm, url: {url}, credentials: {{ token_file: t }} }}\n"
    fault = only_fault(changed("clusters:\n", more))
    assert (fault.code, fault.path, fault.related[0].path) == ("SameCluster", "clusters.hpc", "clusters.hpc2")
    other = "clusters:\n  c2: { engine: kubernetes, kubeconfig: /etc/fairway/cloud.kubeconfig, context: b }\n"
    assert codes(changed("clusters:\n", other)) == []
    assert codes(changed("clusters:\n", other.replace(", context: b", ""))) == ["SameCluster"]
    assert codes(changed("clusters:\n", "clusters:\n  v2: { engine: virtual }\n")) == []


# --- warnings ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("url", "warned"),
    [
        ("http://slurm.example.org:6820", True),
        ("http://10.0.0.7:6820", True),
        ("http://127.0.0.1:6820", False),
        ("http://localhost:6820", False),
        ("http://[::1]:6820", False),
        ("https://10.0.0.7:6820", False),
    ],
)
def test_plain_http_beyond_this_machine_is_warned_of(url: str, warned: bool) -> None:
    report = checked(changed("https://slurm.example.org:6820", url))
    assert report.fleet is not None
    assert [(f.code, f.severity) for f in report.faults] == ([("PlainHttp", "warning")] if warned else [])


@pytest.mark.parametrize("word", ["no", "Yes", "on", "y"])
def test_a_word_that_others_read_as_a_truth_value_is_warned_of(word: str) -> None:
    text = changed("partition: gpu", f"partition: {word}")
    fault = only_fault(text)
    assert (fault.code, fault.severity) == ("AmbiguousWord", "warning")
    assert checked(text).fleet is not None
    assert codes(changed("partition: gpu", f'partition: "{word}"')) == []


def test_a_cluster_called_no() -> None:
    text = SOUND.replace("  hpc:\n", "  no:\n").replace("cluster: hpc\n", "cluster: no\n")
    report = checked(text)
    assert report.fleet is not None and report.fleet.pools[0].cluster == "no"
    assert [(f.code, f.line) for f in report.faults] == [("AmbiguousWord", 6), ("AmbiguousWord", 17)]


def test_topology_without_labels_is_warned_of() -> None:
    assert codes(changed("    price: 1.90\n", "    price: 1.90\n    topology: [a/b]\n")) == ["TopologyUnused"]
    assert codes(changed("    price: 3.67\n", "    price: 3.67\n    topology: [a/b]\n")) == []


# --- the whole file ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "code", "at", "hint"),
    [
        ("", "EmptyFile", (1, 1), "examples/"),
        ("# only this\n", "EmptyFile", (1, 1), "examples/"),
        ("---\n", "EmptyFile", (1, 1), "examples/"),
        ("hello", "WrongType", (1, 1), "key: value"),
        ("- a\n- b\n", "WrongType", (1, 1), "key: value"),
        ("a: 1\n\tb: 2\n", "NotYaml", (2, 1), "tabs"),
        ("a: [1,\n", "NotYaml", (2, 1), "bracket"),
        ("a: b: c\n", "NotYaml", (1, 5), "quotes"),
        ("a: 'b\n", "NotYaml", (2, 1), "quote"),
        ("a: x\0y\n", "NotYaml", (1, 5), "line"),
        ('a: "\\UFFFFFFFF"\n', "NotYaml", (1, 1), "line"),
        ("[" * 100, "TooDeep", (1, 25), "bracket"),
        ("{a: " * 100, "TooDeep", (1, 97), "bracket"),
        (SOUND + "---\n" + SOUND, "SeveralDocuments", (35, 1), "---"),
        ("a: &a [*a]\n", "EndlessAlias", (1, 8), "write the value out"),
        ("a: &a { <<: *a }\n", "EndlessAlias", (1, 13), "write the value out"),
    ],
    ids=lambda v: str(v)[:20],
)
def test_what_is_no_fleet_at_all(text: str, code: str, at: tuple[int, int], hint: str) -> None:
    fault = only_fault(text)
    assert (fault.code, (fault.line, fault.column)) == (code, at)
    assert hint in fault.hint


def test_bytes_that_are_no_text() -> None:
    fault = check_bytes(b"name: a\nkind: \xff\n", "fleet.yaml").faults[0]
    assert (fault.code, fault.line, fault.column) == ("NotUtf8", 2, 7)
    fault = check_bytes("name: x".encode("utf-16"), "fleet.yaml").faults[0]
    assert fault.code == "NotUtf8"


def test_a_bomb_of_aliases_is_refused_quickly() -> None:
    levels = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    assert codes("\n".join(levels)) == ["TooManyValues"]
    merges = ["m0: &m0 {" + ", ".join(f"k{i}: 1" for i in range(100)) + "}"]
    merges += [f"m{i}: &m{i} {{ <<: [{', '.join([f'*m{i - 1}'] * 10)}] }}" for i in range(1, 12)]
    assert "TooManyValues" in codes("\n".join(merges))


def test_a_merge_of_no_mapping() -> None:
    text = changed("    cluster: hpc\n", "    <<: 3\n    cluster: hpc\n")
    assert only_fault(text).code == "BadMerge"


def test_more_faults_than_anybody_reads_are_counted() -> None:
    faults = checked(SOUND + "".join(f"key{i}: 1\n" for i in range(5000))).faults
    assert len(faults) == MAX_FAULTS + 1
    assert faults[-1].code == "TooManyFaults" and faults[-1].message == "4900 more faults are not shown"


def test_warnings_do_not_crowd_out_an_error() -> None:
    warned = "".join(
        f"  p{i}:\n    <<: *p\n    virtual: {{ nodes: 1 }}\n    topology: [no]\n" for i in range(120)
    )
    text = SOUND.replace(
        "  lab-mig:\n",
        "  lab: &p { cluster: lab, gpu: L4, capacity: owned, price: 1, virtual: { nodes: 1 } }\n"
        + warned
        + "  lab-mig:\n",
    )
    assert checked(text).fleet is not None
    assert checked(text + "    prise: 2\n").fleet is None


def test_a_relative_path_without_a_folder() -> None:
    fault = only_fault(SOUND, folder=None)
    assert (fault.code, fault.path) == ("BadPath", "clusters.hpc.credentials.jwt_key_file")


def test_odd_characters_are_shown_harmlessly() -> None:
    fault = only_fault(changed("name: acme", 'name: "a\\e[31m\\ud800\\u202e"'))
    assert fault.found == "a\\x1b[31m\\ud800\\u202e"
    assert only_fault(changed("name: acme", "name: " + "x" * 5000)).found == "x" * 59 + "…"


def test_every_code_is_explained_and_tested() -> None:
    assert all(code.explanation.endswith(".") and len(code.explanation) < 100 for code in FaultCode)
    tests = "".join(path.read_text() for path in HERE.rglob("test_*.py"))
    assert [code for code in FaultCode if f'"{code}"' not in tests] == []
