"""Machines: files that read back to the same value, mistakes with their lines, tiers, stored machines."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ficco_rt as ficco
from ficco_rt.cli.declare import complete_from
from ficco_rt.cli.machine import kernels
from ficco_rt.cli.main import execute
from ficco_rt.errors import PlanError, UsageError
from ficco_rt.machine import durations, file, measured_tables
from ficco_rt.machine.discover import DeviceFacts
from ficco_rt.machine.discover import machine as discovered
from ficco_rt.machine.durations import collective_time, read_time, transfer_time
from ficco_rt.machine.machine_rules import hints, mistakes
from ficco_rt.machine.model import Links, Machine, Port
from ficco_rt.machine.profiles import NAMES, stored
from ficco_rt.machine.units import TOLD, figure
from ficco_rt.plan import codec

ROOT = Path(__file__).resolve().parents[2]
NODES = ROOT / "examples" / "machines" / "nodes-8x8.toml"
STORED = ROOT / "ficco_rt" / "machine" / "stored"
NAME = "ag_gemm/serial"
SIZES: dict[str, object] = {"M": 256, "N": 128, "K": 64}

MEASURED = measured_tables.Measured(
    devices=("NVIDIA H200", "NVIDIA H200"),
    driver="580.1",
    date="2026-11-22",
    software='CUDA 13.0 "x" \\ µ\x85'[:-1],
    copies=(
        measured_tables.CopyTimes("device", "sm", "one", ((4096, 8.25), (1 << 40, 1e7 / 3)), sms=16),
        measured_tables.CopyTimes("network", "copy", "incast", ((1, 0.0),), senders=3, source="measured"),
    ),
    gemms=(
        measured_tables.GemmRates(
            "sm90_128x256", "bf16", "nt", ((1, 2, 3, 760e6), (1, 2, 4, 1.0)), row_pieces=4, k_pieces=2
        ),
    ),
    reductions=(measured_tables.ReduceTimes("fp32", 7, ((10, 2.5),)),),
    contention=(measured_tables.Contention("gemm", "copy", "copy", ((8192, 4096, 512, 1 << 20, 1.03),)),),
    costs=(measured_tables.Cost("raise_flag", "graph", 1.25), measured_tables.Cost("launch", "streams", 3)),
    sustained=(measured_tables.Sustained("fp16", 0.5, 0.93, "measured on a warm day"),),
)


def nodes() -> Machine:
    return file.load(NODES)


def ring(ranks: int, of: int = 0, a_port: int = 1) -> Machine:
    """Rings of `of` ranks, and a ring of what shares a port, if there are several."""
    links = replace(stored("h200-ring").links, ranks=of)
    outer = (replace(links, name="far", ranks=0, ranks_a_port=a_port),) if of else ()
    return replace(stored("h200-ring"), ranks=ranks, links=links, outer=outer, sources=())


# ---------------------------------------------------------------- files


@pytest.mark.parametrize("name", NAMES)
def test_stored_machines_are_files_of_the_fixed_layout(name: str) -> None:
    machine = stored(name)
    path = STORED / f"{name}.toml"
    assert machine.name == name
    assert file.text_of(machine) == path.read_text(encoding="utf-8")
    assert {p.stem for p in STORED.iterdir()} == set(NAMES)


def test_a_file_holds_all_of_a_machine(tmp_path: Path) -> None:
    machine = replace(nodes(), measured=MEASURED)
    ficco.save_machine(machine, tmp_path / "m.toml")
    for read in (ficco.load_machine(tmp_path / "m.toml"), file.load(str(tmp_path / "m.toml"))):
        assert read == machine
        assert read.sources == machine.sources
    text = (tmp_path / "m.toml").read_text(encoding="utf-8")
    assert "points = [  # bytes, microseconds\n  [4_096, 8.25],\n" in text
    assert "points = [  # m, n, k, operations a microsecond\n  [1, 2, 3, 760e6],\n" in text
    assert os.listdir(tmp_path) == ["m.toml"]


def test_overheads_and_power_of_a_file_come_before_the_architectures(tmp_path: Path) -> None:
    """One that is not there stays the architecture's; a plan keeps what the file says."""
    h200 = stored("h200-switch")
    own = replace(h200.device, overheads=(("frame", 9.5), ("beside", 0.9)), power=(("share", 0.1), ("time", 500.0)))
    machine = replace(h200, ranks=2, device=own)
    ficco.save_machine(machine, tmp_path / "m.toml")
    assert ficco.load_machine(tmp_path / "m.toml") == machine
    marked = tmp_path / "marked.toml"
    marked.write_bytes(b"\xef\xbb\xbf" + (tmp_path / "m.toml").read_bytes())
    assert ficco.load_machine(marked) == machine
    assert "[device.overheads]  # microseconds or a share\nframe = 9.5\n" in (tmp_path / "m.toml").read_text()
    assert durations.overheads(own) == replace(durations.overheads(h200.device), frame=9.5, beside=0.9)
    assert durations.slowed(own, 1e6, 1.0) == pytest.approx(1.1)
    assert durations.slowed(h200.device, 1e6, 1.0) == pytest.approx(1 + durations.POWER["NVIDIA H200"].share)
    plan = ficco.compile(NAME, 2, machine, **SIZES)
    assert codec.from_json(codec.to_json(plan)).target == machine


