// The face of libcuda.so.1: memory of several processes.
#include <string.h>

#include "cuda_face.h"

enum { STEP = 2 << 20 };   // the granularity
typedef struct {
    int type, kinds, where, ordinal;   // CUmemAllocationProp's first members: `where` is 1 for a device
} Wanted;

static Physical *physical_named(uint64_t handle, const char *who) { return object_of(PHYSICAL, (void *)handle, who); }

int cuMemGetAllocationGranularity(size_t *bytes, const Wanted *wanted, int option) {
    CALL(cuMemGetAllocationGranularity);
    ORDINAL(wanted->ordinal);
    (void)d, (void)option;
    return *bytes = STEP, OK;
}
int cuMemCreate(uint64_t *handle, size_t bytes, const Wanted *wanted, unsigned long long flags) {
    CALL(cuMemCreate);
    UNCAPTURED;
    ORDINAL(wanted->ordinal);
    if (!bytes || bytes % STEP || flags || wanted->type != 1 || wanted->where != 1) return INVALID_VALUE;
    if (!wanted->kinds || wanted->kinds & ~(DESCRIPTOR_KIND | FABRIC_KIND)) return NOT_SUPPORTED;
    if (wanted->kinds & DESCRIPTOR_KIND && !world.way) return NOT_SUPPORTED;
    if (wanted->kinds & FABRIC_KIND && world.fabric <= 0) return world.fabric ? NOT_PERMITTED : NOT_SUPPORTED;
    if (bytes > d->memory - d->used) return OUT_OF_MEMORY;
    Physical *p = physical_create(d, bytes, true, wanted->kinds);
    return p ? *handle = (uint64_t)p->handle, OK : OUT_OF_MEMORY;
}
int cuMemRelease(uint64_t handle) {
    CLOSING(cuMemRelease);
    Physical *p = physical_named(handle, called_.name);
    if (!p) return INVALID_HANDLE;
    physical_release(p);
    return CLOSED(OK);
}
int cuMemAddressReserve(Address *address, size_t bytes, size_t alignment, Address at, unsigned long long flags) {
    CALL(cuMemAddressReserve);
    if (!bytes || bytes % STEP || alignment || at || flags) return INVALID_VALUE;
    return shared_reserve(bytes, address);
}
int cuMemAddressFree(Address address, size_t bytes) {
    CLOSING(cuMemAddressFree);
    int code = shared_unreserve(address, bytes);
    return CLOSED(code);
}
int cuMemMap(Address address, size_t bytes, size_t offset, uint64_t handle, unsigned long long flags) {
    CALL(cuMemMap);
    Physical *p = physical_named(handle, called_.name);
    if (!p) return INVALID_HANDLE;
    return offset || flags ? INVALID_VALUE : physical_map(p, address, bytes);
}
// NOTE it waits for nothing: who unmaps what commands still touch finds them at an address that is gone.
int cuMemUnmap(Address address, size_t bytes) {
    CLOSING(cuMemUnmap);
    int code = shared_unmap(address, bytes);
    return CLOSED(code);
}
int cuMemExportToShareableHandle(void *out, uint64_t handle, int kind, unsigned long long flags) {
    CALL(cuMemExportToShareableHandle);
    Physical *p = physical_named(handle, called_.name);
    if (!p) return INVALID_HANDLE;
    if ((kind != DESCRIPTOR_KIND && kind != FABRIC_KIND) || !(kind & p->kinds) || flags) return INVALID_VALUE;
    if (kind == FABRIC_KIND) return fabric_export(p, out), OK;
    int file = physical_file(p);
    return file < 0 ? UNKNOWN : (*(int *)out = file, OK);
}
int cuMemImportFromShareableHandle(uint64_t *handle, void *given, int kind) {
    CALL(cuMemImportFromShareableHandle);
    Physical *p = kind == DESCRIPTOR_KIND ? physical_import((int)(intptr_t)given) : NULL;
    int code = kind == FABRIC_KIND ? fabric_import(given, &p) : OK;
    if (code) return code;
    return p ? *handle = (uint64_t)p->handle, OK : INVALID_VALUE;
}
int cuMemRetainAllocationHandle(uint64_t *handle, void *address) {
    CALL(cuMemRetainAllocationHandle);
    Physical *p = memory_physical((Address)address);
    if (!p) return INVALID_VALUE;
    Physical *again = physical_again(p);
    return again ? *handle = (uint64_t)again->handle, OK : UNKNOWN;
}
int cuMemGetAddressRange_v2(Address *base, size_t *bytes, Address address) {
    CALL(cuMemGetAddressRange);
    uint64_t begin = 0, size = 0;
    if (!memory_place(address, &begin, &size)) return INVALID_VALUE;
    return *base = begin, *bytes = size, OK;
}
int cuIpcGetMemHandle(void *handle, Address address) {
    CALL(cuIpcGetMemHandle);
    return shared_handle(address, handle);
}
typedef struct { char bytes[64]; } IpcHandle;
int cuIpcOpenMemHandle_v2(Address *address, IpcHandle handle, unsigned flags) {
    CALL(cuIpcOpenMemHandle);
    DEVICE(d);
    (void)d;
    return flags == 1 ? shared_open(&handle, address) : INVALID_VALUE;
}
int cuIpcCloseMemHandle(Address address) {
    CLOSING(cuIpcCloseMemHandle);
    int code = shared_close(address);
    return CLOSED(code);
}
