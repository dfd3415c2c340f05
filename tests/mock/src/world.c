// Settings, faults, counts, handles: what a test sets and asks. The text that sets it is described in standin.py.
#include "standin.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

World world;
Device devices[MAX_DEVICES];
const char *const kind_names[KINDS] = {"contexts", "streams", "events",  "allocations",
                                       "modules",  "functions", "graphs", "execs", "captures",
                                       "communicators", "libraries", "descriptors", "physicals", "mappings", "opened"};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static Called *all_called;
static bool forked;                         // since the last reset: a child may not use the devices of its parent
static long fail_any;                       // the call, of all, that fails
static int fail_any_code;
static char fired[128];                     // the call that a fault has hit
static uint64_t randomness = 1;
static struct { char name[64]; long at; int code; } later[32];   // faults of functions that nobody has called yet
static int later_count;

uint64_t drawn(uint64_t below) {
    randomness ^= randomness >> 12;
    randomness ^= randomness << 25;
    randomness ^= randomness >> 27;
    return below > 1 ? (randomness * 0x2545F4914F6CDD1Dull >> 16) % below : 0;
}

static void seed(uint64_t value) {
    randomness = value * 0x9E3779B97F4A7C15ull + 0x5851F42D4C957F2Dull;
    if (!randomness) randomness = 1;
    for (int i = 0; i < 8; i++) drawn(2);
    world.order = (int)(value % 3);
    world.tile_order = (int)(value / 3 % 3);
    streams_shuffle();
}

void violation(const char *format, ...) {
    va_list list;
    world.violated++;
    size_t used = strlen(world.violations);
    if (used + 300 > sizeof world.violations) return;
    va_start(list, format);
    used += (size_t)vsnprintf(world.violations + used, 256, format, list);
    va_end(list);
    strcat(world.violations, "\n");
}

// ---------------------------------------------------------------- calls

static void plan_failure(Called *function, const char *name, long at, int code) {
    if (strcmp(function->name, name)) return;
    function->fail_at = function->count + at;
    function->code = code;
}

Call enter(Called *function) {
    pthread_mutex_lock(&lock);
    if (!function->known) {
        function->known = true;
        function->next = all_called;
        all_called = function;
        for (int i = 0; i < later_count; i++) plan_failure(function, later[i].name, later[i].at, later[i].code);
    }
    Call call = {OK};
    function->count++;
    world.calls++;
    if (function->fail_at && function->count == function->fail_at) call.code = function->code;
    if (fail_any && world.calls == fail_any) call.code = fail_any_code;
    if (world.lose_call && world.calls >= world.lose_call) call.code = world.lose_code;
    if (world.interrupt_call && world.calls == world.interrupt_call) {
        snprintf(fired, sizeof fired, "%s", function->name);
        raise(SIGINT);
    }
    if (world.kill_call && world.calls == world.kill_call) raise(SIGKILL);
    if (world.pause_call && world.calls == world.pause_call) raise(SIGSTOP);
    if (forked) call.code = NOT_INITIALIZED;
    if (call.code && !fired[0]) snprintf(fired, sizeof fired, "%s", function->name);
    if (!call.code && world.steps_per_call) advance((int)drawn((uint64_t)world.steps_per_call + 1));
    return call;
}

void leave(Call *call) {
    (void)call;
    pthread_mutex_unlock(&lock);
}

void breathe(void) {
    pthread_mutex_unlock(&lock);
    usleep(500);
    pthread_mutex_lock(&lock);
}

// ---------------------------------------------------------------- handles: numbers that are never used again

enum { HANDLE_BASE = 0x5C000000, HANDLE_STEP = 16 };
typedef struct { Kind kind; bool live; void *object; } Slot;
static Slot *slots;
static size_t slot_count, slot_room, first_slot;

void *handle_of(Kind kind, void *object) {
    if (slot_count == slot_room) {
        slot_room = slot_room ? 2 * slot_room : 1024;
        slots = realloc(slots, slot_room * sizeof *slots);
    }
    slots[slot_count] = (Slot){kind, true, object};
    world.live[kind]++;
    return (void *)(HANDLE_BASE + HANDLE_STEP * (first_slot + slot_count++));
}

static Slot *slot_of(const void *handle) {
    uintptr_t at = (uintptr_t)handle;
    if (at < HANDLE_BASE || (at - HANDLE_BASE) % HANDLE_STEP) return NULL;
    at = (at - HANDLE_BASE) / HANDLE_STEP;
    return at >= first_slot && at - first_slot < slot_count ? &slots[at - first_slot] : NULL;
}