@pytest.mark.parametrize(
    ("overheads", "power", "message"),
    [
        ((("frmae", 1.0),), (), "device.overheads.frmae: is no key here; keys are event_to_copy, "),
        ((("frame", 1.0), ("frame", 2.0)), (), "device.overheads.frame: stands there twice"),
        ((("frame", -1.0),), (), "device.overheads.frame: is -1.0 (microseconds or a share); it must be 0 or more"),
        ((("beside", 0.0),), (), "device.overheads.beside: is 0.0; it must be above 0, and 1 at most"),
        ((), (("share", 0.1),), "device.power: has no 'time'; it needs share and time"),
        ((), (("share", 1.1), ("time", 1.0)), "device.power.share: is 1.1; it must be 1 at most"),
        ((), (("share", 0.1), ("time", 0.0)), "device.power.time: is 0.0; it must be above 0"),
    ],
)
def test_mistakes_of_overheads_and_power(
    overheads: tuple[tuple[str, float], ...], power: tuple[tuple[str, float], ...], message: str
) -> None:
    h200 = stored("h200-switch")
    found = mistakes(replace(h200, device=replace(h200.device, overheads=overheads, power=power)))
    assert str(found[0]).startswith(message)


def test_a_date_may_be_a_date() -> None:
    text = file.text_of(replace(nodes(), measured=MEASURED)).replace('date = "2026-11-22"', "date = 2026-11-22")
    assert file.parse(text, "m.toml").measured == MEASURED


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("version = 1", "version = 2", "m.toml: has version 2; this ficco reads version 1"),
        ("version = 1", "", "m.toml: is no machine: it has no 'version'; the first line is `version = 1`"),
        ("ranks = 64", "ranks = ", "m.toml:7:9: this is no TOML: invalid value"),
        ("ranks = 64", "ranks = " + "[" * 3000 + "]" * 3000, "m.toml: is no machine: it is nested too deeply"),
        ("ranks = 64", f"ranks = {'9' * 5000}", "m.toml: is no machine: a number has thousands of digits"),
        ("ranks = 64", "ranks = 64.0", "m.toml:7: ranks: a whole number is needed, not 64.0"),
        ("ranks = 64", "ranks = 0", "m.toml:7: ranks: is 0; it must be 1 or more"),
        ("ranks = 64", "", "m.toml: ranks: is missing (docs/machines.md has an example)"),
        ("ranks = 64", "rank = 64", "m.toml:7: rank: is no key of a machine; its keys are version, name, source, "
         "ranks, device, tiers, measured; did you mean 'ranks'?\n"
         "m.toml: ranks: is missing (docs/machines.md has an example)"),
        ("sms = 132", "sms = true", "m.toml:12: device.sms: a whole number is needed, not True"),
        ("sms = 132", 'sms = "132"', "m.toml:12: device.sms: a whole number is needed, not '132'"),
        ("rate = 386e3", "rate = 0", "m.toml:45: tiers[0].rate: is 0 (bytes a microsecond); it must be 1 or more"),
        ("rate = 386e3", "rate = 1e-300",
         "m.toml:45: tiers[0].rate: is 1e-300 (bytes a microsecond); it must be 1 or more"),
        ("rate = 45e3", "rate = nan", "m.toml:57: tiers[1].rate: is nan (bytes a microsecond); it must be 1 or more"),
        ("rate = 45e3", "", "m.toml:55: tiers[1]: has no 'rate' (bytes a microsecond)"),
        ("rate = 45e3", "rat = 45e3", "m.toml:57: tiers[1].rat: is no key here; keys are kind, rate, copy_time, "
         "signal_time, name, ranks, ranks_a_port, reach; did you mean 'rate'?\n"
         "m.toml:55: tiers[1]: has no 'rate' (bytes a microsecond)"),
        ('kind = "switch"', 'kind = "star"', "m.toml:44: tiers[0].kind: 'star' is none of switch, mesh, ring\n"
         "m.toml:56: tiers[1].kind: 'star' is none of switch, mesh, ring"),
        ("bf16 = 760e6", 'bf16 = "fast"', "m.toml:24: device.gemm_rate.bf16: a number (operations a microsecond) is "
         "needed, not 'fast'"),
        ("bf16 = 760e6", "bf16 = -1", "m.toml:24: device.gemm_rate.bf16: is -1 (operations a microsecond); it must be "
         "1 or more"),
        ("ranks = 8", "ranks = 0", "m.toml:48: tiers[0].ranks: joins all ranks, so tier 'network' joins nothing; say "
         "how many"),
        ('name = "network"', 'name = "node"', "m.toml:60: tiers[1].name: 'node' is the name of another tier; give the "
         "tier its own"),
        ('name = "network"', 'name = "network"\nranks = 12', "m.toml:61: tiers[1].ranks: is 12; tier 'node' joins 8: "
         "give a larger multiple of 8, or leave it out for all ranks\n"
         "m.toml:7: ranks: is 64, and the last tier, 'network', joins 12 of them"),
        ('name = "network"', 'name = "network"\nranks_a_port = 3', "m.toml:61: tiers[1].ranks_a_port: is 3, which does "
         "not divide the 8 ranks of tier 'node'"),
        ('memory_rate = "not', 'memory_speed = "not', "m.toml:37: device.sources.memory_speed: is the source of no "
         "number here; did you mean 'memory_rate'?"),
        ("smem_per_block = 232_448", "smem_per_block = 300_000", "m.toml:14: device.smem_per_block: is 300000, and a "
         "multiprocessor has 233472 (smem_per_sm), of which a block costs 1024 more (smem_reserved)"),
        ('name = "nodes-8x8"', 'name = "\\u001b[31m"', "m.toml:5: name: a text is needed, not '\\x1b[31m'"),
        ('name = "nodes-8x8"', 'name = " "', "m.toml:5: name: ' ' is no name; give one of 1 to 200 characters"),
        ("[device.gemm_rate]", "[device.gemm]", "m.toml:23: device.gemm: is no key here; keys are name, arch, sms, "),
    ],
)  # fmt: skip
def test_mistakes_of_a_file_have_their_lines(old: str, new: str, message: str) -> None:
    text = NODES.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(UsageError) as caught:
        file.parse(text.replace(old, new), "m.toml")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('where = "network"', 'where = "moon"', "copies[1].where: 'moon' is none of device, node, network"),
        ('date = "2026-11-22"', 'date = "2026-02-30"', "date: '2026-02-30' is no day; a day is written as 2026-11-22"),
        ('driver = "580.1"', 'driver = ""', "driver: is empty; name the driver's version"),
        ("[1, 2, 4, 1.0]", "[1, 2, 3, 1.0]", "gemms[0].points: are not in the order of their sizes, each size once"),
        ("[1, 2, 4, 1.0]", "[1, 2, 4]", "gemms[0].points[1]: a list of 4 numbers is needed, not (1, 2, 4)"),
        ("[1, 2, 4, 1.0]", "[1, 2, 0, 1.0]", "gemms[0].points[1][2]: is 0; it must be 1 or more"),
        ("[1, 2, 4, 1.0]", "7", "gemms[0].points[1]: a list of 4 numbers is needed, not 7"),
        ('what = "launch"', 'what = "lunch"', "costs[1].what: 'lunch' is none of copy, copy_of_batch, raise_flag"),
        ("factor = 0.93", "factor = 0.0", "sustained[0].factor: is 0.0 (times); it must be above 0, 1000 at most"),
        ("[[measured.costs]]", "[measured.costs]", "a list of tables is needed"),
    ],
)
def test_mistakes_of_tables(old: str, new: str, message: str) -> None:
    text = file.text_of(replace(nodes(), measured=MEASURED))
    assert old in text
    if old.startswith("[["):
        text = text.replace(old, new, 1).replace("[[measured.costs]]", "[measured.costs.x]")
    with pytest.raises(UsageError) as caught:
        file.parse(text.replace(old, new), "m.toml")
    line, _, rest = str(caught.value).removeprefix("m.toml:").partition(": measured.")
    assert line.isdecimal()
    assert message in rest


