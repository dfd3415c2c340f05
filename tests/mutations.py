"""Mutations of the GPU drivers, of the decisions that device plans hold, and of the kernels' sources: small mistakes that a
change might bring, with the tests that are to see each. `tests/mutate.py` runs them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Kind: TypeAlias = Literal["decision", "driver", "vendor", "kernel source"]

_SOME = "(streamed or serial or relay or oneshot or stationary_c)"
CHECK = f'tests/golden/test_device_plans.py -k "reads_back and {_SOME}"'
GOLDEN = f'tests/golden/test_device_plans.py -k "plan_text and {_SOME}"'
DECIDED = (CHECK, GOLDEN)
REQUESTS = "tests/mock/test_requests.py"
CALLERS = "tests/mock/test_callers.py"
LAUNCHES = "tests/mock/test_launches.py"
FLAGS = "tests/mock/test_flags_of_copies.py"
HIP = "tests/mock/test_hip.py"
TUNED = "tests/mock/test_tuned.py"
TIMELINE = "tests/unit/test_timeline.py -k 'not launched_is_in'"
ORDER = "tests/unit/test_memory_order.py"
FAMILIES = "tests/unit/test_families.py"
SHIPPED = 'tests/mock/test_shipped.py -k "2-gemm_rs/relay or 2-gemm_ar/serial or 2-ag_gemm/streamed"'
GPU = "python -m tools.gpu_check --sizes small"  # by hand, on a machine with GPUs


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old` stands once in the file and becomes `new`. `tests` are to catch it, the first that can first: arguments of
    pytest, or `GPU`."""

    name: str
    kind: Kind
    path: str  # in ficco_rt
    old: str
    new: str
    tests: tuple[str, ...]


def _of(kind: Kind, path: str, *rows: tuple[str, str, str, tuple[str, ...] | str]) -> tuple[Mutation, ...]:
    return tuple(
        Mutation(name, kind, path, old, new, (tests,) if isinstance(tests, str) else tests)
        for name, old, new, tests in rows
    )


# ---------------------------------------------------------------- decisions

