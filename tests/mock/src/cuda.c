// The face of libcuda.so.1: what cuda.bindings.driver asks for, by name, through cuGetProcAddress.
#define _GNU_SOURCE
#include "standin.h"
#include "tensor_map.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t Address;
typedef void *Handle;

static __thread Handle stack[64];    // contexts, the current one last
static __thread int depth;
static bool initialised;

void cuda_reset(void) { depth = 0; }
int standin_pushed(void) { return depth; }

static Device *device_of(Handle context, const char *who) { return context ? object_of(CONTEXT, context, who) : NULL; }

// The current context's device, or a code.
static int current(const char *who, Device **d) {
    if (!initialised) return NOT_INITIALIZED;
    if (!depth || !stack[depth - 1]) return INVALID_CONTEXT;
    *d = device_of(stack[depth - 1], who);
    return *d ? (*d)->sick : INVALID_CONTEXT;
}
static int stream_of(Handle handle, const char *who, Stream **s) {
    if (!handle) {
        Device *d = NULL;
        int code = current(who, &d);
        if (code) return code;
        if (!d->null_stream) d->null_stream = stream_create(d, 0, false);
        *s = d->null_stream;
        return OK;
    }
    *s = object_of(STREAM, handle, who);
    return *s ? (*s)->device->sick : INVALID_HANDLE;
}
// Work is put on a stream while its context is the current one,
static int working(Stream *s, const char *who) {
    if (depth && device_of(stack[depth - 1], who) == s->device) return OK;
    violation("%s: the stream's context is not the current one", who);
    return INVALID_CONTEXT;
}
static int event_of(Handle handle, const char *who, Event **e) {
    *e = object_of(EVENT, handle, who);
    return *e ? (*e)->device->sick : INVALID_HANDLE;
}
#define DEVICE(d) Device *d = NULL; { int bad_ = current(called_.name, &d); if (bad_) return bad_; }
#define STREAM_OF(s, handle) Stream *s = NULL; { int bad_ = stream_of(handle, called_.name, &s); if (bad_) return bad_; }
// NOTE records, waits and launches of graphs ask for no current context: their handles know where they belong.
#define WORK_OF(s, handle) STREAM_OF(s, handle); { int bad_ = working(s, called_.name); if (bad_) return bad_; }
// or, if it goes by its stream alone, also while another one is; captured it might not.
#define PLACED_OF(s, handle) STREAM_OF(s, handle); if (s->capture) { int bad_ = working(s, called_.name); if (bad_) return bad_; }
#define EVENT_OF(e, handle) Event *e = NULL; { int bad_ = event_of(handle, called_.name, &e); if (bad_) return bad_; }
#define UNCAPTURED { int bad_ = capture_spoiled(); if (bad_) return bad_; }   // a call that captures forbid
#define ORDINAL(n) if ((n) < 0 || (n) >= world.devices) return INVALID_DEVICE; Device *d = &devices[n]

// ---------------------------------------------------------------- devices

