// The face of libamdhip64.so: what hip-python asks for, by name, through dlsym. HIP has a current device a thread in
// the place of contexts, and copies of several kinds.
#include "hip_face.h"

#include <stdio.h>
#include <string.h>

typedef void *Handle;

enum { NO_COMPUTE_UNITS = 1024 };  // the kind of a copy that only copy engines make
enum { ALL_BITS = -1 };
enum { FINE_GRAINED = 1 };       // of hipExtMallocWithFlags
enum { BUFFER = 1, SIZE = 2, END = 3 };  // marks of packed launch arguments

static __thread int current;
static bool initialised;

void hip_reset(void) { current = 0; }
Device *hip_current(void) { return initialised && current < world.devices ? &devices[current] : NULL; }

Device *hip_here(void) { return initialised && current < world.devices ? &devices[current] : NULL; }

enum { LEAST_VERSION = 1000000, USUAL_VERSION = 60342134 };
int hip_version(void) { return world.version < LEAST_VERSION ? USUAL_VERSION : world.version; }
bool hip_ready(void) { return initialised; }
int hip_ordinal(void) { return current; }

static int stream_of(Handle handle, const char *who, Stream **s) {
    if (!handle) {
        DEVICE(d);
        if (!d->null_stream) d->null_stream = stream_create(d, 0, false);
        *s = d->null_stream;
        return OK;
    }
    *s = object_of(STREAM, handle, who);
    return *s ? (*s)->device->sick : INVALID_HANDLE;
}
static int event_of(Handle handle, const char *who, Event **e) {
    *e = object_of(EVENT, handle, who);
    return *e ? (*e)->device->sick : INVALID_HANDLE;
}
#define STREAM_OF(s, handle) Stream *s = NULL; { int bad_ = stream_of(handle, called_.name, &s); if (bad_) return bad_; }
#define EVENT_OF(e, handle) Event *e = NULL; { int bad_ = event_of(handle, called_.name, &e); if (bad_) return bad_; }

// ---------------------------------------------------------------- devices

int hipInit(unsigned flags) {
    CALL(hipInit);
    (void)flags;
    if (world.init_code) return world.init_code;
    if (!world.devices) return NO_DEVICE;
    initialised = true;
    return OK;
}
int hipRuntimeGetVersion(int *version) { CALL(hipRuntimeGetVersion); return *version = hip_version(), OK; }
int hipGetDeviceCount(int *n) {
    CALL(hipGetDeviceCount);
    return *n = world.devices, world.devices ? OK : NO_DEVICE;
}
int hipGetDevicePropertiesR0600(char *properties, int device) {
    CALL(hipGetDeviceProperties);
    ORDINAL(device);
    enum { BYTES = 1472, ARCH = 1160 };
    memset(properties, 0, BYTES);
    snprintf(properties, 256, "%s", d->name);
    snprintf(properties + ARCH, 256, "%s:sramecc+:xnack-", d->arch);
    return OK;
}
int hipDeviceTotalMem(size_t *bytes, int device) {
    CALL(hipDeviceTotalMem);
    ORDINAL(device);
    return *bytes = d->memory, OK;
}
int hipDeviceGetAttribute(int *value, int attribute, int device) {
    CALL(hipDeviceGetAttribute);
    ORDINAL(device);
    switch (attribute) {
        case 5: *value = d->clock_khz; break;
        case 57: *value = 32 * d->wavefront; break;
        case 59: *value = d->bus_bits; break;
        case 60: *value = d->memory_clock_khz; break;
        case 63: *value = d->sms; break;
        case 74: *value = d->smem_block; break;
        case 87: *value = d->wavefront; break;
        case 10002: *value = d->smem_sm; break;
        case 89: *value = 1; break;   // mappings of memory to addresses
        case 10017: *value = 100000; break;   // as Function.ticks
        default:
            violation("hipDeviceGetAttribute: the stand-in does not know attribute %d", attribute);
            return INVALID_VALUE;
    }
    return OK;
}
int hipDeviceGetUuid(unsigned char *uuid, int device) {
    CALL(hipDeviceGetUuid);
    ORDINAL(device);
    memset(uuid, 0x5C, 16);
    return uuid[0] = (unsigned char)(world.uuid + d->ordinal), OK;
}
int hipDeviceCanAccessPeer(int *can, int device, int peer) {
    CALL(hipDeviceCanAccessPeer);
    if (peer < 0 || peer >= world.devices) return INVALID_DEVICE;
    ORDINAL(device);
    return *can = device != peer && d->links[peer], OK;
}
int hipExtGetLinkTypeAndHopCount(int device, int peer, uint32_t *type, uint32_t *hops) {
    CALL(hipExtGetLinkTypeAndHopCount);
    if (peer < 0 || peer >= world.devices || peer == device) return INVALID_DEVICE;
    ORDINAL(device);
    return *type = d->links[peer] == 1 ? 4 : 2, *hops = 1, OK;   // xGMI, PCIe
}
int hipDeviceEnablePeerAccess(int peer, unsigned flags) {
    CALL(hipDeviceEnablePeerAccess);
    DEVICE(d);
    if (peer < 0 || peer >= world.devices || flags) return INVALID_VALUE;
    if (peer == d->ordinal || !d->links[peer]) return PEER_UNSUPPORTED;
    if (d->enabled[peer]) return PEER_ALREADY;
    d->enabled[peer] = true;
    return OK;
}
int hipGetDevice(int *device) {
    CALL(hipGetDevice);
    return *device = current, OK;
}
int hipSetDevice(int device) {
    CALL(hipSetDevice);
    ORDINAL(device);
    return current = d->ordinal, OK;
}
int hipDeviceGetStreamPriorityRange(int *least, int *greatest) {
    CALL(hipDeviceGetStreamPriorityRange);
    return *least = 1, *greatest = -1, OK;
}
int hipDeviceSynchronize(void) {
    CALL(hipDeviceSynchronize);
    DEVICE(d);
    return device_synchronize(d, called_.name);
}

