// Streams and events: what is submitted, and what waits for what.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

Record *kept(Record *r) {
    r->refs++;
    return r;
}
void dropped(Record *r) {
    if (r && --r->refs == 0) free(r);
}

// ---------------------------------------------------------------- commands

Command *command_new(Verb verb, Device *d) {
    Command *c = calloc(1, sizeof *c);
    c->verb = verb;
    c->device = d;
    return c;
}

void command_free(Command *c) {
    if (c->record) dropped(c->record);
    if (c->launch) launch_free(c->launch);
    if (c->collective) collective_dropped(c->collective);
    free(c->staged);
    free(c->indegree);
    free(c->running);
    for (int i = 0; c->outside && i < c->exec_nodes; i++)
        if (c->outside[i]) dropped(c->outside[i]);
    free(c->outside);
    free(c);
}

typedef struct All { Stream *stream; struct All *next; } All;
static All *all;

static void append(Stream *s, Command *c) {
    c->ticket = ++world.tickets;
    if (s->tail) s->tail->next = c;
    else s->head = c;
    s->tail = c;
    if (!s->active) stepper_add(s);
}

// What comes next on `s` waits for what is on the other stream by now.
static void follow(Stream *s, Stream *other) {
    if (!other->head || other->capture) return;
    Command *record = command_new(RECORD, other->device), *wait = command_new(WAIT_EVENT, s->device);
    record->record = calloc(1, sizeof *record->record);
    record->record->refs = 1;
    wait->record = kept(record->record);
    append(other, record);
    append(s, wait);
}

int stream_submit(Stream *s, Command *c) {
    if (s->capture) return capture_add(s, c);
    Stream *null_stream = s->device->null_stream;
    if (s->blocking && null_stream) follow(s, null_stream);
    for (All *a = s == null_stream ? all : NULL; a; a = a->next)
        if (a->stream->blocking && a->stream->device == s->device) follow(s, a->stream);
    append(s, c);
    return OK;
}

// A side of a copy: 1 device memory, 0 the host's, −1 freed memory.
static int side(uint64_t address, uint64_t bytes, const char *who) {
    if (memory_home(address, bytes)) return 1;
    if (!memory_was_device(address)) return 0;
    violation("%s: %#llx is freed memory, or ends before the copy does", who, (unsigned long long)address);
    return -1;
}

static int copy_submitted(Stream *s, uint64_t dst, uint64_t src, uint64_t rows, uint64_t bytes, uint64_t dst_pitch,
                          uint64_t src_pitch, int flags, const char *who) {
    if (!rows || !bytes) return OK;
    if (rows > 1 && (dst_pitch < bytes || src_pitch < bytes)) return INVALID_VALUE;
    int to = side(dst, (rows - 1) * dst_pitch + bytes, who), from = side(src, (rows - 1) * src_pitch + bytes, who);
    if (to < 0 || from < 0) return INVALID_VALUE;
    Command *c = command_new(COPY, s->device);
    c->dst = dst, c->src = src, c->rows = rows, c->bytes = bytes, c->dst_pitch = dst_pitch, c->src_pitch = src_pitch;
    c->flags = flags;
    if (!from && !s->capture) {  // pageable memory is read before the call returns
        c->staged = malloc(rows * bytes);
        for (uint64_t r = 0; r < rows; r++) memcpy((char *)c->staged + r * bytes, (void *)(src + r * src_pitch), bytes);
    }
    return stream_submit(s, c);
}

int stream_copy(Stream *s, uint64_t dst, uint64_t src, uint64_t rows, uint64_t bytes, uint64_t dst_pitch,
                uint64_t src_pitch, const char *who) {
    return copy_submitted(s, dst, src, rows, bytes, dst_pitch, src_pitch, 0, who);
}
int stream_copy_by_engine(Stream *s, uint64_t dst, uint64_t src, uint64_t rows, uint64_t bytes, uint64_t dst_pitch,
                          uint64_t src_pitch, const char *who) {
    return copy_submitted(s, dst, src, rows, bytes, dst_pitch, src_pitch, BY_ENGINE, who);
}

int stream_fill(Stream *s, uint64_t dst, uint32_t value, int width, uint64_t count, const char *who) {
    if (!count) return OK;
    if (side(dst, count * (uint64_t)width, who) != 1 || dst % (uint64_t)width) return INVALID_VALUE;
    Command *c = command_new(FILL, s->device);
    c->dst = dst, c->value = value, c->width = width, c->bytes = count, c->rows = 1;
    return stream_submit(s, c);
}

int stream_value(Stream *s, Verb verb, uint64_t address, uint32_t value, int flags, const char *who) {
    if (address % 4 || side(address, 4, who) != 1) return INVALID_VALUE;
    if (verb == WRITE_VALUE && flags) violation("%s: what was written before may be seen after the value", who);
    Command *c = command_new(verb, s->device);
    c->dst = address, c->value = value, c->flags = flags;
    return stream_submit(s, c);
}

// ---------------------------------------------------------------- streams

static bool is_amd(const Device *d) { return !strncmp(d->arch, "gfx", 3); }

int queues_asked(const Device *d) {
    const bool amd = is_amd(d);
    const char *text = getenv(amd ? "GPU_MAX_HW_QUEUES" : "CUDA_DEVICE_MAX_CONNECTIONS");
    int most = amd ? MAX_QUEUES : 32, asked = world.queues ? world.queues : text ? atoi(text) : 0;
    if (asked < 1) asked = amd ? 4 : 8;
    return asked < most ? asked : most;
}

