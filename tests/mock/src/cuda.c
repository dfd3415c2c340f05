// The face of libcuda.so.1: what cuda.bindings.driver asks for, by name, through cuGetProcAddress. Here: devices and
// contexts, and how the bindings find all calls. Memory, streams and graphs have files of their own.
#define _GNU_SOURCE
#include "cuda_face.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static __thread Handle stack[64];    // contexts, the current one last
static __thread int depth;
static bool initialised;

void cuda_reset(void) { depth = 0; }
int standin_pushed(void) { return depth; }

static Device *device_of(Handle context, const char *who) { return context ? object_of(CONTEXT, context, who) : NULL; }

int cuda_current(const char *who, Device **d) {
    if (!initialised) return NOT_INITIALIZED;
    if (!depth || !stack[depth - 1]) return INVALID_CONTEXT;
    *d = device_of(stack[depth - 1], who);
    return *d ? (*d)->sick : INVALID_CONTEXT;
}
Device *cuda_here(void) { return depth ? device_of(stack[depth - 1], "a library of GEMMs") : NULL; }
int cuda_stream_of(Handle handle, const char *who, Stream **s) {
    if (!handle) {
        Device *d = NULL;
        int code = cuda_current(who, &d);
        if (code) return code;
        if (!d->null_stream) d->null_stream = stream_create(d, 0, false);
        *s = d->null_stream;
        return OK;
    }
    if (handle == (Handle)2) {   // the calling thread's default stream, of its current context
        static __thread Stream *own[MAX_DEVICES];   // NOTE no such thread outlives a reset
        Device *d = NULL;
        int code = cuda_current(who, &d);
        if (code) return code;
        if (!own[d->ordinal]) own[d->ordinal] = stream_create(d, 0, false);
        return *s = own[d->ordinal], OK;
    }
    *s = object_of(STREAM, handle, who);
    return *s ? (*s)->device->sick : INVALID_HANDLE;
}
int cuda_working(Stream *s, const char *who) {
    if (depth && device_of(stack[depth - 1], who) == s->device) return OK;
    violation("%s: the stream's context is not the current one", who);
    return INVALID_CONTEXT;
}
int cuda_event_of(Handle handle, const char *who, Event **e) {
    *e = object_of(EVENT, handle, who);
    return *e ? (*e)->device->sick : INVALID_HANDLE;
}

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
        case 20: *value = world.exclusive ? 3 : 0; break;   // one process alone may use the device
        case 36: *value = d->memory_clock_khz; break;
        case 37: *value = d->bus_bits; break;
        case 39: *value = 2048; break;  // threads of a multiprocessor
        case 75: *value = d->major; break;
        case 76: *value = d->minor; break;
        case 81: *value = d->smem_sm; break;
        case 97: *value = d->smem_block; break;
        case 98: *value = world.flush; break;  // remote writes
        case 102: *value = 1; break;           // mappings of memory to addresses
        case 103: *value = world.way; break;   // and their descriptors
        case 106: *value = d->max_blocks; break;
        case 111: *value = d->smem_reserved; break;
        case 128: *value = world.fabric != 0; break;   // fabric handles, whether or not a channel is open
        default:
            violation("cuDeviceGetAttribute: the stand-in does not know attribute %d", attribute);
            return INVALID_VALUE;
    }
    return OK;
}
int cuDeviceGetUuid_v2(unsigned char *uuid, int device) {
    CALL(cuDeviceGetUuid);
    ORDINAL(device);
    memset(uuid, 0x5C, 16);
    return uuid[0] = (unsigned char)(world.uuid + d->ordinal), OK;
}
int cuCtxGetDevice(int *device) {
    CALL(cuCtxGetDevice);
    DEVICE(d);
    return *device = d->ordinal, OK;
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