def test_what_no_file_may_have_is_not_written(tmp_path: Path) -> None:
    bad = replace(nodes(), links=replace(nodes().links, rate=float("inf")))
    with pytest.raises(UsageError, match=r"^machine 'nodes-8x8': tiers\[0\].rate: is inf"):
        ficco.save_machine(bad, tmp_path / "m.toml")
    with pytest.raises(UsageError, match=r"a machine's name ends in \.toml$"):
        ficco.save_machine(nodes(), tmp_path / "m.json")
    with pytest.raises(UsageError, match=r"^a Machine is needed"):
        ficco.save_machine("h200-switch", tmp_path / "m.toml")  # type: ignore[arg-type]
    assert not os.listdir(tmp_path)


def test_machines_of_callers_are_judged() -> None:
    plan = ficco.compile(NAME, 2, **SIZES)
    switch = stored("h200-switch")
    for wrong, message in (
        (replace(switch, links=replace(switch.links, rate=0.0)), r"tiers\[0\].rate: is 0.0"),
        (replace(switch, device=3), "device: Device is needed"),
        (replace(switch, outer=None), r"tiers: the outer ones are a tuple of Links, not None"),
        (replace(switch, links=replace(switch.links, ranks_a_port=2)), r"ranks share ports of outer tiers alone"),
        (replace(switch, device=replace(switch.device, gemm_rate=(("bf16", 1.0),) * 2)), "stands there twice"),
        (replace(switch, device=replace(switch.device, gemm_rate=(("bf17", 1.0),))), "bf17: is no element type"),
    ):
        with pytest.raises(UsageError, match=message):
            ficco.simulate(plan, wrong)  # type: ignore[arg-type]


