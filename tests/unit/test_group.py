"""Groups of processes: exchange, who did not come, who goes astray; of what a group is made, and who has started it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from types import ModuleType, SimpleNamespace

import pytest

import ficco_rt as ficco
from ficco_rt.errors import DeviceError, LeftError, UsageError
from ficco_rt.process.group import Group, agree, as_group, processes
from ficco_rt.process.transports import StoreTransport, launched
from tests.host.processes import FolderStore, group_of, several

STARTERS = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_SIZE")
STARTERS += ("PMI_SIZE", "MV2_COMM_WORLD_SIZE", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS")


@pytest.fixture(autouse=True)
def by_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process, whoever has started pytest."""
    for name in STARTERS:
        monkeypatch.delenv(name, raising=False)


def told(call: Callable[[], object]) -> str:
    with pytest.raises((DeviceError, UsageError)) as caught:
        call()
    return f"{type(caught.value).__name__}: {caught.value}"


def test_processes_exchange_in_order_and_leave_no_keys(tmp_path: Path) -> None:
    def body(place: int) -> object:
        group = group_of(tmp_path, 3, place)
        again = Group(group)
        found = []
        for n in range(20):
            found.append(group.exchange(f"{place}:{n}".encode() + b"\0", 10, f"step {n}"))
            assert again.exchange(b"x", 10) == (b"x",) * 3
        group.barrier(10)
        return repr(group), found

    for place, (name, found) in enumerate(several(tmp_path, 3, body)):
        assert name == f"<Group: process {place} of 3>"
        assert found == [tuple(f"{p}:{n}".encode() + b"\0" for p in range(3)) for n in range(20)]
    exchanged = [key for key in FolderStore(tmp_path).names() if "made" not in key]
    assert len(exchanged) == 2 * 2 * 3  # of each group the marks of the first exchange, and the last one


def test_groups_side_by_side_in_any_order(tmp_path: Path) -> None:
    def body(place: int) -> object:
        group = group_of(tmp_path, 4, place, members=(2, 0) if place % 2 == 0 else (3, 1))
        return group.rank, group.exchange(str(place).encode(), 10)

    assert several(tmp_path, 4, body) == [
        (1, (b"2", b"0")),
        (1, (b"3", b"1")),
        (0, (b"2", b"0")),
        (0, (b"3", b"1")),
    ]


def test_a_part_is_made_once(tmp_path: Path) -> None:
    def body(place: int) -> object:
        group = group_of(tmp_path, 3, place)
        if place == 1:
            return group.part([1]) is group.part((1,)), group.part(range(3)) is group
        part = group.part([0, 2])
        return part is group.part([0, 2]), part.exchange(str(place).encode(), 10)

    both = (True, (b"0", b"2"))
    assert several(tmp_path, 3, body) == [both, (True, True), both]


def test_who_leaves_is_seen_between_exchanges(tmp_path: Path) -> None:
    """What has come for the next exchange is kept for it."""

    def body(place: int) -> object:
        group = group_of(tmp_path, 2, place)
        group.barrier(10)
        if place:
            group.exchange(b"early", 10)
            group.leave("out of memory")
            return ""
        while not group._early:
            assert group.left() == ""
        found = group.exchange(b"late", 10)
        until = monotonic() + 10
        while not group.left() and monotonic() < until:
            pass
        return found, group.left(), told(lambda: group.barrier(10))

    why = "process 1 of 2 has left: out of memory"
    assert several(tmp_path, 2, body)[0] == ((b"late", b"early"), why, f"LeftError: {why}")


def test_who_goes_astray_is_told(tmp_path: Path) -> None:
    def body(place: int) -> object:
        late = group_of(tmp_path / "late", 3, place)
        late.barrier(60)  # the other two are there
        missing = "" if place == 1 else told(lambda: late.barrier(2, "a meal"))
        after = "" if place == 1 else told(lambda: late.barrier(2))
        astray = ""
        if place < 2:  # NOTE a third one that says it is process 0 could be taken for it
            other = group_of(tmp_path / "other", 2, place)
            astray = told(lambda: other.barrier(10, f"run {place}"))
        leaving = group_of(tmp_path / "leaving", 3, place)
        if place == 2:
            leaving.leave("out of memory")
            return missing, after, astray, ""
        return missing, after, astray, told(lambda: leaving.barrier(10))

    for name in ("late", "other", "leaving"):
        (tmp_path / name).mkdir()
    missing, after, astray, left = zip(*several(tmp_path, 3, body), strict=True)
    assert missing[0] == "DeviceError: process 0 has waited 2 s for a meal, and process 1 of 3 has not come"
    assert after[2] == (
        "DeviceError: the group of 3 processes is of no use any more: "
        "process 2 has waited 2 s for a meal, and process 1 of 3 has not come"
    )
    assert astray[0] == (
        "UsageError: processes do different things: process 0 is at run 0, process 1 at run 1; "
        "all processes of a group make the same calls in the same order"
    )
    assert left[:2] == ("LeftError: process 2 of 3 has left: out of memory",) * 2
    assert issubclass(LeftError, DeviceError)