int cuInit(unsigned flags) {
    CALL(cuInit);
    (void)flags;
    if (world.init_code) return world.init_code;
    if (!world.devices) return NO_DEVICE;
    initialised = true;
    return OK;
}
int cuDriverGetVersion(int *version) { CALL(cuDriverGetVersion); return *version = world.version, OK; }
int cuDeviceGetCount(int *n) { CALL(cuDeviceGetCount); return *n = world.devices, initialised ? OK : NOT_INITIALIZED; }
int cuDeviceGet(int *device, int ordinal) {
    CALL(cuDeviceGet);
    ORDINAL(ordinal);
    return *device = d->ordinal, OK;
}
int cuDeviceGetName(char *name, int room, int device) {
    CALL(cuDeviceGetName);
    ORDINAL(device);
    return snprintf(name, (size_t)room, "%s", d->name), OK;
}
int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    CALL(cuDeviceTotalMem);
    ORDINAL(device);
    return *bytes = d->memory, OK;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    CALL(cuDeviceGetAttribute);
    ORDINAL(device);
    switch (attribute) {
        case 10: *value = 32; break;  // threads of a warp
        case 13: *value = d->clock_khz; break;
        case 16: *value = d->sms; break;
        case 36: *value = d->memory_clock_khz; break;
        case 37: *value = d->bus_bits; break;
        case 39: *value = 2048; break;  // threads of a multiprocessor
        case 75: *value = d->major; break;
        case 76: *value = d->minor; break;
        case 81: *value = d->smem_sm; break;
        case 97: *value = d->smem_block; break;
        case 98: *value = world.flush; break;  // remote writes
        case 106: *value = d->max_blocks; break;
        case 111: *value = d->smem_reserved; break;
        default:
            violation("cuDeviceGetAttribute: the stand-in does not know attribute %d", attribute);
            return INVALID_VALUE;
    }
    return OK;
}
int cuDeviceCanAccessPeer(int *can, int device, int peer) {
    CALL(cuDeviceCanAccessPeer);
    if (peer < 0 || peer >= world.devices) return INVALID_DEVICE;
    ORDINAL(device);
    return *can = device != peer && d->links[peer], OK;
}
int cuDeviceGetP2PAttribute(int *value, int attribute, int device, int peer) {
    CALL(cuDeviceGetP2PAttribute);
    if (peer < 0 || peer >= world.devices || peer == device) return INVALID_DEVICE;
    ORDINAL(device);
    if (attribute != 3) {   // native atomics
        violation("cuDeviceGetP2PAttribute: the stand-in does not know attribute %d", attribute);
        return INVALID_VALUE;
    }
    return *value = d->links[peer] == 1, OK;
}

// ---------------------------------------------------------------- contexts

int cuDevicePrimaryCtxRetain(Handle *context, int device) {
    CALL(cuDevicePrimaryCtxRetain);
    ORDINAL(device);
    if (d->sick) return d->sick;
    if (!d->retained++) d->context = handle_of(CONTEXT, d), d->queues = queues_asked(d);
    else world.live[CONTEXT]++;
    return *context = d->context, OK;
}
int cuDevicePrimaryCtxRelease_v2(int device) {
    CLOSING(cuDevicePrimaryCtxRelease);
    ORDINAL(device);
    if (!d->retained) {
        violation("cuDevicePrimaryCtxRelease: device %d is not retained", device);
        return INVALID_CONTEXT;
    }
    if (--d->retained) world.live[CONTEXT]--;
    else {
        handle_gone(d->context);
        memset(d->enabled, 0, sizeof d->enabled);
    }
    return CLOSED(OK);
}
int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) {
    CALL(cuDevicePrimaryCtxGetState);
    ORDINAL(device);
    return *flags = 0, *active = d->retained > 0, OK;
}
int cuCtxPushCurrent_v2(Handle context) {
    CALL(cuCtxPushCurrent);
    Device *d = device_of(context, called_.name);
    if (!d) return INVALID_CONTEXT;
    if (depth == 64) {
        violation("cuCtxPushCurrent: 64 contexts are pushed");
        return INVALID_VALUE;
    }
    stack[depth++] = context;
    return OK;
}
int cuCtxPopCurrent_v2(Handle *context) {
    CLOSING(cuCtxPopCurrent);
    if (!depth) return INVALID_CONTEXT;
    depth--;
    if (context) *context = stack[depth];
    return CLOSED(OK);
}
int cuCtxSetCurrent(Handle context) {
    CALL(cuCtxSetCurrent);
    if (context && !device_of(context, called_.name)) return INVALID_CONTEXT;
    if (depth) depth--;
    if (context) stack[depth++] = context;
    return OK;
}
int cuCtxGetCurrent(Handle *context) {
    CALL(cuCtxGetCurrent);
    return *context = depth ? stack[depth - 1] : NULL, OK;
}
int cuCtxEnablePeerAccess(Handle peer, unsigned flags) {
    CALL(cuCtxEnablePeerAccess);
    DEVICE(d);
    Device *other = device_of(peer, called_.name);
    if (!other || flags) return INVALID_VALUE;
    if (other == d || !d->links[other->ordinal]) return PEER_UNSUPPORTED;
    if (d->enabled[other->ordinal]) return PEER_ALREADY;
    d->enabled[other->ordinal] = true;
    return OK;
}
int cuCtxGetStreamPriorityRange(int *least, int *greatest) {
    CALL(cuCtxGetStreamPriorityRange);
    DEVICE(d);
    return *least = 0, *greatest = -5, OK;
}
int cuCtxSynchronize(void) {
    CALL(cuCtxSynchronize);
    DEVICE(d);
    return device_synchronize(d, called_.name);
}