_WORDS = _of(
    "decision",
    "device/words.py",
    ("flags that two launches wait for are private", "if count == 1)", "if count >= 1)",
     "tests/unit/test_gpu_parts.py -k resets_the_flags"),
    ("flags that streams wait for are private", "if count == 1) - streams", "if count == 1)", DECIDED),
    ("semaphores are not reset", "sum(graph or w.point is None for w in mine)", "sum(w.point is None for w in mine)",
     DECIDED),
    ("words of completion lie among the others", "sorted(wanted[device], key=lambda place: place[0])",
     "sorted(wanted[device], key=lambda place: -place[0])", DECIDED),
    ("flags lie on the first device", "        device = placement.devices[rank]\n        if flag in private",
     "        device = placement.devices[0]\n        if flag in private", DECIDED),
    ("collectives meet without semaphores", "awaited[point] = set(placement.devices)", "awaited[point] = {owner}",
     DECIDED),
)
_FRAMES = _of(
    "decision",
    "device/frames.py",
    ("devices that begin together do not await the run before",
     'yield from self._await(control, self._completions(), "behind")\n            yield RecordEvent(control, EventName("s',
     'yield RecordEvent(control, EventName("s', DECIDED),
    ("devices that begin apart do not await the run before",
     'yield from self._await(control, comes, when)\n                yield from self._await(control, self._completions(), "behind")',
     "yield from self._await(control, comes, when)", DECIDED),
    ("a device awaits its own caller alone", "if owner == device for r in ranks})",
     "if owner == device for r in ranks if self.placement.devices[r] == device})",
     ('tests/golden/test_device_plans.py -k "reads_back and ring"', GOLDEN)),
    ("a caller awaits the streams of its own rank alone",
     "return [number for number, ranks in enumerate(self.touched) if rank in ranks]",
     "return [s.id for s in self.plan.streams if s.rank == rank]",
     ('tests/golden/test_device_plans.py -k "reads_back and ring"', GOLDEN)),
    ("streams touch the tensors of their own rank alone",
     "found |= {a.region.rank for a in command.accesses() if a.region.tensor in bound}", "pass",
     ('tests/golden/test_device_plans.py -k "reads_back and ring"', GOLDEN)),
    ("words are not reset at completion", "        if count:\n            yield ResetWords", "        if False:\n            yield ResetWords",
     DECIDED),
    ("completion before the reset",
     '            yield from self._reset(device)\n            yield RecordEvent(control, EventName("completion", device), END)',
     '            yield RecordEvent(control, EventName("completion", device), END)\n            yield from self._reset(device)',
     DECIDED),
    ("a run behind another does not await its caller",
     'when = "timed or behind" if alone is not None', 'when = "timed" if alone is not None', DECIDED),
    ("a graph behind other callers' run does not await it", 'BEGIN, "behind others")', 'BEGIN, "alone")', DECIDED),
    ("graphs do not await other devices' completion",
     'yield from self._await(on, self._completions(but=device), "behind")', "pass", DECIDED),
    ("callers do not await other devices' graphs", "if hosts[device] != rank:", "if False:", DECIDED),
    ("side streams of waits do not await the begin", 'in (kinds or ("plan", "wait"))', 'in (kinds or ("plan",))', DECIDED),
    ("a graph's streams are not joined at its end",
     'end += self._await(control, [_tail(stream) for stream in self._on(device, "plan")], cause=END)', "pass", DECIDED),
)
_BUILD = _of(
    "decision",
    "device/build.py",
    ("the last flag of a copy stream by a side stream", "and p < last:", "and p <= last:", DECIDED),
    ("words of the own device are copied", "return elsewhere and private", "return private", DECIDED),
    ("words that streams wait for are copied", "return elsewhere and private", "return elsewhere",
     (*DECIDED, f"{FLAGS} -k raised_beside", f"{FLAGS} -k streams_wait_for")),
    ("the first wait of a copy stream on a side stream", "and p > first and", "and", DECIDED),
    ("flags go out with a copy behind a wait", "            pending.clear()\n", "", DECIDED),
    ("copies of rows in batches", "runs = tuple(move for move in moves if not move.pitched)", "runs = tuple(moves)",
     (CHECK, FLAGS)),
    ("a batch that begins with a flag loses it", "p if whole else pending[-1])", "p)", (CHECK, FLAGS)),
    ("batches in graphs", 'together = self.mode == "streams" and', "together =", DECIDED),
    ("collectives end unmet", "        yield from self._meet(group, streams, True, cause)\n", "", DECIDED),
    ("meetings raise no semaphores",
     "            yield RecordEvent(name, point, cause)\n            yield from self._raise_semaphores(name, point, cause)",
     "            yield RecordEvent(name, point, cause)", DECIDED),
    ("flags are not reset behind launches",
     'yield from self._resets(name, [w for w in awaited if self.words.table[w].reset == "behind"], cause)', "yield from ()",
     (*DECIDED, f"{LAUNCHES} -k own_flags")),
    ("a side stream raises before its stream has come", "            yield AwaitEvent(side, event, cause)\n", "", DECIDED),
    ("a stream does not await its side stream", "            yield AwaitEvent(name, event, cause)\n        else:\n            yield ChangeWords(name, awaited",
     "        else:\n            yield ChangeWords(name, awaited", DECIDED),
    ("words change behind what follows them",
     "        if action.stream in open_:\n            yield open_.pop(action.stream)\n", "", DECIDED),
    ("a traced copy without a timestamp", "return 1 + (len(command.transfers) if", "return (len(command.transfers) if",
     TIMELINE),
)
_LAUNCHES = _of(
    "decision",
    "device/launches.py",
    ("waiting launches take all multiprocessors",
     "sms = min(asked, max(self._share(self._device(stream), asked), CLUSTERS.get(command.kernel, 1)))", "pass", DECIDED),
    ("waiting launches leave no multiprocessor to others", "left = self.limits.sms - (0 if alone else max(1, needed))",
     "left = self.limits.sms", DECIDED),
    ("launches begin early behind anything", "early=behind and config.chained", "early=config.chained", DECIDED),
    ("no launch begins early", "early=behind and config.chained and self.features.early_starts", "early=False",
     (*DECIDED, f"{LAUNCHES} -k begins_early")),
    ("kernels reset all flags that they wait for", "resets=tuple(sorted(awaited & self.private))",
     "resets=tuple(sorted(awaited))", (*DECIDED, "tests/mock/test_device_damage.py")),
    ("kernels reset no flag", "resets=tuple(sorted(awaited & self.private))", "resets=()", DECIDED),
    ("blocks of a waiting launch as of another", "streamed=command.streamed,", "streamed=False,", DECIDED),
    ("launches that wait do not say so", "spins=command.streamed,", "spins=False,", DECIDED),
    ("launches' priority dropped", "priority=command.attributes.priority,", "priority=None,", (*DECIDED, REQUESTS)),
    ("launches' shared memory dropped", "smem=command.attributes.smem,", "smem=0,", DECIDED),
    ("single blocks beside clusters start alone", "return min(others, default=1)", "return 1",
     (*DECIDED, "tests/mock/test_beside.py -k leave_clusters")),
)
_SM90 = _of(
    "decision",
    "kernels/sm90/family.py",
    ("every operand is read-only", "read_only=gemm.read_only,\n                # storing", "read_only=(True, True),\n                # storing",
     DECIDED),
    ("no operand is read-only", "read_only=gemm.read_only,\n                # storing", "read_only=(False, False),\n                # storing",
     DECIDED),
    ("flags that the storing warps wait for are reset early", "resets=() if any(w.accumulate for w in works) else tuple",
     "resets=tuple", f"{FAMILIES} -k who_resets"),
    ("flags between merged works are raised", "unraised=tuple(sorted(inside)),", "unraised=(),",
     (*DECIDED, f"{TUNED} -k along_k")),
    ("works of one product are not merged", "merged=groups,", "merged=(),", (*DECIDED, f"{TUNED} -k along_k")),
    ("K is never split", "                split_k=split_k,\n", "", (*DECIDED, f"{TUNED} -k k_cut", f"{TUNED} -k along_k")),
    ("the shared memory of all stages dropped", "smem=smem,\n                static_smem", "smem=0,\n                static_smem",
     DECIDED),
    ("a block for each multiprocessor, though there are fewer tiles", "blocks=min(clusters * v.cluster, tiled),",
     "blocks=clusters * v.cluster,", DECIDED),
)
_NAIVE = _of(
    "decision",
    "kernels/naive/family.py",
    ("several waiting blocks a multiprocessor", "held = 1 if request.streamed or kind.kernel == COPY else max(1, fitting)",
     "held = max(1, fitting)", (*DECIDED, FAMILIES)),
    ("every kernel of a launch resets its flags", "resets=request.resets if number == len(groups) - 1 else (),",
     "resets=request.resets,", (*DECIDED, FAMILIES)),
    ("shared memory counts the static part twice", "smem = max(needed, request.smem - block.static_smem)",
     "smem = max(needed, request.smem)", (*DECIDED, FAMILIES)),
)
_ADDRESSED = _of(
    "decision",
    "kernels/by_address.py",
    ("several waiting blocks a multiprocessor, sm80 and mfma",
     "blocks=min(request.sms if request.streamed else at_once, tiles),", "blocks=min(at_once, tiles),",
     (FAMILIES, f"{TUNED} -k sm_80")),
)

