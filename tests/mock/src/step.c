// The stepper: which stream's head, or which block's tile, comes next.
#include "standin.h"

#include <stdlib.h>
#include <string.h>

static Stream **active;  // streams with commands
static size_t count, room;
static Stream *latest;

void stepper_add(Stream *s) {
    if (count == room) {
        room = room ? 2 * room : 64;
        active = realloc(active, room * sizeof *active);
    }
    active[count++] = s;
    s->active = true;
}

void stepper_reset(void) {
    latest = NULL;
    count = 0;
}

static void fault(Device *d, int code) {
    if (!d->sick) d->sick = code;
}

enum { FLUSH = 1 << 30 };  // CU_STREAM_WAIT_VALUE_FLUSH

static bool value_reached(const Command *c) {
    uint32_t now = __atomic_load_n((const uint32_t *)c->dst, __ATOMIC_ACQUIRE);
    switch (c->flags & 3) {
        case 0: return (int32_t)(now - c->value) >= 0;
        case 1: return now == c->value;
        case 2: return (now & c->value) != 0;
        default: return ~(now | c->value) != 0;
    }
}

// The first time that a command is looked at: faults that are to hit it.
static void begin(Command *c) {
    c->begun = true;
    world.commands++;
    c->stopped = world.commands == world.stop_command;
    if (c->verb != COPY || c->staged || c->rows * c->bytes <= 4 || !memory_home(c->dst, 1) || !memory_home(c->src, 1)) return;
    world.copies++;
    c->corrupt = world.copies == world.corrupt_copy;
    if (world.copies == world.delay_copy) c->delay = world.delay_steps;
}

static bool is_inside(const Command *c) {
    const Device *home = memory_home(c->dst, 1);
    return home && memory_home(c->src, 1) == home;
}

bool command_ready(Command *c) {
    if (c->device->sick) return false;
    if (!c->begun) begin(c);
    if (c->stopped) return false;
    if (c->delay && --c->delay) {
        world.now++;
        return false;
    }
    switch (c->verb) {
        case WAIT_EVENT: return c->record->done;
        case WAIT_VALUE: return memory_reach(c->device, c->dst, 4) || value_reached(c);
        case LAUNCH: return launch_ready(c->launch);
        case COLLECTIVE: return collective_ready(c);
        case REPLAY: return replay_ready(c);
        case FILL: return device_has_room(c->device);
        case COPY:   // inside a device kernels copy, unless copy engines are asked for
            return c->staged || c->flags == BY_ENGINE || !is_inside(c) || device_has_room(c->device);
        default: return true;
    }
}

static int reach(const Command *c, uint64_t address, uint64_t rows, uint64_t bytes, uint64_t pitch) {
    if (!memory_was_device(address)) return OK;  // the host's own
    return memory_reach(c->device, address, (rows - 1) * pitch + bytes);
}

static int copy(Command *c) {
    int code = reach(c, c->dst, c->rows, c->bytes, c->dst_pitch);
    if (!code && !c->staged) code = reach(c, c->src, c->rows, c->bytes, c->src_pitch);
    if (code) return code;
    if (!c->staged && memory_home(c->src, 1) != c->device) memory_settle();   // a link reads behind what it has brought
    if (!memory_was_device(c->dst)) memory_settle();   // as the host does
    for (uint64_t r = 0; r < c->rows; r++) {
        const void *from = c->staged ? (char *)c->staged + r * c->bytes : (void *)(c->src + r * c->src_pitch);
        if (c->staged || c->bytes <= 4) memmove((void *)(c->dst + r * c->dst_pitch), from, c->bytes);
        else memory_write(c->device, c->dst + r * c->dst_pitch, from, c->bytes);
    }
    if (c->corrupt) memory_settle();
    if (c->corrupt)
        for (uint64_t r = 0; r < c->rows; r++)  // a line of it is lost: its bytes come out as others
            for (uint64_t b = 0; b < c->bytes; b++) ((unsigned char *)(c->dst + r * c->dst_pitch))[b] ^= 0x55;
    return OK;
}

static int fill(Command *c) {
    int code = memory_reach(c->device, c->dst, c->bytes * (uint64_t)c->width);
    if (code) return code;
    if (c->width == 1) memset((void *)c->dst, (int)c->value, c->bytes);
    else
        for (uint64_t i = 0; i < c->bytes; i++) ((uint32_t *)c->dst)[i] = c->value;
    return OK;
}