// ---------------------------------------------------------------- memory

int cuMemAlloc_v2(Address *address, size_t bytes) {
    CALL(cuMemAlloc);
    DEVICE(d);
    UNCAPTURED;
    return memory_alloc(d, bytes, true, address);
}
int cuMemFree_v2(Address address) {
    CLOSING(cuMemFree);
    UNCAPTURED;
    Device *home = memory_home(address, 1);
    if (home && !home->sick && !call_.code) device_synchronize(home, called_.name);
    int code = memory_free(address, called_.name);
    return CLOSED(code ? code : home->sick);
}
int cuMemHostAlloc(void **address, size_t bytes, unsigned flags) {   // of the host, which devices see
    CALL(cuMemHostAlloc);
    DEVICE(d);
    Address at = 0;
    int code = flags ? INVALID_VALUE : memory_alloc(d, bytes, true, &at);
    return *address = (void *)at, code;
}
int cuMemHostGetDevicePointer_v2(Address *address, void *host, unsigned flags) {
    CALL(cuMemHostGetDevicePointer);
    return *address = (Address)host, flags ? INVALID_VALUE : OK;
}
int cuMemGetInfo_v2(size_t *free_bytes, size_t *total) {
    CALL(cuMemGetInfo);
    DEVICE(d);
    return *free_bytes = d->memory - d->used, *total = d->memory, OK;
}
int cuPointerGetAttribute(void *data, int attribute, Address address) {
    CALL(cuPointerGetAttribute);
    Device *home = memory_home(address, 1);
    if (!home) return INVALID_VALUE;
    uint64_t base = 0, bytes = 0;
    memory_mapping(address, &base, &bytes);
    switch (attribute) {
        case 9: return *(int *)data = home->ordinal, OK;
        case 10: return *(bool *)data = memory_is_plain(address), OK;  // what cudaIpcGetMemHandle takes
        case 17: return *(void **)data = memory_pool_of(address) ? &home->held : NULL, OK;  // the pool's handle
        case 18: return *(size_t *)data = bytes, bytes ? OK : INVALID_VALUE;
        case 19: return *(Address *)data = base, bytes ? OK : INVALID_VALUE;
        default: return INVALID_VALUE;
    }
}
typedef struct { int type, id; } Location;
typedef struct { Location location; int flags; } Access;
enum { READ_WRITE = 3 };
static bool is_device(const Location *at) { return at->type == 1; }
int cuMemGetAccess(unsigned long long *flags, const Location *at, Address address) {
    CALL(cuMemGetAccess);
    bool may = false;
    int code = is_device(at) ? memory_may(address, at->id, &may) : INVALID_VALUE;
    return *flags = may ? READ_WRITE : 0, code;
}
int cuMemSetAccess(Address address, size_t bytes, const Access *access, size_t count) {
    CALL(cuMemSetAccess);
    for (size_t i = 0; i < count; i++) {
        if (!is_device(&access[i].location) || access[i].flags != READ_WRITE) return INVALID_VALUE;
        int code = memory_let(address, bytes, access[i].location.id);
        if (code) return code;
    }
    return OK;
}
int cuMemPoolSetAccess(Handle pool, const Access *access, size_t count) {
    CALL(cuMemPoolSetAccess);
    const Device *home = NULL;
    for (int i = 0; i < world.devices; i++)
        if (pool == &devices[i].held) home = &devices[i];
    if (!home) return INVALID_VALUE;
    for (size_t i = 0; i < count; i++) {
        if (!is_device(&access[i].location) || access[i].flags != READ_WRITE) return INVALID_VALUE;
        int code = memory_pool_let(home, access[i].location.id);
        if (code) return code;
    }
    return OK;
}
int cuMemcpyDtoDAsync_v2(Address dst, Address src, size_t bytes, Handle stream) {
    CALL(cuMemcpyDtoDAsync);
    PLACED_OF(s, stream);
    return stream_copy(s, dst, src, 1, bytes, 0, 0, called_.name);
}
int cuMemcpyHtoDAsync_v2(Address dst, const void *src, size_t bytes, Handle stream) {
    CALL(cuMemcpyHtoDAsync);
    WORK_OF(s, stream);
    return stream_copy(s, dst, (Address)src, 1, bytes, 0, 0, called_.name);
}
// NOTE to pageable memory: it returns when the bytes are there.
int cuMemcpyDtoHAsync_v2(void *dst, Address src, size_t bytes, Handle stream) {
    CALL(cuMemcpyDtoHAsync);
    WORK_OF(s, stream);
    int code = stream_copy(s, (Address)dst, src, 1, bytes, 0, 0, called_.name);
    if (!code && s->tail) s->tail->begun = true;
    return code ? code : stream_synchronize(s, called_.name);
}
static int copy_now(Address dst, Address src, size_t bytes, const char *who) {
    Stream *s = NULL;
    int code = stream_of(NULL, who, &s);
    if (!code) code = stream_copy(s, dst, src, 1, bytes, 0, 0, who);
    if (!code && s->tail) s->tail->begun = true;  // no fault for what the host waits for inside a call
    return code ? code : stream_synchronize(s, who);
}
int cuMemcpyDtoH_v2(void *dst, Address src, size_t bytes) {
    CALL(cuMemcpyDtoH);
    UNCAPTURED;
    return copy_now((Address)dst, src, bytes, called_.name);
}
int cuMemcpyHtoD_v2(Address dst, const void *src, size_t bytes) {
    CALL(cuMemcpyHtoD);
    UNCAPTURED;
    return copy_now(dst, (Address)src, bytes, called_.name);
}