# ---------------------------------------------------------------- the driver

_BINDING = _of(
    "driver",
    "driver/gpu/binding.py",
    ("callers' runs by the frame of others", "plan.called if setting.callers else plan.own", "plan.own", CALLERS),
    ("raises and waits exchanged", "WordOp(resources.addresses[c.word], c.raises)",
     "WordOp(resources.addresses[c.word], not c.raises)", SHIPPED),
    ("one word of several is reset", "vendor.zero_action(resources.word(ordinal, first), count, stream)",
     "vendor.zero_action(resources.word(ordinal, first), 1, stream)", SHIPPED),
    ("copied words are lost",
     "runs = [LinearCopy(resources.addresses[word], self._gpus.ones[ordinal], 4) for word in words]", "runs = []", (FLAGS, SHIPPED)),
    ("conditions of frames are ignored",
     "a for a in actions if issued(a.when, behind=setting.behind, timed=setting.timed, others=setting.others)",
     "a for a in actions", CALLERS),
    ("rows' pitches exchanged", "cell.rows, a.pitch * item, b.pitch * item)", "cell.rows, b.pitch * item, a.pitch * item)",
     SHIPPED.replace("2-gemm_rs/relay", "2-ag_gemm/uniform_fused_2d")),
)
_RUNS = _of(
    "driver",
    "driver/gpu/runs.py",
    ("a run behind another one counts as alone", "tuple(callers), self._running, timed, others)",
     "tuple(callers), False, timed, others)", CALLERS),
    ("a run behind other callers' counts as behind its own", "timed, others)\n            calls", "timed, False)\n            calls",
     CALLERS),
    ("callers' runs are always timed", 'timed = mode == "traced" or gpus.timing or not callers', "timed = True", CALLERS),
    ("runs are not waited for", "self._running, self._last, self._setting = True,", "self._running, self._last, self._setting = False,",
     SHIPPED),
    ("words stay up after a run that was given up", "        self._resources.clear()\n", "        pass\n",
     f"{LAUNCHES} -k given_up"),
    ("counters stay up after a run that was given up", "            if launch.counters:\n", "            if False:\n",
     f"{LAUNCHES} -k given_up"),
    ("the end on one device is the end", "return all(map(self._through, self._gpus.devices))\n        except",
     "return any(map(self._through, self._gpus.devices))\n        except", (SHIPPED, CALLERS)),
)
_RESOURCES = _of(
    "driver",
    "driver/gpu/resources.py",
    ("streams' priority dropped", "self._gpus.new_stream(self._gpus.devices[stream.device], stream.priority)",
     "self._gpus.new_stream(self._gpus.devices[stream.device])", "tests/mock/test_shipped.py -k priorities"),
    ("all events take times", "timing=name.timing)", "timing=True)", f"{REQUESTS} -k take_times"),
    ("no event takes times", "timing=name.timing)", "timing=False)", f"{REQUESTS} -k take_times"),
    ("flags in ordinary memory", ', "the plan\'s flags", flags=True)', ', "the plan\'s flags")', SHIPPED),
    ("words are not 0 at first", "for word in words]\n        self.clear()", "for word in words]", SHIPPED),
)
_BOUND = _of(
    "driver",
    "driver/gpu/launches.py",
    ("a launch's shared memory is not asked for", "(config.threads,), config.smem, priority, config.cluster",
     "(config.threads,), 0, priority, config.cluster", f"{REQUESTS} -k device_plan"),
    ("a launch's priority is not asked for", "(config.threads,), config.smem, priority, config.cluster",
     "(config.threads,), config.smem, None, config.cluster", f"{REQUESTS} -k device_plan"),
    ("clusters are not asked for", "priority, config.cluster, launch.early)", "priority, 1, launch.early)", f"{TUNED} -k clusters"),
    ("early starts are not asked for", "priority, config.cluster, launch.early)", "priority, config.cluster, False)",
     f"{REQUESTS} -k device_plan"),
    ("the last launch's limit of shared memory holds for all",
     "self._smem[function] = max(config.smem, self._smem.get(function, 0))", "self._smem[function] = config.smem",
     f"{LAUNCHES} -k may_differ"),
    ("occupancy is not asked for", "if not fitting:", "if False:", f"{REQUESTS} -k only_the_device_knows"),
    ("scratch is not cleared", "self._gpus.put(device, address, image)", "self._gpus.put(device, address, image[:constants])",
     SHIPPED),
    ("kernels get no flags to reset", "[flags[flag] for flag in config.resets]", "[]", f"{LAUNCHES} -k own_flags"),
    ("the graph's launches get the stream's priority",
     "priority = None if launch.priority is None else self._gpus.priority(launch.priority)",
     'priority = self._gpus.priority(launch.priority or "normal")', "tests/mock/test_shipped.py -k priorities"),
)
_GPUS = (
    *_of(
        "driver",
        "driver/gpu/gpus.py",
        ("all priorities are the greatest", "self._greatest + round(_SHARES[name] * (self._least - self._greatest))",
         "self._greatest", "tests/mock/test_shipped.py -k priorities"),
        ("the caller's context is not restored", "                self.vendor.restore(self._callers)\n", "                pass\n",
         CALLERS),
    ),
    *_of(
        "driver",
        "driver/gpu/devices.py",
        ("devices have no access to each other", "vendor.enable_access(other.ordinal, other.context)", "pass", SHIPPED),
        ("access is not asked about", "    if not reached:\n", "    if False:\n", f"{HIP} -k command_line"),
    ),
    *_of(
        "driver",
        "driver/gpu/steps.py",
        ("contexts are entered once", "if step.device is not current and not", "if current is None and not", SHIPPED),
    ),
    *_of(
        "driver",
        "driver/gpu/modules.py",
        ("modules are shared between devices", "key = (device.ordinal, hashlib.sha256(code).digest())",
         "key = (0, hashlib.sha256(code).digest())", SHIPPED),
        ("entries are shared between devices", "key = (source, entry, device.ordinal, options)", "key = (source, entry, 0, options)",
         SHIPPED),
    ),
    *_of(
        "driver",
        "driver/gpu/spans.py",
        ("traced streams stay where they began", "        free = times[-1]", "        free = times[0]", TIMELINE),
        ("waits of a trace are not forgotten", "        waited = None\n        yield from", "        yield from",
         TIMELINE),
    ),
)  # fmt: skip