void *object_of(Kind kind, const void *handle, const char *who) {
    Slot *slot = slot_of(handle);
    if (slot && slot->live && slot->kind == kind) return slot->object;
    violation("%s: %p is %s, no live one of the %s", who, handle,
              !slot ? "no handle of ours" : slot->live ? "another kind's handle" : "destroyed", kind_names[kind]);
    return NULL;
}

void handle_gone(const void *handle) {
    Slot *slot = slot_of(handle);
    slot->live = false;
    world.live[slot->kind]--;
}

void handles_reset(void) {
    first_slot += slot_count;  // old handles stay strange
    slot_count = 0;
}

// ---------------------------------------------------------------- control

static void set_arch(Device *d, const char *arch) {
    snprintf(d->arch, sizeof d->arch, "%s", arch);
    int number = 0;
    if (sscanf(arch, "sm_%d", &number) == 1) {
        d->major = number / 10;
        d->minor = number % 10;
    } else if (sscanf(arch, "gfx%x", &number) == 1) {  // gfx90a: 9.0, stepping a
        d->major = number >> 8;
        d->minor = number >> 4 & 15;
    }
}

static void fresh_devices(void) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        Device *d = &devices[i];
        memset(d, 0, sizeof *d);
        d->ordinal = i;
        snprintf(d->name, sizeof d->name, "stand-in");
        set_arch(d, "sm_75");
        d->sms = 16;
        d->smem_sm = 228 << 10;
        d->smem_block = 227 << 10;
        d->smem_reserved = 1 << 10;
        d->max_blocks = 32;
        d->wavefront = 64;
        d->clock_khz = 1500000;
        d->memory_clock_khz = 2000000;
        d->bus_bits = 4096;
        d->memory = 1ull << 34;
        for (int j = 0; j < MAX_DEVICES; j++) d->links[j] = 1;
    }
}

static void set(char *line) {
    char key[32], text[64];
    long a = 0, b = 0, c = 0;
    if (sscanf(line, "%31s", key) != 1) return;
    int n = sscanf(line, "%*s %ld %ld %ld", &a, &b, &c);
    if (!strcmp(key, "devices")) world.devices = (int)a;
    else if (!strcmp(key, "init")) world.init_code = (int)a;
    else if (!strcmp(key, "seed")) seed((uint64_t)a);
    else if (!strcmp(key, "order")) world.order = (int)a;
    else if (!strcmp(key, "query_steps")) world.steps_per_query = (int)a;
    else if (!strcmp(key, "call_steps")) world.steps_per_call = (int)a;
    else if (!strcmp(key, "corrupt")) world.corrupt_copy = world.copies + a;
    else if (!strcmp(key, "delay")) world.delay_copy = world.copies + a, world.delay_steps = b;
    else if (!strcmp(key, "stop")) world.stop_command = world.commands + a;
    else if (!strcmp(key, "lose")) world.lose_call = world.calls + a, world.lose_code = (int)b;
    else if (!strcmp(key, "interrupt")) world.interrupt_call = world.calls + a;
    else if (!strcmp(key, "kill")) world.kill_call = world.calls + a;
    else if (!strcmp(key, "pause")) world.pause_call = world.calls + a;
    else if (!strcmp(key, "gemm")) world.gemm[0][0] = (int)a, world.gemm[0][1] = (int)b;
    else if (!strcmp(key, "other_gemm")) world.gemm[1][0] = (int)a, world.gemm[1][1] = (int)b;
    else if (!strcmp(key, "copies_lost")) world.copies_lost = (int)a;
    else if (!strcmp(key, "version")) world.version = (int)a;
    else if (!strcmp(key, "queues")) world.queues = (int)a;
    else if (!strcmp(key, "nccl")) world.nccl = (int)a;
    else if (!strcmp(key, "apart")) world.apart = a;
    else if (!strcmp(key, "lose_collective"))
        world.lose_collective = world.collectives + a, world.lose_collective_code = (int)b;
    else if (!strcmp(key, "uuid")) world.uuid = (int)a;
    else if (!strcmp(key, "shared")) world.shared = a != 0;
    else if (!strcmp(key, "way")) world.way = (int)a;
    else if (!strcmp(key, "fabric")) world.fabric = (int)a;
    else if (!strcmp(key, "reuse")) world.reuse = (int)a;
    else if (!strcmp(key, "exclusive")) world.exclusive = (int)a;
    else if (!strcmp(key, "flush")) world.flush = a != 0;
    else if (!strcmp(key, "link")) devices[a].links[b] = devices[b].links[a] = c;
    else if (!strcmp(key, "name") && sscanf(line, "%*s %63[^\n;]", text) == 1)
        for (int i = 0; i < MAX_DEVICES; i++) snprintf(devices[i].name, sizeof devices[i].name, "%s", text);
    else if (!strcmp(key, "arch") && sscanf(line, "%*s %63s", text) == 1)
        for (int i = 0; i < MAX_DEVICES; i++) set_arch(&devices[i], text);
    else if (!strcmp(key, "memory"))
        for (int i = 0; i < MAX_DEVICES; i++) devices[i].memory = (uint64_t)a;
    else if (!strcmp(key, "sms"))
        for (int i = 0; i < MAX_DEVICES; i++) devices[i].sms = (int)a;
    else if (!strcmp(key, "wavefront"))
        for (int i = 0; i < MAX_DEVICES; i++) devices[i].wavefront = (int)a;
    else if (!strcmp(key, "smem"))
        for (int i = 0; i < MAX_DEVICES; i++)
            devices[i].smem_block = (int)a, devices[i].smem_sm = (int)b, devices[i].smem_reserved = (int)c;
    else if (!strcmp(key, "fail") && sscanf(line, "%*s %63s %ld %ld", text, &a, &b) == 3) {
        if (!strcmp(text, "*")) {
            fail_any = world.calls + a;
            fail_any_code = (int)b;
            return;
        }
        for (Called *f = all_called; f; f = f->next)
            if (!strcmp(f->name, text)) {
                plan_failure(f, text, a, (int)b);
                return;
            }
        if (later_count < 32) {
            snprintf(later[later_count].name, sizeof later[0].name, "%s", text);
            later[later_count].at = a;
            later[later_count++].code = (int)b;
        }
    } else violation("no setting '%s' of %d numbers", line, n - 1);
}