typedef struct {
    size_t src_x, src_y;
    int src_type;
    const void *src_host;
    Address src_device;
    void *src_array;
    size_t src_pitch, dst_x, dst_y;
    int dst_type;
    void *dst_host;
    Address dst_device;
    void *dst_array;
    size_t dst_pitch, width, height;
} Copy2D;
int cuMemcpy2DAsync_v2(const Copy2D *c, Handle stream) {
    CALL(cuMemcpy2DAsync);
    PLACED_OF(s, stream);
    Address dst = c->dst_type == 1 ? (Address)c->dst_host : c->dst_device;
    Address src = c->src_type == 1 ? (Address)c->src_host : c->src_device;
    if (c->src_type == 3 || c->dst_type == 3) return INVALID_VALUE;
    return stream_copy(s, dst + c->dst_y * c->dst_pitch + c->dst_x, src + c->src_y * c->src_pitch + c->src_x, c->height,
                       c->width, c->dst_pitch, c->src_pitch, called_.name);
}
enum { IN_STREAM_ORDER = 1 };  // CUmemcpySrcAccessOrder, the attributes' first member

int cuMemcpyBatchAsync_v2(Address *dsts, Address *srcs, size_t *sizes, size_t count, void *attributes, size_t *at,
                          size_t attribute_count, Handle stream) {
    CALL(cuMemcpyBatchAsync);
    PLACED_OF(s, stream);
    if (world.version < 13000) return NOT_FOUND;
    // NOTE by any other order the sources might be read before what stands before the batch has written them
    if (*(const int *)attributes != IN_STREAM_ORDER) violation("cuMemcpyBatchAsync: the sources' access has no order");
    DEVICE(any);
    (void)any;
    if (!stream || !count || !attribute_count || attribute_count > count || at[0]) return INVALID_VALUE;
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    // NOTE the copies of a batch have no order among themselves; those of this project never overlap
    size_t first = drawn(count);
    for (size_t n = 0; n < count; n++) {
        size_t i = (first + n) % count;
        int code = stream_copy(s, dsts[i], srcs[i], 1, sizes[i], 0, 0, called_.name);
        if (code) return code;
    }
    return OK;
}
int cuMemsetD8Async(Address dst, unsigned char value, size_t count, Handle stream) {
    CALL(cuMemsetD8Async);
    WORK_OF(s, stream);
    return stream_fill(s, dst, value, 1, count, called_.name);
}
int cuMemsetD32Async(Address dst, unsigned value, size_t count, Handle stream) {
    CALL(cuMemsetD32Async);
    PLACED_OF(s, stream);
    return stream_fill(s, dst, value, 4, count, called_.name);
}