// Carry out the command, or a tile of it; true if it is through.
bool command_step(Command *c) {
    int code = OK;
    bool done = true;
    world.now++;
    switch (c->verb) {
        case COPY: code = copy(c); break;
        case FILL: code = fill(c); break;
        case LAUNCH: code = launch_step(c->launch, &done); break;
        case COLLECTIVE: code = collective_step(c, &done); break;
        case REPLAY: done = replay_step(c); break;
        case RECORD:
            memory_settle();
            c->record->done = true;
            c->record->time = world.now;
            break;
        case WRITE_VALUE:
            code = memory_reach(c->device, c->dst, 4);
            if (!code) __atomic_store_n((uint32_t *)c->dst, c->value, __ATOMIC_RELEASE);
            break;
        case WAIT_VALUE:
            code = memory_reach(c->device, c->dst, 4);
            if (c->flags & FLUSH) memory_settle();
            break;
        case WAIT_EVENT:
        case NOTHING: break;
        case RECORD_OUTSIDE:
        case WAIT_OUTSIDE: violation("an event outside of a graph, in no launch of one");
    }
    if (code) fault(c->device, code);
    return done && !code;
}

// Streams that share a hardware queue: a launch leaves it when it begins, another command when it has ended, and nothing
// begins before all that was put into the queue before it has left.
static bool kept_back(const Stream *s, const Command *c) {
    if (c->passed || s->device->loads[s->queue] < 2) return false;
    for (size_t i = 0; i < count; i++) {
        const Stream *other = active[i];
        if (other == s || other->device != s->device || other->queue != s->queue) continue;
        const Command *first = other->head;
        while (first && first->passed) first = first->next;
        if (first && first->ticket < c->ticket) return true;
    }
    return false;
}

// A step of launch `c`, which may begin early, behind launch `before`. `ended`: what stands before that one is over.
bool command_step_early(Command *before, bool ended, Command *c) {
    if (before->verb != LAUNCH || c->verb != LAUNCH || !c->launch->early || !launch_lets(before->launch, ended)) return false;
    if (!c->begun) begin(c);
    if (c->stopped || c->delay || !launch_ready_early(c->launch)) return false;
    world.now++;
    int code = launch_step_early(c->launch);
    if (code) fault(c->device, code);
    return true;
}

// Of the stream's launches behind its first command, each lets the next one begin.
static bool try_early(Stream *s) {
    for (Command *before = s->head; before->next && before->verb == LAUNCH; before = before->next) {
        Command *c = before->next;
        if (kept_back(s, c)) return false;
        if (!drawn(2) && command_step_early(before, before == s->head, c)) return c->passed = true;
        if (!c->passed) return false;
    }
    return false;
}

static bool try(size_t index) {
    Stream *s = active[index];
    Command *c = s->head;
    if (s->device->sick || kept_back(s, c)) return false;
    if (c->passed && c->next && try_early(s)) return true;
    if (!command_ready(c)) return c->delay > 0;
    c->passed = true;
    if (!command_step(c)) return true;
    s->head = c->next;
    s->done++;
    command_free(c);
    if (!s->head) {
        s->tail = NULL;
        s->active = false;
        active[index] = active[--count];
    }
    latest = s;
    return true;
}

bool step(void) {
    if (!count) return false;
    memory_drift();
    if (world.order == 2 && latest && latest->active && drawn(8))
        for (size_t i = 0; i < count; i++)
            if (active[i] == latest) {
                if (try(i)) return true;
                break;
            }
    if (world.order == 1) {  // the lowest rank that can
        uint64_t floor = 0;
        for (;;) {
            size_t best = count;
            for (size_t i = 0; i < count; i++)
                if (active[i]->rank >= floor && (best == count || active[i]->rank < active[best]->rank)) best = i;
            if (best == count) return false;
            floor = active[best]->rank + 1;
            if (try(best)) return true;
        }
    }
    size_t first = drawn(count);
    for (size_t i = 0; i < count; i++)
        if (try((first + i) % count)) return true;
    return false;
}

void advance(int steps) {
    while (steps-- > 0 && step()) {}
}