// Settings, parted by ';' or line ends.
void standin_set(const char *text) {
    pthread_mutex_lock(&lock);
    char *copy = strdup(text), *rest = copy;
    for (char *line; (line = strsep(&rest, ";\n"));) set(line);
    free(copy);
    pthread_mutex_unlock(&lock);
}

static void reset(void) {
    cuda_reset();
    hip_reset();
    streams_reset();
    captures_reset();
    collectives_reset();
    launches_forgotten();
    memory_reset();
    handles_reset();
    memset(&world, 0, sizeof world);
    world.devices = 8;
    world.steps_per_query = 64;
    world.version = 13000;
    world.way = 1;
    fail_any = 0;
    forked = false;
    fired[0] = 0;
    later_count = 0;
    for (Called *f = all_called; f; f = f->next) f->count = f->fail_at = 0;
    fresh_devices();
    seed(0);
}

// As freshly loaded; every handle from before is strange from now on.
void standin_reset(void) {
    pthread_mutex_lock(&lock);
    reset();
    pthread_mutex_unlock(&lock);
}

// No fault is left to come; the counts of calls begin anew.
void standin_calm(void) {
    pthread_mutex_lock(&lock);
    for (Called *f = all_called; f; f = f->next) f->count = f->fail_at = 0;
    world.calls = world.copies = world.commands = world.collectives = world.lose_collective = 0;
    world.corrupt_copy = world.delay_copy = world.stop_command = world.lose_call = world.interrupt_call = world.kill_call = world.pause_call =
        fail_any = 0;
    fired[0] = 0;
    later_count = 0;
    launches_forgotten();
    pthread_mutex_unlock(&lock);
}

// Counts of live objects, by kind; kernels' handles live and go with their modules.
void standin_live(long *counts) { memcpy(counts, world.live, sizeof world.live); }
const char *standin_violations(void) { return world.violations; }
const char *standin_fired(void) { return fired; }
long standin_early(void) { return world.early; }
long standin_timed(void) { return world.timed; }
long standin_calls(void) { return world.calls; }
long standin_commands(void) { return world.commands; }
long standin_copies(void) { return world.copies; }

// "name count" lines of all functions called since the last reset.
void standin_called(char *text, size_t room) {
    size_t used = 0;
    text[0] = 0;
    for (Called *f = all_called; f && used + 100 < room; f = f->next)
        if (f->count) used += (size_t)sprintf(text + used, "%s %ld\n", f->name, f->count);
}

static void in_child(void) {
    pthread_mutex_init(&lock, NULL);   // another thread of the parent may have held it
    forked = true;
}

__attribute__((constructor)) static void load(void) {
    pthread_atfork(NULL, NULL, in_child);
    const char *text = getenv("STANDIN");
    reset();
    if (text) standin_set(text);
}

__attribute__((destructor)) static void unload(void) {
    const char *path = getenv("STANDIN_REPORT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (!file) return;
    for (int k = 0; k < KINDS; k++) fprintf(file, "%s %ld\n", kind_names[k], world.live[k]);
    fprintf(file, "violations %ld\n%s", world.violated, world.violations);
    fclose(file);
}
