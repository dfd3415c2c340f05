// What the parts of libcuda.so.1's face share: how a call finds the object behind a handle, or ends with a code.
#pragma once
#include "standin.h"

typedef uint64_t Address;
typedef void *Handle;

int cuda_current(const char *who, Device **d);                     // the current context's device
int cuda_stream_of(Handle handle, const char *who, Stream **s);    // NULL is the null stream of the current device
int cuda_working(Stream *s, const char *who);                      // the stream's context must be the current one
int cuda_event_of(Handle handle, const char *who, Event **e);

#define DEVICE(d) Device *d = NULL; { int bad_ = cuda_current(called_.name, &d); if (bad_) return bad_; }
#define STREAM_OF(s, handle) Stream *s = NULL; { int bad_ = cuda_stream_of(handle, called_.name, &s); if (bad_) return bad_; }
// NOTE records, waits and launches of graphs need no current context: their handles know their device.
#define WORK_OF(s, handle) STREAM_OF(s, handle); { int bad_ = cuda_working(s, called_.name); if (bad_) return bad_; }
// Work that names its stream needs no current context of that stream, unless the stream is being captured.
#define PLACED_OF(s, handle) STREAM_OF(s, handle); if (s->capture) { int bad_ = cuda_working(s, called_.name); if (bad_) return bad_; }
#define EVENT_OF(e, handle) Event *e = NULL; { int bad_ = cuda_event_of(handle, called_.name, &e); if (bad_) return bad_; }
#define UNCAPTURED { int bad_ = capture_spoiled(); if (bad_) return bad_; }   // a call that is forbidden during a capture
#define ORDINAL(n) if ((n) < 0 || (n) >= world.devices) return INVALID_DEVICE; Device *d = &devices[n]