// ---------------------------------------------------------------- streams and events

int cuStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) {
    CALL(cuStreamCreateWithPriority);
    DEVICE(d);
    if (flags > 1) return INVALID_VALUE;
    Stream *s = stream_create(d, priority, !flags);
    return *stream = s->handle = handle_of(STREAM, s), OK;
}
int cuStreamDestroy_v2(Handle stream) {
    CLOSING(cuStreamDestroy);
    Stream *s = object_of(STREAM, stream, called_.name);
    if (!s) return INVALID_HANDLE;
    int code = stream_destroy(s);
    return CLOSED(code ? code : s->device->sick);
}
int cuStreamQuery(Handle stream) {
    CALL(cuStreamQuery);
    UNCAPTURED;
    STREAM_OF(s, stream);
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    if (!stream_idle(s)) advance((int)drawn((uint64_t)world.steps_per_query) + 1);
    if (s->device->sick) return s->device->sick;
    return stream_idle(s) ? OK : NOT_READY;
}
int cuStreamSynchronize(Handle stream) {
    CALL(cuStreamSynchronize);
    UNCAPTURED;
    STREAM_OF(s, stream);
    return stream_synchronize(s, called_.name);
}
int cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    CALL(cuStreamWaitEvent);
    STREAM_OF(s, stream);
    EVENT_OF(e, event);
    if (flags > 1) return INVALID_VALUE;
    return flags ? event_outside(e, s, WAIT_OUTSIDE) : event_wait(e, s);
}
int cuStreamWriteValue32_v2(Handle stream, Address address, uint32_t value, unsigned flags) {
    CALL(cuStreamWriteValue32);
    PLACED_OF(s, stream);
    return stream_value(s, WRITE_VALUE, address, value, (int)flags, called_.name);
}
// A wait whose word other devices write asks for their other writes to be there too, where the device can do that.
static int flushing(unsigned flags, const char *who) {
    enum { FLUSH = 1 << 30 };
    if (!(flags & FLUSH) == !world.flush) return OK;
    if (world.flush) return violation("%s: remote writes are not flushed", who), OK;
    return NOT_SUPPORTED;
}
int cuStreamWaitValue32_v2(Handle stream, Address address, uint32_t value, unsigned flags) {
    CALL(cuStreamWaitValue32);
    PLACED_OF(s, stream);
    int unflushed = flushing(flags, called_.name);
    if (unflushed) return unflushed;
    return stream_value(s, WAIT_VALUE, address, value, (int)flags, called_.name);
}
typedef union {
    uint32_t kind;
    struct { uint32_t kind; Address address; uint32_t value; uint32_t unused; uint32_t flags; } word;
    uint64_t room[6];
} MemOp;
int cuStreamBatchMemOp_v2(Handle stream, unsigned count, MemOp *ops, unsigned flags) {
    CALL(cuStreamBatchMemOp);
    PLACED_OF(s, stream);
    if (flags || !count || count > 256) return INVALID_VALUE;
    for (unsigned i = 0; i < count; i++) {
        Verb verb = ops[i].kind == 1 ? WAIT_VALUE : WRITE_VALUE;
        if (ops[i].kind != 1 && ops[i].kind != 2) return INVALID_VALUE;
        int unflushed = ops[i].kind == 1 ? flushing(ops[i].word.flags, called_.name) : OK;
        if (unflushed) return unflushed;
        int code = stream_value(s, verb, ops[i].word.address, ops[i].word.value, (int)ops[i].word.flags, called_.name);
        if (code) return code;
    }
    return OK;
}
int cuEventCreate(Handle *event, unsigned flags) {
    CALL(cuEventCreate);
    DEVICE(d);
    Event *e = event_create(d, !(flags & 2));
    return *event = e->handle = handle_of(EVENT, e), OK;
}
int cuEventDestroy_v2(Handle event) {
    CLOSING(cuEventDestroy);
    Event *e = object_of(EVENT, event, called_.name);
    if (!e) return INVALID_HANDLE;
    int sick = e->device->sick;
    event_destroy(e);
    return CLOSED(sick);
}
int cuEventRecord(Handle event, Handle stream) {
    CALL(cuEventRecord);
    STREAM_OF(s, stream);
    EVENT_OF(e, event);
    return event_record(e, s);
}
int cuEventRecordWithFlags(Handle event, Handle stream, unsigned flags) {
    CALL(cuEventRecordWithFlags);
    STREAM_OF(s, stream);
    EVENT_OF(e, event);
    if (flags > 1) return INVALID_VALUE;
    return flags ? event_outside(e, s, RECORD_OUTSIDE) : event_record(e, s);
}
int cuEventQuery(Handle event) {
    CALL(cuEventQuery);
    EVENT_OF(e, event);
    UNCAPTURED;
    return event_query(e);
}
int cuEventSynchronize(Handle event) {
    CALL(cuEventSynchronize);
    EVENT_OF(e, event);
    return event_synchronize(e, called_.name);
}
int cuEventElapsedTime_v2(float *milliseconds, Handle start, Handle end) {
    CALL(cuEventElapsedTime);
    EVENT_OF(a, start);
    EVENT_OF(b, end);
    return event_elapsed(a, b, milliseconds);
}

