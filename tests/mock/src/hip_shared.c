// The face of libamdhip64.so: memory of several processes.
#include <string.h>

#include "hip_face.h"

enum { PINNED = 1, UNCACHED = 0x40000000, STEP = 2 << 20, BUFFER_ID = 7, LAZY = 1 };
enum { WITH_UNCACHED = 70000000, BY_VALUE = 70100000 };   // versions of the runtime
typedef struct { int type, kind, where, ordinal; } Wanted;   // hipMemAllocationProp's first members

static Physical *physical_named(void *handle, const char *who) { return object_of(PHYSICAL, handle, who); }

int hipMemGetAllocationGranularity(size_t *bytes, const Wanted *wanted, int option) {
    CALL(hipMemGetAllocationGranularity);
    ORDINAL(wanted->ordinal);
    (void)d, (void)option;
    return *bytes = STEP, OK;
}
// NOTE the memory is the current device's, whatever device is asked for.
int hipMemCreate(void **handle, size_t bytes, const Wanted *wanted, unsigned long long flags) {
    CALL(hipMemCreate);
    DEVICE(d);
    int spoiled = capture_spoiled();
    if (spoiled) return spoiled;
    bool fine = wanted->type == UNCACHED && hip_version() >= WITH_UNCACHED;
    if (!bytes || bytes % STEP || flags || (wanted->type != PINNED && !fine) || wanted->where != 1) return INVALID_VALUE;
    if (wanted->ordinal != d->ordinal) violation("hipMemCreate: device %d is wanted, and %d is current", wanted->ordinal, d->ordinal);
    if (wanted->kind != DESCRIPTOR_KIND || !world.way) return NOT_SUPPORTED;
    if (bytes > d->memory - d->used) return OUT_OF_MEMORY;
    Physical *p = physical_create(d, bytes, fine, wanted->kind);
    return p ? *handle = p->handle, OK : OUT_OF_MEMORY;
}
int hipMemRelease(void *handle) {
    CLOSING(hipMemRelease);
    Physical *p = physical_named(handle, called_.name);
    if (!p) return INVALID_VALUE;
    physical_release(p);
    return CLOSED(OK);
}
int hipMemAddressReserve(uint64_t *address, size_t bytes, size_t alignment, uint64_t at, unsigned long long flags) {
    CALL(hipMemAddressReserve);
    if (!bytes || bytes % STEP || alignment || at || flags) return INVALID_VALUE;
    return shared_reserve(bytes, address);
}
int hipMemAddressFree(uint64_t address, size_t bytes) {
    CLOSING(hipMemAddressFree);
    int code = shared_unreserve(address, bytes);
    return CLOSED(code);
}
int hipMemMap(uint64_t address, size_t bytes, size_t offset, void *handle, unsigned long long flags) {
    CALL(hipMemMap);
    Physical *p = physical_named(handle, called_.name);
    if (!p) return INVALID_VALUE;
    return offset || flags ? INVALID_VALUE : physical_map(p, address, bytes);
}
// As old runtimes: piece by piece, each as it was mapped.
int hipMemUnmap(uint64_t address, size_t bytes) {
    CLOSING(hipMemUnmap);
    uint64_t base = 0, size = 0;
    if (!memory_place(address, &base, &size) || base != address || size != bytes) {
        violation("hipMemUnmap: no mapping of %llu bytes at %#llx", (unsigned long long)bytes, (unsigned long long)address);
        return INVALID_VALUE;
    }
    int code = shared_unmap(address, bytes);
    return CLOSED(code);
}
int hipMemExportToShareableHandle(int *out, void *handle, int kind, unsigned long long flags) {
    CALL(hipMemExportToShareableHandle);
    Physical *p = physical_named(handle, called_.name);
    if (!p || kind != DESCRIPTOR_KIND || flags) return INVALID_VALUE;
    int file = physical_file(p);
    return file < 0 ? UNKNOWN : (*out = file, OK);
}
int hipMemImportFromShareableHandle(void **handle, const void *given, int kind) {
    CALL(hipMemImportFromShareableHandle);
    DEVICE(d);
    (void)d;
    if (kind != DESCRIPTOR_KIND || !given) return INVALID_VALUE;
    Physical *p = physical_import(hip_version() >= BY_VALUE ? (int)(intptr_t)given : *(const int *)given);
    return p ? *handle = p->handle, OK : INVALID_VALUE;
}
int hipMemGetAddressRange(uint64_t *base, size_t *bytes, uint64_t address) {
    CALL(hipMemGetAddressRange);
    return memory_place(address, base, bytes) ? OK : NOT_FOUND;
}
int hipPointerGetAttribute(void *data, int attribute, uint64_t address) {
    CALL(hipPointerGetAttribute);
    if (attribute != BUFFER_ID || !memory_number(address)) return INVALID_VALUE;
    return *(unsigned *)data = (unsigned)memory_number(address), OK;
}
int hipIpcGetMemHandle(void *handle, uint64_t address) {
    CALL(hipIpcGetMemHandle);
    return shared_handle(address, handle);
}
typedef struct { char bytes[64]; } IpcHandle;
int hipIpcOpenMemHandle(uint64_t *address, IpcHandle handle, unsigned flags) {
    CALL(hipIpcOpenMemHandle);
    DEVICE(d);
    (void)d;
    return flags == LAZY ? shared_open(&handle, address) : INVALID_VALUE;
}
int hipIpcCloseMemHandle(uint64_t address) {
    CLOSING(hipIpcCloseMemHandle);
    int code = shared_close(address);
    return CLOSED(code);
}