// ---------------------------------------------------------------- memory

int hipMalloc(uint64_t *address, size_t bytes) {
    CALL(hipMalloc);
    DEVICE(d);
    int spoiled = capture_spoiled();
    return spoiled ? spoiled : memory_alloc(d, bytes, false, address);
}
int hipExtMallocWithFlags(uint64_t *address, size_t bytes, unsigned flags) {
    CALL(hipExtMallocWithFlags);
    DEVICE(d);
    int spoiled = capture_spoiled();
    if (flags > 3) return INVALID_VALUE;
    return spoiled ? spoiled : memory_alloc(d, bytes, flags == FINE_GRAINED, address);
}
int hipFree(uint64_t address) {
    CLOSING(hipFree);
    Device *home = memory_home(address, 1);
    if (home && !home->sick && !call_.code) device_synchronize(home, called_.name);
    int code = memory_free(address, called_.name);
    return CLOSED(code ? code : home->sick);
}
int hipMemGetInfo(size_t *free_bytes, size_t *total) {
    CALL(hipMemGetInfo);
    DEVICE(d);
    return *free_bytes = d->memory - d->used, *total = d->memory, OK;
}
typedef struct { int type, device; uint64_t device_pointer, host_pointer; int managed; unsigned flags; } PointerAttributes;
int hipPointerGetAttributes(PointerAttributes *a, uint64_t address) {
    CALL(hipPointerGetAttributes);
    Device *home = memory_home(address, 1);
    if (!home) return INVALID_VALUE;
    // NOTE another process's memory counts as the current device's
    *a = (PointerAttributes){2, memory_is_foreign(address) ? current : home->ordinal, address, 0, 0, 0};
    return OK;
}
typedef struct { int type, id; } Location;
typedef struct { Location location; int flags; } Access;
enum { READ_WRITE = 3 };
int hipMemGetAccess(unsigned long long *flags, const Location *at, uint64_t address) {
    CALL(hipMemGetAccess);
    bool may = false;
    int code = at->type == 1 ? memory_may(address, at->id, &may) : INVALID_VALUE;
    return *flags = may ? READ_WRITE : 0, code;
}
int hipMemSetAccess(uint64_t address, size_t bytes, const Access *access, size_t count) {
    CALL(hipMemSetAccess);
    for (size_t i = 0; i < count; i++) {
        if (access[i].location.type != 1 || access[i].flags != READ_WRITE) return INVALID_VALUE;
        int code = memory_let(address, bytes, access[i].location.id);
        if (code) return code;
    }
    return OK;
}
static int copy_now(uint64_t dst, uint64_t src, size_t bytes, const char *who) {
    Stream *s = NULL;
    int code = stream_of(NULL, who, &s);
    if (!code) code = stream_copy(s, dst, src, 1, bytes, 0, 0, who);
    if (!code && s->tail) s->tail->begun = true;  // no fault for what the host waits for inside a call
    return code ? code : stream_synchronize(s, who);
}
int hipMemcpyHtoD(uint64_t dst, const void *src, size_t bytes) {
    CALL(hipMemcpyHtoD);
    return copy_now(dst, (uint64_t)src, bytes, called_.name);
}
int hipMemcpyDtoH(void *dst, uint64_t src, size_t bytes) {
    CALL(hipMemcpyDtoH);
    return copy_now((uint64_t)dst, src, bytes, called_.name);
}
// NOTE to pageable memory: it returns when the bytes are there.
int hipMemcpyDtoHAsync(void *dst, uint64_t src, size_t bytes, Handle stream) {
    CALL(hipMemcpyDtoHAsync);
    STREAM_OF(s, stream);
    int code = stream_copy(s, (uint64_t)dst, src, 1, bytes, 0, 0, called_.name);
    if (!code && s->tail) s->tail->begun = true;
    return code ? code : stream_synchronize(s, called_.name);
}
int hipMemcpyHtoDAsync(uint64_t dst, const void *src, size_t bytes, Handle stream) {
    CALL(hipMemcpyHtoDAsync);
    STREAM_OF(s, stream);
    return stream_copy(s, dst, (uint64_t)src, 1, bytes, 0, 0, called_.name);
}
int hipMemcpyAsync(uint64_t dst, uint64_t src, size_t bytes, int kind, Handle stream) {
    CALL(hipMemcpyAsync);
    STREAM_OF(s, stream);
    if (kind == NO_COMPUTE_UNITS && world.copies_lost) return OK;
    return (kind == NO_COMPUTE_UNITS ? stream_copy_by_engine : stream_copy)(s, dst, src, 1, bytes, 0, 0, called_.name);
}
int hipMemcpy2DAsync(uint64_t dst, size_t dst_pitch, uint64_t src, size_t src_pitch, size_t width, size_t height,
                     int kind, Handle stream) {
    CALL(hipMemcpy2DAsync);
    STREAM_OF(s, stream);
    if (kind == NO_COMPUTE_UNITS && world.copies_lost) return OK;
    return (kind == NO_COMPUTE_UNITS ? stream_copy_by_engine : stream_copy)(s, dst, src, height, width, dst_pitch, src_pitch, called_.name);
}
int hipMemsetAsync(uint64_t dst, int value, size_t bytes, Handle stream) {
    CALL(hipMemsetAsync);
    STREAM_OF(s, stream);
    return stream_fill(s, dst, (uint32_t)value & 0xFF, 1, bytes, called_.name);
}
int hipMemsetD32Async(uint64_t dst, int value, size_t count, Handle stream) {
    CALL(hipMemsetD32Async);
    STREAM_OF(s, stream);
    return stream_fill(s, dst, (uint32_t)value, 4, count, called_.name);
}