# ---------------------------------------------------------------- stored machines


def test_every_rate_and_time_of_a_stored_machine_has_its_source() -> None:
    for name in NAMES:
        machine = stored(name)
        paths = [f"device.{key}" for key in ("memory_rate", "launch_time", "sms")]
        paths += [f"device.gemm_rate.{key}" for key, _ in machine.device.gemm_rate]
        paths += [
            f"tiers[{i}].{key}" for i in range(len(machine.tiers)) for key in ("rate", "copy_time", "signal_time")
        ]
        for path in paths:
            source = machine.source_of(path)
            assert source, (name, path)
            ours = name.startswith("h200")
            assert ours or path == "device.sms" or source.startswith("not measured"), (name, path, source)


@pytest.mark.parametrize("name", NAMES)
def test_every_stored_machine_can_be_compiled_for(name: str) -> None:
    for schedule in (NAME, "ag_gemm/streamed"):
        plan = ficco.compile(schedule, 2, name, **SIZES)
        assert plan.target.name == name
        assert ficco.simulate(plan).duration > 0


def test_which_kernels_an_architecture_has() -> None:
    assert kernels("sm_90a") == "sm90 (wgmma, TMA), then sm80 (mma.sync, cp.async)"
    assert kernels("sm_86") == "sm80 (mma.sync, cp.async)"
    assert kernels("sm_100a") == (
        "sm80 (mma.sync, cp.async); none is made for sm_100a, so GEMMs of ours do not reach the rates below"
    )
    assert kernels("gfx90a") == "mfma (MFMA)"
    assert kernels("gfx950") == "plain ones, right and slow: no kernel of ours uses matrix units of gfx950"


def test_a_plan_for_other_matrix_units_is_refused() -> None:
    plan = ficco.compile("ag_gemm/serial", 2, "mi300x-mesh", M=4096, N=1024, K=1024)
    with pytest.raises(UsageError) as caught:
        ficco.simulate(plan, replace(stored("h200-switch"), ranks=2))
    assert str(caught.value) == (
        "the plan has kernels for gfx942, and h200-switch has GPUs of sm_90a; compile the schedule for the machine "
        "that it runs on"
    )


def test_a_domain_is_as_large_as_it_is() -> None:
    with pytest.raises(UsageError, match=r"^machine 'gb200-nvl72' joins 72 ranks and 73 are needed"):
        ficco.compile(NAME, 73, "gb200-nvl72")