def test_who_misses_a_group_is_in_the_next_one(tmp_path: Path) -> None:
    def body(place: int) -> object:
        for _ in range(2 if place < 2 else 0):
            missed = group_of(tmp_path, 3, place)
            assert told(partial(missed.barrier, 0.3)).endswith("of 3 has not come")
        if place == 2:
            sleep(1)
        found = []
        for _ in range(2):
            group = group_of(tmp_path, 3, place)
            found.append(group.exchange(f"{place}".encode(), 20))
            group.barrier(20)
        return found

    assert several(tmp_path, 3, body) == [[(b"0", b"1", b"2")] * 2] * 3


def test_messages_of_a_group_that_was_given_up_count_in_no_other(tmp_path: Path) -> None:
    """Process 0 gives up and comes again when process 1 has its first message, and process 2 comes in between; what it
    asks the store takes longer than process 1 waits from look to look."""

    class Slow(FolderStore):
        def check(self, keys: Sequence[str]) -> bool:
            sleep(0.1)
            return super().check(keys)

    def body(place: int) -> object:
        if place == 0:
            assert told(partial(group_of(tmp_path, 3, place).exchange, b"old", 0.4)).endswith("has not come")
        sleep((0.9, 0.1, 0.6)[place])
        group = Group(StoreTransport((Slow if place == 2 else FolderStore)(tmp_path), [0, 1, 2], place))
        return group.exchange(f"{place}".encode(), 20), group.exchange(b"then", 20)

    assert several(tmp_path, 3, body) == [((b"0", b"1", b"2"), (b"then",) * 3)] * 3


@pytest.mark.parametrize("kept", [0, 1, 5, 9, 14, 25])
def test_a_message_that_does_not_come_whole_is_told(tmp_path: Path, kept: int) -> None:
    class Short(FolderStore):
        def set(self, key: str, value: bytes) -> None:
            if value != b"gone":  # the message stays when the process gives up
                super().set(key, value[:kept])

    with pytest.raises(DeviceError):  # nobody answers
        Group(StoreTransport(Short(tmp_path), [0, 1], 1)).exchange(b"0123456789", 0, "a step")
    other = Group(StoreTransport(FolderStore(tmp_path), [0, 1], 0))
    assert told(lambda: other.exchange(b"x", 1, "a step")) == (
        f"DeviceError: a message of process 1 of 2 for a step did not come whole, {kept} bytes came; what carries "
        "messages between the processes is broken"
    )


def test_facts_that_differ_are_told_with_both(tmp_path: Path) -> None:
    def body(place: int) -> str:
        group = group_of(tmp_path, 2, place)
        agree(group, {"plan": "abc"}, 10)
        return told(lambda: agree(group, {"plan": "abc", "ficco": f"0.{place}"}, 10))

    wanted = "UsageError: the processes do not run the same: ficco is 0.0 in process 0 and 0.1 in process 1; "
    wanted += "give every process the same"
    assert several(tmp_path, 2, body) == [wanted, wanted]


def test_a_hash_is_told_where_nothing_else_differs(tmp_path: Path) -> None:
    def body(place: int) -> list[str]:
        sizes = {"M": str(1024 * (place + 1)), **({"chunks": "4"} if place else {}), "plan": f"abc{place}"}
        told_apart = told(lambda: agree(group_of(tmp_path / "a", 2, place), sizes, 10))
        return [told_apart, told(lambda: agree(group_of(tmp_path / "b", 2, place), {"M": "1", "plan": f"{place}"}, 10))]

    for name in "ab":
        (tmp_path / name).mkdir()
    said = "UsageError: the processes do not run the same: "
    ways = [
        "M is 1024 in process 0 and 2048 in process 1; chunks is not there in process 0 and 4 in process 1",
        "plan is 0 in process 0 and 1 in process 1",
    ]
    wanted = [f"{said}{way}; give every process the same" for way in ways]
    assert several(tmp_path, 2, body) == [wanted, wanted]


def test_what_another_process_has_told_is_passed_on_as_it_is(tmp_path: Path) -> None:
    """The cause stands once in the text, with the process that it comes from."""

    def body(place: int) -> object:
        group = group_of(tmp_path, 3, place)
        if place == 2:
            group.leave(UsageError("C: wanted 3 columns"))
        try:
            group.barrier(10)
        except DeviceError as error:
            group.leave(error)
            return type(error).__name__, str(error), group._over
        return None

    heard = ("LeftError", *["process 2 of 3 has left: C: wanted 3 columns"] * 2)
    assert several(tmp_path, 3, body)[:2] == [heard, heard]


