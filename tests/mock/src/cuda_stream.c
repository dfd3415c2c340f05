// The face of libcuda.so.1: streams, events, modules and launches.
#include "cuda_face.h"
#include "tensor_map.h"

#include <string.h>

// ---------------------------------------------------------------- streams and events

int cuStreamCreateWithPriority(Handle *stream, unsigned flags, int priority) {
    CALL(cuStreamCreateWithPriority);
    DEVICE(d);
    if (flags > 1) return INVALID_VALUE;
    Stream *s = stream_create(d, priority, !flags);
    return *stream = s->handle = handle_of(STREAM, s), OK;
}
int cuStreamGetPriority(Handle stream, int *priority) {
    CALL(cuStreamGetPriority);
    STREAM_OF(s, stream);
    return *priority = s->priority, OK;
}
int cuStreamGetCtx(Handle stream, Handle *context) {
    CALL(cuStreamGetCtx);
    STREAM_OF(s, stream);
    return *context = s->device->context, OK;
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
    if (attribute == 9) return value == 100 ? OK : INVALID_VALUE; // shared memory instead of L1, in percent
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
        case 4: *value = f->registers ? f->registers : 64; break;
        case 8: *value = f->dynamic_smem; break;
        default:
            violation("cuFuncGetAttribute: the stand-in does not know attribute %d", attribute);
            return INVALID_VALUE;
    }
    return OK;
}
int cuFuncLoad(Handle function) {
    CALL(cuFuncLoad);
    Function *f = object_of(FUNCTION, function, called_.name);
    if (!f) return INVALID_HANDLE;
    return f->module->device->loaded |= f->lazy, OK;
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
    *(EncodedMap *)map = (EncodedMap){TENSOR_MAP, (Address)address, dims[0], dims[1], pitches[0], box[0], box[1], (uint32_t)type, 128};
    return OK;
}