def test_a_file_has_the_ranks_that_it_says(run: Run) -> None:
    """No command adds ranks to a machine of one's own; without --gpus it takes at most those that are there."""
    small = replace(stored("h200-switch"), name="small", ranks=4)
    ficco.save_machine(small, "small.toml")
    sizes = ("--set", "M=64", "--set", "N=32", "--set", "K=32")
    told = "small.toml:7: ranks: is 4, and 6 are needed; write 6 here if the machine has so many, or ask for 4 at most"
    with pytest.raises(UsageError) as caught:
        ficco.compile(NAME, 6, "small.toml", **SIZES)
    assert str(caught.value) == told
    on = ("--machine", "small.toml")
    for command in (
        ("ficco", "explain", NAME, *sizes),
        ("ficco", "choose", "ag_gemm", *sizes),
        ("ficco", "characterise", "--set", "M=256"),
        ("ficco", "shape", "ag_gemm/serial", *sizes),
        ("ficco", "explore", "ag_gemm", *sizes),
        ("ficco-run", NAME, "--backend", "sim", *sizes),
        ("ficco-run", "ag_gemm", "--backend", "sim", *sizes),
    ):
        code, _, error = run(*command, *on, "--gpus", "6")
        assert (code, error.splitlines()[-1].partition(": ")[2]) == (2, told), command
    assert json.loads(run("ficco", "explain", NAME, *sizes, *on, "--json")[1])["ranks"] == 4
    assert json.loads(run("ficco", "choose", "ag_gemm", *sizes, *on, "--json")[1])["ranks"] == 4
    assert json.loads(run("ficco-run", "ag_gemm", "--backend", "sim", *sizes, *on, "--json")[1])["ranks"] == 4
    ficco.save_machine(replace(small, links=replace(small.links, ranks=4)), "small.toml")
    assert (
        "; write 6 here and in the last tier, 'node', if the machine has so many, or ask for 4 at most"
        in (run("ficco", "explain", NAME, *sizes, *on, "--gpus", "6")[2])
    )
    ficco.save_machine(replace(small, ranks=9), "small.toml")
    assert json.loads(run("ficco", "explain", NAME, *sizes, *on, "--json")[1])["ranks"] == 8


def test_gpus_of_a_stored_machine_have_its_tiers() -> None:
    device = stored("mi250x").device
    facts = {f: getattr(device, f) for f in DeviceFacts.__dataclass_fields__ if hasattr(device, f)}
    found = discovered([DeviceFacts(**facts, clock_khz=1, memory_clock_khz=1, bus_bits=1)] * 4, 8, ranks_per_gpu=2)
    assert [links.ranks for links in found.tiers] == [4, 0]
    assert (found.between(0, 3).rate, found.between(0, 4).rate) == (150e3, 37e3)
    assert not mistakes(found)
    alone = discovered([DeviceFacts(**facts, clock_khz=1, memory_clock_khz=1, bus_bits=1)] * 2, 2, linked=False)
    assert len(alone.tiers) == 1


# ---------------------------------------------------------------- tiers


def test_ranks_of_a_group_reach_each_other_by_its_links() -> None:
    machine = nodes()
    assert [machine.tier(0, b) for b in (0, 1, 7, 8, 63)] == [0, 0, 0, 1, 1]
    assert machine.ports(9, 15) == (Port("out", 9), Port("in", 15))
    assert machine.ports(0, 8) == (Port("out", 0, tier=1), Port("in", 8, tier=1))
    assert machine.of_port(machine.ports(0, 8)[0]).rate == 45e3
    shared = replace(machine, outer=(replace(machine.outer[0], ranks_a_port=8),))
    assert shared.ports(1, 17) == (Port("out", 0, tier=1), Port("in", 2, tier=1))
    assert (machine.hops(0, 1), machine.hops(0, 63), machine.hops(5, 5)) == (1, 1, 0)
    mesh = replace(machine, outer=(replace(machine.outer[0], kind="mesh", ranks_a_port=8),))
    assert mesh.ports(1, 17) == (Port("link", 0, 2, 1),)


def test_rings_of_tiers() -> None:
    one, four = ring(6), ring(12, of=4, a_port=4)
    assert [one.hops(0, b) for b in range(6)] == [0, 1, 2, 3, 2, 1]
    assert one.ports(5, 1) == (Port("link", 5, 0), Port("link", 0, 1))
    assert four.ports(7, 5) == (Port("link", 7, 4), Port("link", 4, 5))
    assert four.ports(4, 6) == (Port("link", 4, 5), Port("link", 5, 6))
    assert four.ports(3, 11) == (Port("link", 0, 2, 1),)
    assert four.hops(0, 11) == 1