// ---------------------------------------------------------------- kernels

int cuModuleLoadData(Handle *module, const void *image) {
    CALL(cuModuleLoadData);
    DEVICE(d);
    Module *m = NULL;
    int code = module_load(d, image, &m);
    if (!code) *module = m->handle;
    return code;
}
int cuModuleUnload(Handle module) {
    CLOSING(cuModuleUnload);
    Module *m = object_of(MODULE, module, called_.name);
    if (!m) return INVALID_HANDLE;
    int sick = m->device->sick;
    module_unload(m);
    return CLOSED(sick);
}
int cuModuleGetFunction(Handle *function, Handle module, const char *name) {
    CALL(cuModuleGetFunction);
    Module *m = object_of(MODULE, module, called_.name);
    if (!m) return INVALID_HANDLE;
    Function *f = NULL;
    int code = module_function(m, name, &f);
    if (!code) *function = f->handle;
    return code;
}
int cuFuncSetAttribute(Handle function, int attribute, int value) {
    CALL(cuFuncSetAttribute);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    if (attribute != 8 || value < 0 || value + f->static_smem > f->module->device->smem_block) return INVALID_VALUE;
    f->dynamic_smem = value;
    return OK;
}
int cuFuncGetAttribute(int *value, int attribute, Handle function) {
    CALL(cuFuncGetAttribute);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    switch (attribute) {
        case 0: *value = 1024; break;
        case 1: *value = f->static_smem; break;
        case 3: *value = 0; break;
        case 4: *value = 64; break;
        case 8: *value = f->dynamic_smem; break;
        default:
            violation("cuFuncGetAttribute: the stand-in does not know attribute %d", attribute);
            return INVALID_VALUE;
    }
    return OK;
}
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, Handle function, int threads, size_t smem) {
    CALL(cuOccupancyMaxActiveBlocksPerMultiprocessor);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    return *blocks = blocks_per_sm(f, threads, (int)smem), OK;
}