def test_ranks_go_to_processes_in_order() -> None:
    assert processes(4, 2) == (0, 0, 1, 1)
    assert told(lambda: processes(6, 4)) == (
        "UsageError: 6 ranks do not go out even on 4 processes: take a multiple of 4 ranks, or fewer processes"
    )


class _ProcessGroup:
    """As torch.distributed has one."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = lambda: rank, lambda: size


_ProcessGroup.__module__ = "torch._C._distributed_c10d"


@pytest.fixture
def torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """What is used of torch, over a folder."""
    store = FolderStore(tmp_path)
    found = SimpleNamespace(store=store, rendezvous=lambda url, timeout: iter([(store, 0, 2)]))
    for name in ("torch", "torch.distributed", "torch.distributed.distributed_c10d"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["torch"].distributed = sys.modules["torch.distributed"]
    sys.modules["torch.distributed"].rendezvous = lambda *given, **words: found.rendezvous(*given, **words)
    sys.modules["torch.distributed.distributed_c10d"]._get_process_group_store = lambda group: store
    return found


def test_a_group_of_a_torch_process_group(torch: SimpleNamespace) -> None:
    group = as_group(_ProcessGroup(1, 4))
    assert (group.rank, group.size) == (1, 4)
    assert as_group(group) is group
    part = ficco.Group(_ProcessGroup(1, 4), ranks=[3, 1])
    assert (part.rank, part.size) == (1, 2)
    assert Group(_ProcessGroup(1, 4), ranks=[1]).exchange(b"me", 0) == (b"me",)
    assert told(lambda: Group(_ProcessGroup(1, 4), ranks=[0, 2])) == (
        "UsageError: ranks=[0, 2]: this process has rank 1; only members make a group"
    )
    assert told(lambda: Group(_ProcessGroup(1, 4), ranks=[1, 4])) == (
        "UsageError: ranks=[1, 4]: takes different ranks from 0 to 3"
    )
    assert told(lambda: Group(_ProcessGroup(1, 4), ranks=[1, 1])) == (
        "UsageError: ranks=[1, 1]: takes different ranks from 0 to 3"
    )
    assert told(lambda: as_group("world")) == (
        "UsageError: no group can be made of str: give a torch.distributed process group, an mpi4py communicator, "
        "or ficco.Group.from_env()"
    )


def test_a_store_that_is_gone_is_a_device_error(tmp_path: Path) -> None:
    class Gone(FolderStore):
        def check(self, keys: object) -> bool:
            raise RuntimeError("Connection reset by peer")

    transport = StoreTransport(FolderStore(tmp_path), [0, 1], 0)
    transport._store = Gone(tmp_path)
    assert told(lambda: Group(transport).barrier(1)) == (
        "DeviceError: the store of the processes does not answer (check): Connection reset by peer"
    )


def test_who_has_started_the_process(monkeypatch: pytest.MonkeyPatch, torch: SimpleNamespace) -> None:
    assert launched() == ("", 1)
    assert Group.from_env().size == 1
    for names, found in (
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "8"}, ("", 1)),  # the script of a batch, which srun has not started
        ({"SLURM_STEP_NUM_TASKS": "8"}, ("Slurm", 8)),
        ({"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "here", "MASTER_PORT": "1"}, ("torchrun", 2)),
        ({"PMI_SIZE": "4"}, ("mpirun", 4)),
        ({"TORCHELASTIC_RUN_ID": "none"}, ("torchrun", 2)),
    ):
        for name, value in names.items():
            monkeypatch.setenv(name, value)
        assert launched() == found
    group = Group.from_env()
    assert (group.rank, group.size) == (0, 2)

    def refuses(url: str, timeout: object) -> object:
        raise ValueError("the port is taken")

    torch.rendezvous = refuses
    assert told(Group.from_env) == "DeviceError: no meeting at MASTER_ADDR and MASTER_PORT: the port is taken"
    monkeypatch.setenv("WORLD_SIZE", "many")
    assert told(Group.from_env) == "UsageError: WORLD_SIZE is 'many', not a number of processes"


@pytest.mark.parametrize(("library", "way_out"), [("mpi4py", "pip install mpi4py"), ("torch", "torchrun does")])
def test_a_launcher_without_its_library(monkeypatch: pytest.MonkeyPatch, library: str, way_out: str) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setenv("PMI_SIZE" if library == "mpi4py" else "TORCHELASTIC_RUN_ID", "4")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert way_out in told(Group.from_env)