def test_prices_go_by_the_tier() -> None:
    machine = replace(nodes(), ranks=16)
    near, far = (transfer_time(machine, 0, peer, 1 << 20) for peer in (1, 8))
    assert near == 6.0 + (1 << 20) / 386e3
    assert far == 15.0 + (1 << 20) / 45e3
    both = read_time(machine, 0, [(1, 1 << 20), (2, 1 << 20), (8, 1 << 20)])
    assert both == read_time(machine, 0, [(8, 1 << 20)]) > 2 * read_time(machine, 0, [(1, 1 << 20)])
    size = 1 << 26
    one_tier = replace(machine, outer=(), links=replace(machine.links, ranks=0))
    inside = collective_time(one_tier, "all_gather", size)
    signals = 3.0 + 7 * 4.0 + 1 * 10.0
    # half of it comes by eight adapters; all of it goes on inside
    assert collective_time(machine, "all_gather", size) == signals + max(
        size * 15 / 16 / 386e3, size * 8 / 16 / (45e3 * 8)
    )
    assert collective_time(machine, "all_to_all", size) == signals + size * 8 / 16 / 45e3
    assert collective_time(machine, "all_reduce", size) > collective_time(machine, "all_gather", size)
    assert inside == 3.0 + 15 * 4.0 + size * 15 / 16 / 386e3
    port = replace(machine, outer=(replace(machine.outer[0], ranks_a_port=8),))
    assert collective_time(port, "all_gather", size) == signals + size * 8 / 16 / 45e3


def test_an_all_gather_between_nodes_takes_longer() -> None:
    """Copies between nodes are priced by the network; with one adapter for a node they share it."""
    sizes = {"M": 4096, "N": 1024, "K": 512}
    machine = replace(nodes(), ranks=16).as_one_node()
    plan = ficco.compile(NAME, 16, machine, **sizes)
    trace = ficco.simulate(plan)
    times: dict[bool, list[float]] = {True: [], False: []}
    for span in trace.spans:
        if span.kind == "copy" and span.peer is not None and span.peer != span.rank:
            times[span.rank // 8 == span.peer // 8].append(span.stop - span.start)
    assert len(times[True]) == 16 * 7
    assert len(times[False]) == 16 * 8
    assert min(times[False]) > max(times[True])
    one = replace(machine, outer=(replace(machine.outer[0], ranks_a_port=8),))
    flat = replace(machine, outer=(), links=replace(machine.links, ranks=0))
    shared = 8 * 8 * (256 * 512 * 2) / 45e3  # each of a node's ranks receives eight shards by one port
    assert ficco.simulate(plan, flat).duration < trace.duration < shared < ficco.simulate(plan, one).duration


# ---------------------------------------------------------------- plans


def test_a_plan_with_the_name_alone_is_read(tmp_path: Path) -> None:
    """As it was written for stored machines before plans held them whole."""
    plan = ficco.compile(NAME, 2, "mi300x-mesh", **SIZES)
    (tmp_path / "old.json").write_text(codec.to_json(replace(plan, made_for=None)))
    assert "made_for" not in (tmp_path / "old.json").read_text()
    assert ficco.load_plan(tmp_path / "old.json") == plan
    (tmp_path / "odd.json").write_text(codec.to_json(replace(plan, made_for=None, machine="abacus")))
    with pytest.raises(PlanError, match="does not hold the machine that it was made for, and no machine is called"):
        ficco.load_plan(tmp_path / "odd.json")
    with pytest.raises(UsageError, match="does not hold the machine"):
        ficco.simulate(replace(plan, made_for=None))


def test_a_plan_keeps_tables_and_tiers(tmp_path: Path) -> None:
    machine = replace(nodes(), ranks=2, measured=MEASURED)
    plan = ficco.compile(NAME, 2, machine, **SIZES)
    ficco.save_plan(plan, tmp_path / "plan.json")
    read = ficco.load_plan(tmp_path / "plan.json")
    assert read.target == machine
    assert read.target.sources == machine.sources
    other = replace(machine, sources=())
    assert ficco.plan_hash(ficco.compile(NAME, 2, other, **SIZES)) == ficco.plan_hash(plan)  # words do nothing


# ---------------------------------------------------------------- the command line


Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)

    def call(*words: str) -> tuple[int, str, str]:
        code = execute(words[0], list(words[1:]))
        return (code, *capsys.readouterr())

    return call


@pytest.mark.parametrize(("name", "rate"), [("h200-switch", 1.44e9), ("h100-switch", 0.0), ("a100-switch", 0.0)])
def test_both_formats_of_fp8_have_one_rate(name: str, rate: float) -> None:
    """Of Hopper without one it is that of bf16 times what an H200 reaches, of others the least."""
    device = stored(name).device
    rates = dict(device.gemm_rate)
    wanted = rate or (1.9 * rates["bf16"] if device.arch == "sm_90a" else min(rates.values()))
    assert {durations.gemm_rate(device, dtype) for dtype in ("fp8_e4m3", "fp8_e5m2")} == {wanted}