// ---------------------------------------------------------------- streams and events

int hipStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) {
    CALL(hipStreamCreateWithPriority);
    DEVICE(d);
    if (flags > 1) return INVALID_VALUE;
    Stream *s = stream_create(d, priority, !flags);
    return *stream = s->handle = handle_of(STREAM, s), OK;
}
int hipStreamDestroy(Handle stream) {
    CLOSING(hipStreamDestroy);
    Stream *s = object_of(STREAM, stream, called_.name);
    if (!s) return INVALID_HANDLE;
    int code = stream_destroy(s);
    return CLOSED(code ? code : s->device->sick);
}
int hipStreamGetDevice(Handle stream, int *device) {
    CALL(hipStreamGetDevice);
    STREAM_OF(s, stream);
    return *device = s->device->ordinal, OK;
}
int hipStreamQuery(Handle stream) {
    CALL(hipStreamQuery);
    STREAM_OF(s, stream);
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    if (!stream_idle(s)) advance((int)drawn((uint64_t)world.steps_per_query) + 1);
    if (s->device->sick) return s->device->sick;
    return stream_idle(s) ? OK : NOT_READY;
}
int hipStreamSynchronize(Handle stream) {
    CALL(hipStreamSynchronize);
    STREAM_OF(s, stream);
    return stream_synchronize(s, called_.name);
}
int hipStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    CALL(hipStreamWaitEvent);
    STREAM_OF(s, stream);
    EVENT_OF(e, event);
    return flags ? INVALID_VALUE : event_wait(e, s);
}
int hipStreamWriteValue32(Handle stream, uint64_t address, uint32_t value, unsigned flags) {
    CALL(hipStreamWriteValue32);
    STREAM_OF(s, stream);
    return stream_value(s, WRITE_VALUE, address, value, (int)flags, called_.name);
}
int hipStreamWaitValue32(Handle stream, uint64_t address, uint32_t value, unsigned flags, uint32_t mask) {
    CALL(hipStreamWaitValue32);
    STREAM_OF(s, stream);
    if (mask != (uint32_t)ALL_BITS) return INVALID_VALUE;
    return stream_value(s, WAIT_VALUE, address, value, (int)flags, called_.name);
}
int hipEventCreateWithFlags(Handle *event, unsigned flags) {
    CALL(hipEventCreateWithFlags);
    DEVICE(d);
    Event *e = event_create(d, !(flags & 2));
    return *event = e->handle = handle_of(EVENT, e), OK;
}
int hipEventDestroy(Handle event) {
    CLOSING(hipEventDestroy);
    Event *e = object_of(EVENT, event, called_.name);
    if (!e) return INVALID_HANDLE;
    int sick = e->device->sick;
    event_destroy(e);
    return CLOSED(sick);
}
int hipEventRecord(Handle event, Handle stream) {
    CALL(hipEventRecord);
    STREAM_OF(s, stream);
    EVENT_OF(e, event);
    return event_record(e, s);
}
int hipEventQuery(Handle event) {
    CALL(hipEventQuery);
    EVENT_OF(e, event);
    return event_query(e);
}
int hipEventElapsedTime(float *milliseconds, Handle start, Handle end) {
    CALL(hipEventElapsedTime);
    EVENT_OF(a, start);
    EVENT_OF(b, end);
    return event_elapsed(a, b, milliseconds);
}