# ---------------------------------------------------------------- the vendors

_CUDA = _of(
    "vendor",
    "driver/cuda/vendor.py",
    ("CUDA: streams wait for the default stream", "self.cu.CUstream_flags.CU_STREAM_NON_BLOCKING, priority)",
     "self.cu.CUstream_flags.CU_STREAM_DEFAULT, priority)", f"{REQUESTS} -k default_stream"),
    ("CUDA: streams' priority dropped", "CU_STREAM_NON_BLOCKING, priority)", "CU_STREAM_NON_BLOCKING, 0)",
     "tests/mock/test_shipped.py -k priorities"),
    ("CUDA: all events take times", "flags.CU_EVENT_DEFAULT if timing else flags.CU_EVENT_DISABLE_TIMING",
     "flags.CU_EVENT_DEFAULT", f"{REQUESTS} -k take_times"),
    ("CUDA: words are written without a barrier", "cuStreamWriteValue32, (stream, address, 1, 0)",
     "cuStreamWriteValue32, (stream, address, 1, 1)", SHIPPED),
    ("CUDA: words of a batch are written without a barrier", "value.flags = 0", "value.flags = 1", SHIPPED),
    ("CUDA: waits for words end at once",
     "until = int(self.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)",
     "until = int(self.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_NOR)", SHIPPED),
    ("CUDA: waits of a batch end at once",
     "value.flags = int(self.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_GEQ)",
     "value.flags = int(self.cu.CUstreamWaitValue_flags.CU_STREAM_WAIT_VALUE_NOR)", SHIPPED),
    ("CUDA: anybody's calls spoil a capture", "CU_STREAM_CAPTURE_MODE_THREAD_LOCAL", "CU_STREAM_CAPTURE_MODE_GLOBAL",
     f"{REQUESTS} -k spoil"),
    ("CUDA: graphs forget priorities",
     "flags = self.cu.CUgraphInstantiate_flags.CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY", "flags = 0",
     "tests/mock/test_shipped.py -k priorities"),
    ("CUDA: more shared memory is not allowed", "call(self.cu.cuFuncSetAttribute, function, attribute, size, what=what)",
     "pass", f"{LAUNCHES} -k may_differ"),
    ("CUDA: shared memory dropped", "config.sharedMemBytes = grid.smem", "config.sharedMemBytes = 0",
     f"{REQUESTS} -k device_plan"),
    ("CUDA: launches' priority dropped", "if grid.priority is not None:", "if False:", f"{REQUESTS} -k device_plan"),
    ("CUDA: clusters dropped", "if grid.cluster > 1:", "if False:", f"{TUNED} -k clusters"),
    ("CUDA: early starts dropped", "if grid.chained:", "if False:", f"{REQUESTS} -k device_plan"),
    ("CUDA: default streams count as any context's", "int(arguments[place]) > _DEFAULT_STREAMS", "int(arguments[place]) >= 0",
     CALLERS),
    ("CUDA: calls need no context", "return place is not None and", "return place is None or", SHIPPED),
    ("CUDA: batches read in any order", "CU_MEMCPY_SRC_ACCESS_ORDER_STREAM", "CU_MEMCPY_SRC_ACCESS_ORDER_ANY",
     (SHIPPED, f"{REQUESTS} -k batches")),
    ("CUDA: batches take multiprocessors", "int(cu.CUmemcpyFlags.CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE)", "0",
     f"{REQUESTS} -k batches"),
    ("CUDA: batches with an old driver", "copy_batches=self._batches)", "copy_batches=True)", f"{FLAGS} -k without_batches"),
    ("CUDA: words are reset to 1", "self.cu.cuMemsetD32Async, (address, 0, words, stream)",
     "self.cu.cuMemsetD32Async, (address, 1, words, stream)", SHIPPED),
    ("CUDA: words that are forced up stay down", "call(self.cu.cuStreamWriteValue32, stream, address, 1, 0)",
     "call(self.cu.cuStreamWriteValue32, stream, address, 0, 0)", f"{LAUNCHES} -k given_up"),
)
_HIP = _of(
    "vendor",
    "driver/hip/vendor.py",
    ("HIP: streams wait for the default stream", "self.hip.hipStreamNonBlocking, priority)", "0, priority)",
     f"{REQUESTS} -k default_stream"),
    ("HIP: streams' priority dropped", "self.hip.hipStreamNonBlocking, priority)", "self.hip.hipStreamNonBlocking, 0)",
     "tests/mock/test_shipped.py -k priorities"),
    ("HIP: flags in memory that caches keep", "return int(call(self.hip.hipExtMallocWithFlags, size, fine, what=what))",
     "return self.alloc(size, what)", SHIPPED),
    ("HIP: copies between devices take compute units", "return self._plain if inside else self._between", "return self._plain",
     f"{HIP} -k compute_units"),
    ("HIP: signals take compute units", "return self._copy(LinearCopy(address, self._ones[device], 4), stream, self._between)",
     "return self._copy(LinearCopy(address, self._ones[device], 4), stream, self._plain)", f"{HIP} -k compute_units"),
    ("HIP: copies that do not arrive are not seen", "came = came and all(part.any() for part in (got[:half], got[half:]))",
     "pass", f"{HIP} -k do_not_arrive"),
    ("HIP: waits for words end at once", "self.hip.hipStreamWaitValueGte", "self.hip.hipStreamWaitValueNor", SHIPPED),
    ("HIP: arguments end as on CUDA", "_BUFFER, _SIZE, _END = 1, 2, 3", "_BUFFER, _SIZE, _END = 1, 2, 0", f"{HIP} -k packed"),
    ("HIP: arguments lie closer", "step = 8 if len(argument) % 8 == 0 else 4", "step = 4", f"{HIP} -k packed"),
    ("HIP: anybody's calls spoil a capture", "hipStreamCaptureModeThreadLocal", "hipStreamCaptureModeGlobal",
     f"{REQUESTS} -k spoil"),
    ("HIP: graphs forget priorities", "flags = self.hip.hipGraphInstantiateFlags.hipGraphInstantiateFlagUseNodePriority",
     "flags = 0", "tests/mock/test_shipped.py -k priorities"),
    ("HIP: shared memory dropped", "(shape, grid.smem, extra, (values, size))", "(shape, 0, extra, (values, size))",
     f"{REQUESTS} -k device_plan"),
    ("HIP: all events take times", "0 if timing else self.hip.hipEventDisableTiming", "0", f"{REQUESTS} -k take_times"),
)