typedef struct { int id, pad; union { char bytes[64]; int number; unsigned dims[3]; } value; } LaunchAttribute;
typedef struct {
    unsigned grid[3], block[3], smem;
    Handle stream;
    const LaunchAttribute *attributes;
    unsigned attribute_count;
} LaunchConfig;
int cuLaunchKernelEx(const LaunchConfig *config, Handle function, void **values, void **extra) {
    CALL(cuLaunchKernelEx);
    PLACED_OF(s, config->stream);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    int cluster = 1;
    const int *priority = NULL;
    int chained = 0;
    for (unsigned i = 0; i < config->attribute_count; i++) {
        const LaunchAttribute *a = &config->attributes[i];
        if (a->id == 4) cluster = (int)a->value.dims[0];
        else if (a->id == 8) priority = &a->value.number;
        else if (a->id == 6) chained = a->value.number;  // programmatic stream serialization
        else violation("cuLaunchKernelEx: the stand-in does not know launch attribute %d", a->id);
    }
    if (extra || config->grid[1] != 1 || config->grid[2] != 1 || config->block[1] != 1 || config->block[2] != 1)
        return INVALID_VALUE;
    // it may begin before the launch before it has ended: then it must wait for that itself
    if (chained && !f->code->waits_itself) violation("%s is launched early and does not wait", f->name);
    Launch *l = NULL;
    int code = launch_new(f, s, (int)config->grid[0], (int)config->block[0], (int)config->smem, cluster, priority, values,
                          NULL, 0, &l);
    if (code) return code;
    l->early = chained && f->code->waits_itself;
    launch_noted(l, chained);
    Command *c = command_new(LAUNCH, s->device);
    c->launch = l;
    return stream_submit(s, c);
}

int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address, const uint64_t *dims,
                           const uint64_t *pitches, const uint32_t *box, const uint32_t *steps, int interleave,
                           int swizzle, int promotion, int fill) {
    CALL(cuTensorMapEncodeTiled);
    (void)promotion;
    uint64_t item = type == 7 ? 4 : 2;  // fp32; fp16 (6) and bf16 (9)
    if ((type != 6 && type != 7 && type != 9) || rank != 2 || interleave || swizzle != 3 || fill) return INVALID_VALUE;
    if (steps[0] != 1 || steps[1] != 1 || (uint64_t)address % 16 || pitches[0] % 16) return INVALID_VALUE;
    if (!dims[0] || !dims[1] || box[0] > 256 || box[1] > 256 || !box[0] || !box[1] || box[0] * item > 128)
        return INVALID_VALUE;
    if (!memory_home((Address)address, dims[0] * item)) return INVALID_VALUE;
    memset(map, 0, 128);
    *(EncodedMap *)map = (EncodedMap){TENSOR_MAP, (Address)address, dims[0], dims[1], pitches[0], box[0], box[1], (uint32_t)type};
    return OK;
}

// ---------------------------------------------------------------- graphs

enum { USE_NODE_PRIORITY = 8 };