def test_machines_are_listed_and_shown(run: Run) -> None:
    code, listed, _ = run("ficco", "machine")
    assert code == 0
    assert [line.split()[0] for line in listed.splitlines()] == list(NAMES)
    assert "gb200-nvl72  72 ranks   NVIDIA GB200           72 ranks by switch                 not measured" in listed
    code, shown, _ = run("ficco", "machine", "h200-switch")
    assert code == 0
    assert "  memory_rate            4200 GB/s  not measured  data sheet 4.8 TB/s, 87.5 % of it assumed\n" in shown
    assert "  rate          386 GB/s  measured  on 4×H200 with NVSwitch: all-gather by staggered pushes" in shown
    assert "  copy time by size: not measured\n" in shown
    record = json.loads(run("ficco", "machine", "b200-switch", "--json")[1])
    assert record["tiers"][0]["rate"]["measured"] is False
    assert record["device"]["gemm_rate.bf16"]["unit"] == "operations a microsecond"
    assert record["measured"] is None
    assert len(json.loads(run("ficco", "machine", "--json")[1])["machines"]) == len(NAMES)


def test_a_calibrated_machine_is_shown(run: Run) -> None:
    ficco.save_machine(replace(nodes(), measured=MEASURED), "m.toml")
    code, shown, _ = run("ficco", "machine", "m.toml")
    assert code == 0
    for line in (
        "nodes-8x8: 64 ranks, 8 ranks by switch, all by switch; 4 of 11 rates and times measured\n",
        "Tier network: switch of all, by messages of NCCL or RCCL alone\n",
        "  2026-11-22, NVIDIA H200, NVIDIA H200; driver 580.1, CUDA 13.0",
        "  copy time by size: 2 records\n",
        "    device sm one        sms 16     2 points, 4096: 8.25 … 1099511627776: 3,333,000\n",
        "1 point, 8192 × 4096 × 512 × 1048576: 1.03",
        "raise_flag graph",
    ):
        assert line in shown
    assert json.loads(run("ficco", "machine", "m.toml", "--json")[1])["tables"]["copies"] == 2


def test_a_machine_is_written_to_be_changed(run: Run) -> None:
    assert run("ficco", "machine", "h100-switch", "-o", "mine.toml") == (
        0,
        "mine.toml: h100-switch, not measured\n",
        "",
    )
    assert ficco.load_machine("mine.toml") == stored("h100-switch")
    assert run("ficco", "machine", "-o", "mine.toml")[0] == 2
    assert run("ficco", "machine", "none.toml")[::2] == (2, "ficco machine: none.toml: there is no such file\n")
    assert "no machine is called 'abacus'; stored are h200-switch, " in run("ficco", "machine", "abacus")[2]
    Path("mine.toml").write_text("version = 1\nname = 3")
    code, _, err = run("ficco", "explain", NAME, "--machine", "mine.toml")
    assert code == 2
    assert "\nmine.toml:2: name: a text is needed, not 3\n" in err


def test_every_command_takes_a_file(run: Run) -> None:
    mine = replace(stored("h200-switch"), name="mine")
    ficco.save_machine(mine, "mine.toml")
    on = ("--gpus", "2", "--machine", "mine.toml", "--set", "M=64", "--set", "N=32", "--set", "K=32")
    facts = json.loads(run("ficco-run", NAME, *on, "--backend", "sim", "--json")[1])
    assert facts["machine"] == "mine"
    assert json.loads(run("ficco", "explain", NAME, *on, "--json")[1])["machine"] == "mine"
    assert run("ficco", "check", NAME, *on)[0] == 0
    assert run("ficco", "compile", NAME, *on, "-o", "plan.json")[0] == 0
    again = ("ficco-run", "plan.json", "--backend", "sim", "--json")
    assert json.loads(run(*again, "--machine", "mine.toml")[1])["time_ms"] == facts["time_ms"]
    ficco.save_machine(replace(mine, links=replace(mine.links, rate=1e3)), "mine.toml")
    assert json.loads(run(*again)[1])["time_ms"] == facts["time_ms"]  # the plan's own
    assert "is a plan for mine with other numbers than mine.toml has now; " in run(*again, "--machine", "mine.toml")[1]
    Path("mine.toml").unlink()
    assert run(*again)[0] == run("ficco", "check", "plan.json")[0] == 0