# ---------------------------------------------------------------- kernel sources

_SOURCES = (
    *_of(
        "kernel source",
        "kernels/src/sm90/flags.cuh",
        ("sm90: flags are looked at once", "while ((int)(load_acquire(flag) - goal) < 0)", "if ((int)(load_acquire(flag) - goal) < 0)",
         f"{ORDER} -k hopper"),
        ("sm90: flags are not looked at", "for (int i = lane; i < count; i += lanes) {", "for (int i = lane; i < 0; i += lanes) {",
         f"{ORDER} -k hopper"),
        ("sm90: flags are raised before the stores have come", "    wait_stores_done();\n    fence_async_proxy();", "    fence_async_proxy();",
         f"{ORDER} -k hopper"),
        ("sm90: no fence between TMA's stores and a flag", "    wait_stores_done();\n    fence_async_proxy();", "    wait_stores_done();",
         f"{ORDER} -k hopper"),
        ("sm90: no fence of the system before a flag", "    __threadfence_system();", "    ;", f"{ORDER} -k hopper"),
    ),
    *_of(
        "kernel source",
        "kernels/src/sm90/ptx.cuh",
        ("sm90: flags are read relaxed", '"ld.acquire.sys.global.u32 %0, [%1];"', '"ld.relaxed.sys.global.u32 %0, [%1];"',
         f"{ORDER} -k hopper"),
        ("sm90: early starts do not wait", 'void wait_launch_before() { asm volatile("griddepcontrol.wait;" ::: "memory"); }',
         "void wait_launch_before() {}", f"{ORDER} -k hopper"),
        ("sm90: the ring's waits are told relaxed", '"red.release.cta.shared::cta.add.u32 [%0], 1;"',
         '"red.relaxed.cta.shared::cta.add.u32 [%0], 1;"', f"{ORDER} -k hopper"),
        ("sm90: parts of K are read relaxed", '"ld.acquire.gpu.global.u32 %0, [%1];"', '"ld.relaxed.gpu.global.u32 %0, [%1];"',
         (f"{ORDER} -k hopper", GPU)),
    ),
    *_of(
        "kernel source",
        "kernels/src/sm90/producer.cuh",
        ("sm90: no fence between a flag and TMA", "        fence_async_proxy();   // NOTE TMA reads", "        // NOTE TMA reads",
         f"{ORDER} -k hopper"),
        ("sm90: lanes do not meet behind their flags", "        __syncwarp();   // all lanes have acquired theirs", "", f"{ORDER} -k hopper"),
        ("sm90: tiles' flags are not waited for", "if (wait.w > 0 && wait.z != waited) look(waited = wait.z, wait.w);", "",
         f"{ORDER} -k hopper"),
        ("sm90: the loading warps do not wait", "while (load_acquire_shared(memory.seen) < count) __nanosleep(32);", "",
         f"{ORDER} -k hopper"),
    ),
    *_of(
        "kernel source",
        "kernels/src/sm90/split_k.cuh",
        ("sm90: parts of K are counted without a fence", "        if (lane == 0) {\n            __threadfence();", "        if (lane == 0) {",
         (f"{ORDER} -k hopper", GPU)),
    ),
    *_of(
        "kernel source",
        "kernels/src/sm80_gemm.cu",
        ("sm80: flags are read relaxed", '"ld.acquire.sys.global.u32 %0, [%1];"', '"ld.relaxed.sys.global.u32 %0, [%1];"',
         f"{ORDER} -k ampere"),
        ("sm80: flags are looked at once", "while ((int)(load_acquire(flag) - goal) < 0)", "if ((int)(load_acquire(flag) - goal) < 0)",
         f"{ORDER} -k ampere"),
        ("sm80: no fence of the system before a flag", "            __threadfence_system();\n", "", f"{ORDER} -k ampere"),
    ),
    *_of(
        "kernel source",
        "kernels/src/naive.cu",
        ("naive: flags are not waited for", "    if (!s.waits) return;\n    const u64 *flags", "    return;\n    const u64 *flags", ORDER),
        ("naive: flags are read relaxed, NVIDIA", '"ld.acquire.sys.global.u32 %0, [%1];"', '"ld.relaxed.sys.global.u32 %0, [%1];"',
         ORDER),
        ("naive: flags are read relaxed, AMD", "__hip_atomic_load(p, __ATOMIC_ACQUIRE, __HIP_MEMORY_SCOPE_SYSTEM)",
         "__hip_atomic_load(p, __ATOMIC_RELAXED, __HIP_MEMORY_SCOPE_SYSTEM)", f"{ORDER} -k amd"),
        ("naive: no fence before a flag, NVIDIA", 'void fence() { asm volatile("fence.acq_rel.sys;" ::: "memory"); }', "void fence() {}",
         ORDER),
        ("naive: no fence before a flag, AMD", 'void fence() { __builtin_amdgcn_fence(__ATOMIC_ACQ_REL, ""); }', "void fence() {}",
         f"{ORDER} -k amd"),
        ("naive: other threads do not acquire, AMD", 'void acquire() { __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, ""); }', "void acquire() {}",
         f"{ORDER} -k amd"),
        ("naive: early starts do not wait", 'asm volatile("griddepcontrol.wait;" ::: "memory");', ";", ORDER),
        ("naive: a work's tiles are not counted down", "        *done = 0;\n", "", "tests/unit/test_naive_amd.py -k several_tiles"),
        ("naive: a work's first tile raises its flags", "if (atomicAdd(done, 1u) != (u32)tiles - 1) return;",
         "if (atomicAdd(done, 1u) != 0) return;", ("tests/unit/test_naive_amd.py -k several_tiles", GPU)),
        ("naive: the next launch begins while this one waits", "if (!t.waits) let_next_launch();", "let_next_launch();",
         (ORDER, GPU)),
    ),
    *_of(
        "kernel source",
        "kernels/src/mfma_gemm.hip",
        ("mfma: other waves do not acquire",
         '    __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "");   // for the waves', "    // for the waves", f"{ORDER} -k matrix_cores"),
        ("mfma: flags are not released", '    __builtin_amdgcn_fence(__ATOMIC_RELEASE, "");   // waits', "    // waits",
         f"{ORDER} -k matrix_cores"),
        ("mfma: flags are not waited for", "if (t.wait_count) wait_flags(p, t.wait_first, t.wait_count);", "",
         f"{ORDER} -k matrix_cores"),
    ),
)  # fmt: skip

MUTATIONS = (
    *_WORDS, *_FRAMES, *_BUILD, *_LAUNCHES, *_SM90, *_NAIVE, *_ADDRESSED, *_BINDING, *_RUNS, *_RESOURCES, *_BOUND,
    *_GPUS, *_CUDA, *_HIP, *_SOURCES,
)  # fmt: skip