// ---------------------------------------------------------------- kernels

int hipModuleLoadData(Handle *module, const void *image) {
    CALL(hipModuleLoadData);
    DEVICE(d);
    Module *m = NULL;
    int code = module_load(d, image, &m);
    if (!code) *module = m->handle;
    return code;
}
int hipModuleUnload(Handle module) {
    CLOSING(hipModuleUnload);
    Module *m = object_of(MODULE, module, called_.name);
    if (!m) return INVALID_HANDLE;
    int sick = m->device->sick;
    module_unload(m);
    return CLOSED(sick);
}
int hipModuleGetFunction(Handle *function, Handle module, const char *name) {
    CALL(hipModuleGetFunction);
    Module *m = object_of(MODULE, module, called_.name);
    if (!m) return INVALID_HANDLE;
    Function *f = NULL;
    int code = module_function(m, name, &f);
    if (code) return code;
    // as they are compiled: tests/unit/test_mfma_gemm.py, test_naive_amd.py
    f->static_smem = !strncmp(name, "mfma_gemm", 9) ? 0 : !strncmp(name, "naive_gemm", 10) ? 2064 : 4;
    f->dynamic_smem = m->device->smem_block;  // all of it is every launch's to ask for
    return *function = f->handle, OK;
}
int hipFuncGetAttribute(int *value, int attribute, Handle function) {
    CALL(hipFuncGetAttribute);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    if (attribute != 1) {
        violation("hipFuncGetAttribute: the stand-in does not know attribute %d", attribute);
        return INVALID_VALUE;
    }
    return *value = f->static_smem, OK;
}
int hipModuleOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Handle function, int threads, size_t smem) {
    CALL(hipModuleOccupancyMaxActiveBlocksPerMultiprocessor);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    return *blocks = blocks_per_sm(f, threads, (int)smem), OK;
}
int hipModuleLaunchKernel(Handle function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned smem, Handle stream, void **values, void **extra) {
    CALL(hipModuleLaunchKernel);
    STREAM_OF(s, stream);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    if (gy != 1 || gz != 1 || by != 1 || bz != 1 || !values == !extra) return INVALID_VALUE;
    const void *packed = NULL;
    size_t bytes = 0;
    if (extra) {
        if ((uintptr_t)extra[0] != BUFFER || (uintptr_t)extra[2] != SIZE || (uintptr_t)extra[4] != END) return INVALID_VALUE;
        packed = extra[1];
        bytes = *(size_t *)extra[3];
    }
    Launch *l = NULL;
    int code = launch_new(f, s, (int)gx, (int)bx, (int)smem, 1, NULL, values, packed, bytes, &l);
    if (code) return code;
    launch_noted(l, false);
    Command *c = command_new(LAUNCH, s->device);
    c->launch = l;
    return stream_submit(s, c);
}

