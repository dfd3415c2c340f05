// What the parts of libamdhip64.so's face share: the current device, or an end with a code.
#pragma once
#include "standin.h"

int hip_version(void);               // of the runtime: 10⁷ a major, 10⁵ a minor version
bool hip_ready(void);                // `hipInit` was called
int hip_ordinal(void);               // the current device's

#define DEVICE(d) \
    if (!hip_ready()) return NOT_INITIALIZED; \
    if (hip_ordinal() >= world.devices) return INVALID_DEVICE; \
    Device *d = &devices[hip_ordinal()]; \
    if (d->sick) return d->sick
#define ORDINAL(n) if ((n) < 0 || (n) >= world.devices) return INVALID_DEVICE; Device *d = &devices[n]
