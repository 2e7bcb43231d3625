"""What a window is asked for, and what becomes of GPUs whose exporters have other metrics."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pytest

from fairway.model.gpu_use import Device, MetricCode, Window
from fairway.telemetry.attribution import Reading
from fairway.telemetry.prometheus import Labels, MatrixRow, Point, Prometheus, VectorRow
from fairway.telemetry.reader import NodeNames, WindowReader

WINDOW = Window(1_200_000, 1_200_300)
ENGINE, COARSE = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL"
MEMORY, RECEIVED, SENT = "DCGM_FI_DEV_FB_USED", "DCGM_FI_PROF_PCIE_RX_BYTES", "DCGM_FI_PROF_PCIE_TX_BYTES"


class Exported:
    """A Prometheus with some values by metric and labels, the same in each of 20 samples."""

    def __init__(self, values: Mapping[str, Mapping[Labels, str]]) -> None:
        self.values = values
        self.queries: list[str] = []

    async def vector(self, query: str, at: float) -> tuple[VectorRow, ...]:
        self.queries.append(query)
        counts = "count_over_time" in query
        return tuple(
            VectorRow(labels, Point(at, "20" if counts else value))
            for name, of_name in self.values.items()
            if f"{name}{{" in query
            for labels, value in of_name.items()
        )

    async def matrix(self, query: str, at: float) -> tuple[MatrixRow, ...]:
        return ()


async def read(values: Mapping[str, Mapping[Labels, str]]) -> tuple[dict[str, Reading], list[str]]:
    prometheus = Exported(values)
    reader = WindowReader(cast("Prometheus", prometheus), "", NodeNames(()))
    use = await reader.read(WINDOW, (), 15.0)
    return {reading.device.node: reading for reading in use.readings}, prometheus.queries


def labels(node: str) -> Labels:
    return Labels(node=node, gpu="0")


async def test_the_coarse_metric_counts_for_gpus_without_the_finer_one() -> None:
    values = {
        ENGINE: {labels("new"): "0.5"},
        COARSE: {labels("new"): "80", labels("old"): "30"},
        MEMORY: {labels("new"): "100", labels("old"): "200"},
    }
    found, _ = await read(values)
    assert found["new"].means[MetricCode.ENGINE] == 0.5
    assert found["old"].means == pytest.approx({MetricCode.ENGINE: 0.3, MetricCode.MEMORY: 200.0})
    assert found["old"].samples == 20
    found, _ = await read({COARSE: {labels("old"): "30"}})
    assert found["old"].means[MetricCode.ENGINE] == pytest.approx(0.3)


async def test_the_coarse_metric_is_asked_for_only_if_a_gpu_needs_it() -> None:
    values = {ENGINE: {labels("n1"): "0.5"}, COARSE: {labels("n1"): "80"}, MEMORY: {labels("n1"): "1"}}
    _, queries = await read(values)
    assert not [query for query in queries if COARSE in query]


@pytest.mark.parametrize(("sent", "expected"), [({"n1": "3"}, 5.0), ({}, 2.0)])
async def test_both_directions_are_added_up(sent: dict[str, str], expected: float) -> None:
    both = {RECEIVED: {labels("n1"): "2"}, SENT: {labels(node): value for node, value in sent.items()}}
    found, _ = await read({ENGINE: {labels("n1"): "0.5"}, **both})
    assert found["n1"].means[MetricCode.PCIE] == expected


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-Inf"])
async def test_what_is_no_number_is_not_measured(value: str) -> None:
    found, _ = await read({ENGINE: {labels("n1"): "0.5"}, MEMORY: {labels("n1"): value}})
    assert found["n1"].means == {MetricCode.ENGINE: 0.5}
    assert found["n1"].peak_memory_mib is None


async def test_a_name_that_cannot_be_stored_costs_nobody_else_their_figures() -> None:
    found, _ = await read({ENGINE: {labels("n1"): "0.5", labels("n\0"): "0.5"}})
    assert {reading.device for reading in found.values()} == {Device("n1", "0")}