int cuStreamBeginCapture_v2(Handle stream, int mode) {
    CALL(cuStreamBeginCapture);
    STREAM_OF(s, stream);
    return stream ? capture_begin(s, mode) : CAPTURE_UNSUPPORTED;
}
int cuStreamEndCapture(Handle stream, Handle *graph) {
    CALL(cuStreamEndCapture);
    STREAM_OF(s, stream);
    Graph *g = NULL;
    int code = capture_end(s, &g);
    *graph = code ? NULL : g->handle;
    return code;
}
int cuStreamIsCapturing(Handle stream, int *status) {
    CALL(cuStreamIsCapturing);
    STREAM_OF(s, stream);
    if (!stream && capture_implicit(s->device)) return CAPTURE_IMPLICIT;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return OK;
}
int cuStreamGetCaptureInfo(Handle stream, int *status, uint64_t *number, Handle *graph, void ***after, uint64_t **edges,
                           size_t *count) {
    static __thread void *nodes[256];
    static uint64_t plain[256];  // edges of the ordinary kind, 8 bytes each
    CALL(cuStreamGetCaptureInfo);
    STREAM_OF(s, stream);
    if (!stream && capture_implicit(s->device)) return CAPTURE_IMPLICIT;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    if (*status != 1) return OK;
    if (number) *number = s->capture->number;
    if (graph) *graph = s->capture->handle;
    for (int i = 0; i < s->count && i < 256; i++) nodes[i] = (void *)(uintptr_t)(s->nodes[i] + 1);
    if (after) *after = nodes;
    if (edges) *edges = plain;
    if (count) *count = (size_t)s->count;
    return OK;
}
int cuStreamUpdateCaptureDependencies(Handle stream, void **nodes, void *edges, size_t count, unsigned flags) {
    CALL(cuStreamUpdateCaptureDependencies);
    STREAM_OF(s, stream);
    if (edges || flags > 1) return INVALID_VALUE;
    if (!s->capture || s->capture->invalid) return CAPTURE_INVALIDATED;
    capture_nodes(s, nodes, count, flags == 1);
    return OK;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    CALL(cuThreadExchangeStreamCaptureMode);
    if (*mode < GLOBAL || *mode > RELAXED) return INVALID_VALUE;
    *mode = capture_mode(*mode);
    return OK;
}
int cuGraphAddChildGraphNode(Handle *node, Handle graph, void **after, size_t count, Handle child) {
    CALL(cuGraphAddChildGraphNode);
    Capture *c = object_of(CAPTURE, graph, called_.name);  // graphs are built by captures alone here
    Graph *g = object_of(GRAPH, child, called_.name);
    if (!c || !g) return INVALID_HANDLE;
    *node = capture_embed(c, g, after, count);
    return OK;
}
int cuGraphInstantiateWithFlags(Handle *exec, Handle graph, unsigned long long flags) {
    CALL(cuGraphInstantiate);
    Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    Exec *e = NULL;
    int code = graph_instantiate(g, flags == USE_NODE_PRIORITY, &e);
    if (!code) *exec = e->handle;
    return code;
}
int cuGraphDestroy(Handle graph) {
    CLOSING(cuGraphDestroy);
    Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    graph_destroy(g);
    return CLOSED(OK);
}
int cuGraphExecDestroy(Handle exec) {
    CLOSING(cuGraphExecDestroy);
    Exec *e = object_of(EXEC, exec, called_.name);
    if (!e) return INVALID_HANDLE;
    exec_destroy(e);
    return CLOSED(OK);
}
int cuGraphLaunch(Handle exec, Handle stream) {
    CALL(cuGraphLaunch);
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

// ---------------------------------------------------------------- how the bindings find all this

// NVRTC asks the driver for a private table, whose first word is its size in bytes: this one holds nothing more.
int cuGetExportTable(const void **table, const void *uuid) {
    static const uint64_t empty[1] = {sizeof empty};
    (void)uuid;
    return *table = empty, OK;
}

static const char *const suffixes[] = {"_v2", ""};

int cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *status) {
    char name[128];
    (void)flags;
    *found = NULL;
    if (!strcmp(symbol, "cuGraphInstantiate") && version >= 12000) symbol = "cuGraphInstantiateWithFlags";
    for (int i = 0; i < 2 && !*found; i++) {
        snprintf(name, sizeof name, "%s%s", symbol, suffixes[i]);
        Dl_info info;
        dladdr((void *)cuInit, &info);
        void *self = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
        *found = dlsym(self, name);
        dlclose(self);
    }
    if (status) *status = *found ? 0 : 1;
    return *found ? OK : NOT_FOUND;
}
int cuGetProcAddress(const char *symbol, void **found, int version, uint64_t flags) {
    return cuGetProcAddress_v2(symbol, found, version, flags, NULL);
}
