// The face of libcuda.so.1: memory, who may touch it, copies and fills.
#include "cuda_face.h"

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
        case 1: return *(void **)data = memory_is_plain(address) ? memory_is_elsewhere(address) ? &home->queues : home->context : NULL, OK;
        case 7: return *(uint64_t *)data = memory_number(address), OK;
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
    int code = cuda_stream_of(NULL, who, &s);
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