def test_sixty_four_ranks_in_eight_nodes_are_explained(run: Run) -> None:
    sizes = ("--set", "M=1024", "--set", "N=1024", "--set", "K=128")
    code, _, error = run("ficco", "explain", NAME, "--gpus", "64", "--machine", str(NODES), *sizes)
    assert code == 1
    assert "rank 0 writes G@8, the memory of another node: ranks reach each other by messages alone" in error
    ficco.save_machine(nodes().as_one_node(), "reached.toml")
    code, text, _ = run("ficco", "explain", NAME, "--gpus", "16", "--machine", "reached.toml", *sizes)
    assert code == 0
    assert "\n  switch of tier node: each port that is used carries 112 KiB, " in text
    assert "\n  switch of tier network: each port that is used carries 128 KiB, " in text
    by_two = ("ficco", "explain", "ag_gemm/hierarchical", "--gpus", "64", "--machine", str(NODES), *sizes)
    code, text, _ = run(*by_two, "--set", "node=8")
    assert code == 0
    assert "messages sent to one rank, as one of another rank is received" in text
    assert "\n  switch of tier node: each port that is used carries 224 KiB, " in text  # what came is passed on
    assert "\n  switch of tier network: each port that is used carries 28.0 KiB, " in text  # one shard a node


def test_shells_complete_machines() -> None:
    completed = [item.value for item in complete_from("machines files")(None, None, "h")]  # type: ignore[arg-type]
    assert completed == ["h200-switch", "h200-ring", "h200-nodes", "h100-switch", "h"]


def test_shared_ports_are_named(run: Run) -> None:
    shared = replace(nodes(), outer=(Links("switch", 45e3, 15.0, 10.0, "network", ranks_a_port=8),))
    ficco.save_machine(replace(shared, sources=()), "m.toml")
    on = ("--gpus", "9", "--machine", "m.toml", "--set", "M=18", "--set", "N=18", "--set", "K=18")
    facts: dict[str, Any] = json.loads(run("ficco", "explain", NAME, *on, "--json")[1])
    near, far = facts["traffic"]["tiers"]
    assert (near["name"], far["name"]) == ("node", "network")
    assert far["busiest_link"]["link"] == "into ranks 0–7"
    assert facts["traffic"]["busiest_link"]["link"] == "into ranks 0–7"


# ---------------------------------------------------------------- docs/machines.md

PAGE = (ROOT / "docs" / "machines.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def test_the_files_of_the_page_are_machines() -> None:
    whole, tables_of_it = blocks("toml")
    machine = file.parse(whole + tables_of_it, "page.toml")
    assert [links.ranks for links in machine.tiers] == [4, 0]
    assert machine.measured is not None
    assert set(re.findall(r"^\| `measured\.(\w+)`", PAGE, re.MULTILINE)) == set(measured_tables.TITLES)
    for cls in (
        measured_tables.CopyTimes,
        measured_tables.GemmRates,
        measured_tables.ReduceTimes,
        measured_tables.Contention,
        measured_tables.Cost,
        measured_tables.Sustained,
    ):
        assert all(f"`{name}`" in PAGE for name in hints(cls) if name != "points"), cls
    assert set(re.findall(r"^\| `([a-z0-9-]+)` \| ", PAGE, re.MULTILINE)) >= set(NAMES)


def test_the_commands_of_the_page_work(run: Run) -> None:
    Path("examples").symlink_to(ROOT / "examples")
    for line in "".join(blocks("sh")).splitlines():
        words = line.partition("#")[0].split()
        many = "64" in words or "72" in words  # seconds each
        if not many or os.environ.get("FICCO_ALL"):
            assert run(*words)[0] == 0, line
    for block in blocks("python"):
        exec(compile(block, "machines.md", "exec"), {})


@pytest.mark.parametrize(
    ("number", "digits", "text"),
    [
        (2316.4, 3, "2,320"), (123456, 2, "120,000"), (999.6, 3, "1,000"), (482.3, 3, "482"), (0.68, 2, "0.68"),
        (0.0000123, 3, "0.0000123"), (120.0, 2, "120"), (0, 3, "0"),
    ],
)  # fmt: skip
def test_figures_have_no_exponent(number: float, digits: int, text: str) -> None:
    assert figure(number, digits) == text
    assert TOLD.format(f"{{f:.{digits}g}} µs", f=number) == f"{text} µs"