// A stream's hardware queue: the next one, or on AMD the one that fewest streams have.
static int queue_taken(Device *d) {
    if (!d->queues) d->queues = queues_asked(d);
    int taken = is_amd(d) ? 0 : d->streams++ % d->queues;
    for (int i = 0; is_amd(d) && i < d->queues; i++)
        if (d->loads[i] < d->loads[taken]) taken = i;
    d->loads[taken]++;
    return taken;
}

Stream *stream_create(Device *d, int priority, bool blocking) {
    Stream *s = calloc(1, sizeof *s);
    s->device = d;
    s->priority = priority;
    s->blocking = blocking;
    s->queue = queue_taken(d);
    s->rank = drawn(1u << 30) << 16 | (world.live[STREAM] & 0xFFFF);
    All *entry = malloc(sizeof *entry);
    *entry = (All){s, all};
    all = entry;
    return s;
}

void streams_shuffle(void) {
    uint64_t number = 0;
    for (All *a = all; a; a = a->next) a->stream->rank = drawn(1u << 30) << 16 | number++;
}

void streams_leave(Capture *c) {
    for (All *a = all; a; a = a->next)
        if (a->stream->capture == c) {
            a->stream->capture = NULL;
            a->stream->count = 0;
        }
}

int stream_destroy(Stream *s) {
    if (s->capture) return CAPTURE_UNSUPPORTED;
    s->device->loads[s->queue]--;
    handle_gone(s->handle);  // what is queued still runs; the memory goes with the next reset
    return OK;
}

bool stream_idle(const Stream *s) { return !s->head; }

int stream_synchronize(Stream *s, const char *who) {
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    while (!stream_idle(s) && !s->device->sick)
        if (!step()) {
            violation("%s blocks for ever", who);
            return LAUNCH_TIMEOUT;
        }
    memory_settle();
    return s->device->sick;
}

int device_synchronize(Device *d, const char *who) {
    for (All *a = all; a; a = a->next)
        if (a->stream->device == d && !a->stream->capture) {
            int code = stream_synchronize(a->stream, who);
            if (code) return code;
        }
    return OK;
}

void streams_reset(void) {
    while (all) {
        All *entry = all;
        for (Command *c = entry->stream->head; c;) {
            Command *next = c->next;
            command_free(c);
            c = next;
        }
        free(entry->stream->nodes);
        free(entry->stream);
        all = entry->next;
        free(entry);
    }
    stepper_reset();
}

// ---------------------------------------------------------------- events

Event *event_create(Device *d, bool timing) {
    Event *e = calloc(1, sizeof *e);
    e->device = d;
    e->timing = timing;
    world.timed += timing;
    return e;
}

void event_destroy(Event *e) {
    handle_gone(e->handle);
    world.timed -= e->timing;
    dropped(e->last);
    free(e->nodes);
    free(e);
}

int event_record(Event *e, Stream *s) {
    if (e->device != s->device) return INVALID_HANDLE;
    if (s->capture) {
        if (s->capture->invalid) return CAPTURE_INVALIDATED;
        e->capture = s->capture;
        e->count = s->count;
        e->nodes = realloc(e->nodes, (size_t)(s->count + 1) * sizeof *e->nodes);
        memcpy(e->nodes, s->nodes, (size_t)s->count * sizeof *e->nodes);
        return OK;
    }
    e->capture = NULL;
    dropped(e->last);
    e->last = calloc(1, sizeof *e->last);
    e->last->refs = 1;
    Command *c = command_new(RECORD, s->device);
    c->record = kept(e->last);
    return stream_submit(s, c);
}

Record *record_of(Event *e, bool fresh) {
    if (fresh || !e->last) {
        Record *made = calloc(1, sizeof *made);
        made->refs = 1;
        made->done = !fresh;
        if (!fresh) return made;
        e->capture = NULL;
        if (e->last) dropped(e->last);
        e->last = made;
    }
    return kept(e->last);
}

int event_outside(Event *e, Stream *s, Verb verb) {
    if (!s->capture) return INVALID_VALUE;
    Command *c = command_new(verb, s->device);
    c->event = e;
    return capture_add(s, c);
}

// What the event's last record stands for now; none was made: no wait.
int event_wait(Event *e, Stream *s) {
    if (e->capture) {
        if (e->capture->ended) return CAPTURED_EVENT;
        if (s->capture && s->capture != e->capture) return s->capture->invalid = true, INVALID_VALUE;
        capture_join(s, e->capture, e->nodes, e->count);
        return OK;
    }
    if (s->capture) return s->capture->invalid = true, INVALID_VALUE;  // isolation: the record is not of the capture
    if (!e->last) return OK;
    Command *c = command_new(WAIT_EVENT, s->device);
    c->record = kept(e->last);
    return stream_submit(s, c);
}

int event_query(Event *e) {
    if (e->capture) return CAPTURED_EVENT;
    if (e->device->sick) return e->device->sick;
    if (!e->last || e->last->done) return OK;
    advance((int)drawn((uint64_t)world.steps_per_query) + 1);
    if (e->device->sick) return e->device->sick;
    return e->last->done ? OK : NOT_READY;
}

int event_synchronize(Event *e, const char *who) {
    if (e->capture) return CAPTURED_EVENT;
    while (e->last && !e->last->done && !e->device->sick)
        if (!step()) {
            violation("%s blocks for ever", who);
            return LAUNCH_TIMEOUT;
        }
    return e->device->sick;
}

int event_elapsed(Event *a, Event *b, float *milliseconds) {
    if (!a->timing || !b->timing || !a->last || !b->last || a->device != b->device) return INVALID_HANDLE;
    if (a->device->sick) return a->device->sick;
    if (!a->last->done || !b->last->done) return NOT_READY;
    *milliseconds = (float)((double)b->last->time - (double)a->last->time) / 1000.0f;
    return OK;
}