// ---------------------------------------------------------------- graphs

enum { USE_NODE_PRIORITY = 8 };

int hipStreamBeginCapture(Handle stream, int mode) {
    CALL(hipStreamBeginCapture);
    STREAM_OF(s, stream);
    return stream ? capture_begin(s, mode) : CAPTURE_UNSUPPORTED;
}
int hipStreamIsCapturing(Handle stream, int *status) {
    CALL(hipStreamIsCapturing);
    STREAM_OF(s, stream);
    if (!stream && capture_implicit(s->device)) return CAPTURE_IMPLICIT;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return OK;
}
int hipStreamEndCapture(Handle stream, Handle *graph) {
    CALL(hipStreamEndCapture);
    STREAM_OF(s, stream);
    Graph *g = NULL;
    int code = capture_end(s, &g);
    *graph = code ? NULL : g->handle;
    return code;
}
int hipGraphInstantiateWithFlags(Handle *exec, Handle graph, unsigned long long flags) {
    CALL(hipGraphInstantiateWithFlags);
    Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    Exec *e = NULL;
    int code = graph_instantiate(g, flags == USE_NODE_PRIORITY, &e);
    if (!code) *exec = e->handle;
    return code;
}
int hipGraphDestroy(Handle graph) {
    CLOSING(hipGraphDestroy);
    Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    graph_destroy(g);
    return CLOSED(OK);
}
int hipGraphExecDestroy(Handle exec) {
    CLOSING(hipGraphExecDestroy);
    Exec *e = object_of(EXEC, exec, called_.name);
    if (!e) return INVALID_HANDLE;
    exec_destroy(e);
    return CLOSED(OK);
}
int hipGraphUpload(Handle exec, Handle stream) {
    CALL(hipGraphUpload);
    STREAM_OF(s, stream);
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    return object_of(EXEC, exec, called_.name) ? OK : INVALID_HANDLE;
}
int hipGraphLaunch(Handle exec, Handle stream) {
    CALL(hipGraphLaunch);
    STREAM_OF(s, stream);
    Exec *e = object_of(EXEC, exec, called_.name);
    if (!e) return INVALID_HANDLE;
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    Command *c = command_new(REPLAY, s->device);
    c->exec = e;
    e->launches++;
    replay_begins(c);
    return stream_submit(s, c);
}
