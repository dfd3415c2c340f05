// Modules, functions, and launches as blocks that take tile after tile.
#include "../../../ficco_rt/kernels/src/marks.h"
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const KernelCode *const kernel_lists[] = {naive_kernels, tiled_kernels, test_kernels};

static const char marked[] = "marked_";

static bool is_marked(const char *entry) { return !strncmp(entry, marked, strlen(marked)); }

const char *kernel_name(const Launch *l) { return l->function->name + (l->function->marks ? strlen(marked) : 0); }

const KernelCode *kernel_named(const char *entry) {
    if (is_marked(entry)) entry += strlen(marked);
    for (size_t i = 0; i < sizeof kernel_lists / sizeof *kernel_lists; i++)
        for (const KernelCode *k = kernel_lists[i]; k->name; k++)
            if (k->family ? !strncmp(entry, k->name, strlen(k->name)) : !strcmp(entry, k->name)) return k;
    return NULL;
}

int module_load(Device *d, const void *image, Module **made) {
    size_t size = 0;
    int code = image_check(image, d, &size);
    if (code) return code;
    Module *m = calloc(1, sizeof *m);
    m->device = d;
    m->size = size;
    m->image = malloc(size);
    memcpy(m->image, image, size);
    m->handle = handle_of(MODULE, m);
    *made = m;
    return OK;
}

int module_function(Module *m, const char *name, Function **made) {
    if (!image_has_entry(m->image, m->size, name)) return NOT_FOUND;
    for (Function *f = m->functions; f; f = f->next)
        if (!strcmp(f->name, name)) return *made = f, OK;
    const KernelCode *code = kernel_named(name);
    if (!code) {
        violation("kernel '%s' has no host function in the stand-in", name);
        return NOT_FOUND;
    }
    Function *f = calloc(1, sizeof *f);
    f->module = m;
    f->code = code;
    f->marks = is_marked(name);
    f->ticks = image_of_hip(m->image) ? 100 : 1000;
    f->static_smem = 1024;
    f->dynamic_smem = 48 << 10;
    snprintf(f->name, sizeof f->name, "%s", name);
    f->handle = handle_of(FUNCTION, f);
    f->next = m->functions;
    m->functions = f;
    return *made = f, OK;
}

// NOTE launches that were submitted hold the function: its memory stays until the process ends.
void module_unload(Module *m) {
    for (Function *f = m->functions; f; f = f->next) handle_gone(f->handle);
    handle_gone(m->handle);
    free(m->image);
    free(m);
}

int blocks_per_sm(const Function *f, int threads, int smem) {
    const Device *d = f->module->device;
    int block = smem + f->static_smem + d->smem_reserved;
    if (threads <= 0 || threads > 1024 || smem + f->static_smem > d->smem_block || block > d->smem_sm) return 0;
    int by_smem = block ? d->smem_sm / block : d->max_blocks, by_threads = 2048 / threads;
    int fitting = by_smem < by_threads ? by_smem : by_threads;
    return fitting < d->max_blocks ? fitting : d->max_blocks;
}

// ---------------------------------------------------------------- launches

enum { LITTLE = WHOLE / 16 };

bool device_has_room(const Device *d) { return d->held + LITTLE <= d->sms * WHOLE; }

static size_t parameter_bytes(const KernelCode *k) {
    size_t bytes = 0;
    for (int i = 0; k->parameters[i]; i++) bytes += ((size_t)k->parameters[i] + 7) / 8 * 8;
    return bytes;
}

int launch_new(Function *f, Stream *s, int grid, int block, int smem, int cluster, const int *priority, void **values,
               const void *packed, size_t packed_bytes, Launch **made) {
    if (f->module->device != s->device) return INVALID_HANDLE;
    if (grid < 1 || block < 1 || block > 1024) return INVALID_VALUE;
    if (smem > f->dynamic_smem) return INVALID_VALUE;
    if (cluster > 1 && grid % cluster) return INVALID_CLUSTER;
    int fitting = blocks_per_sm(f, block, smem);
    if (!fitting) return LAUNCH_RESOURCES;
    size_t bytes = parameter_bytes(f->code), own = bytes;
    bytes += f->marks ? sizeof(Mark *) : 0;
    Launch *l = calloc(1, sizeof *l);
    l->function = f, l->code = f->code, l->device = s->device;
    l->grid = grid, l->block = block, l->smem = smem, l->cluster = cluster, l->refs = 1;
    l->share = WHOLE / fitting;
    if (priority) l->has_priority = true, l->priority = *priority;
    l->arguments = calloc(1, bytes + 8);
    if (packed) memcpy(l->arguments, packed, packed_bytes < bytes ? packed_bytes : bytes);
    else {
        size_t at = 0;
        for (int i = 0; f->code->parameters[i]; i++) {
            memcpy(l->arguments + at, values[i], (size_t)f->code->parameters[i]);
            at += ((size_t)f->code->parameters[i] + 7) / 8 * 8;
        }
        if (f->marks) {
            int i = 0;
            while (f->code->parameters[i]) i++;
            memcpy(l->arguments + at, values[i], sizeof(Mark *));
        }
    }
    if (f->marks) memcpy(&l->marks, l->arguments + own, sizeof l->marks);
    *made = l;
    return OK;
}

// What launches ask for, in the order of the calls: a line each, as long as there is room.
static char noted[1 << 16];
static size_t noted_bytes;

void launch_noted(const Launch *l, bool early) {
    if (noted_bytes + sizeof l->function->name + 96 > sizeof noted) return;
    char priority[16] = "-";
    if (l->has_priority) snprintf(priority, sizeof priority, "%d", l->priority);
    noted_bytes += (size_t)sprintf(noted + noted_bytes, "%s %d %d %d %d %s %d\n", l->function->name, l->grid, l->block,
                                   l->smem, l->cluster, priority, early);
}
void launches_forgotten(void) { noted[noted_bytes = 0] = 0; }
const char *standin_launches(void) { return noted; }

Launch *launch_again(const Launch *from) {
    Launch *l = malloc(sizeof *l);
    *l = *from;
    size_t bytes = parameter_bytes(from->code);
    l->arguments = malloc(bytes + 8);
    memcpy(l->arguments, from->arguments, bytes);
    return l;
}

void launch_free(Launch *l) {
    l->device->held -= l->count * l->share;
    for (int i = 0; i < l->count; i++) free(l->running[i].ahead);
    free(l->arguments);
    free(l->running);
    free(l->state);
    free(l);
}

static bool has_room(const Launch *l) {
    return l->started < l->grid && l->device->held + l->cluster * l->share <= l->device->sms * WHOLE;
}

// A block that can go on is chosen: one that runs and whose tile is ready, or one that has not begun and finds room, with
// its cluster.
bool launch_ready(Launch *l) {
    if (!l->open) return true;
    int n = l->count + has_room(l);
    if (!n) return false;
    int first = world.tile_order == 1 ? 0 : world.tile_order == 2 ? n - 1 : (int)drawn((uint64_t)n);
    for (int i = 0; i < n; i++) {
        int at = (first + i) % n;
        if (at == l->count || l->running[at].tile == NO_TILE || l->code->ready(l, l->running[at].tile)) {
            l->chosen = at == l->count ? -1 : at;
            return true;
        }
    }
    return false;
}

// NOTE ordinary memory may stay in a GPU's caches while a kernel runs: then it never sees the flag go up.
bool launch_sees(const Launch *l, uint64_t flag, uint32_t goal) {
    if (!memory_is_fine(flag)) violation("%s waits for a flag in memory that caches keep", l->function->name);
    bool seen = (int32_t)(__atomic_load_n((uint32_t *)flag, __ATOMIC_ACQUIRE) - goal) >= 0;
    if (seen) memory_settle();
    return seen;
}

void kernel_store(const Launch *l, Type type, uint64_t to, float value) {
    uint32_t bits;
    number_store(type, &bits, value);
    memory_write(l->device, to, &bits, (uint64_t)type_bytes(type));
}

void launch_lowers(const Launch *l, uint64_t flag) {
    if (!*(uint32_t *)flag) violation("%s takes down a flag that is not up", l->function->name);
    *(uint32_t *)flag = 0;
}

// NOTE a device's clock begins anywhere
static uint64_t device_time(const Launch *l) {
    return 1763800000000000000u + 7777777u * (uint64_t)l->device->ordinal + world.now * l->function->ticks;
}

static void next_tile(Launch *l, int at) {
    free(l->running[at].ahead);
    l->running[at].ahead = NULL;
    l->running[at].tile = l->code->tile_of(l, l->running[at].block, l->running[at].round++);
    l->running[at].came = device_time(l);
    if (l->running[at].tile >= 0) {
        if (l->code->read_ahead && drawn(2)) l->code->read_ahead(l, at);
        return;
    }
    l->running[at] = l->running[--l->count];
    l->device->held -= l->share;
}

// A cluster of blocks begins; `early`: those that read nothing ahead take no tile yet.
static void begin_blocks(Launch *l, bool early) {
    for (int i = 0; i < l->cluster; i++) {
        l->device->held += l->share;
        l->running[l->count].block = l->started++;
        l->running[l->count].round = 0;
        l->running[l->count].ahead = NULL;
        l->running[l->count].tile = NO_TILE;
        if (early && !l->code->read_ahead) l->count++;
        else next_tile(l, l->count++);
    }
}


// A tile takes half a microsecond.
static int marked_run(Launch *l, int at) {
    int tile = l->running[at].tile;
    if (!l->marks) return l->code->run(l, tile);
    Mark *mark = l->marks + tile;
    if (memory_reach(l->device, (uint64_t)mark, sizeof *mark)) return ILLEGAL_ADDRESS;
    uint64_t began = device_time(l), half = l->function->ticks / 2;
    *mark = (Mark){l->running[at].came, began, began + half, began - l->running[at].came, (uint64_t)at << 32 | (uint64_t)at};
    return l->code->run(l, tile);
}

static int open_launch(Launch *l) {
    l->open = true;
    l->running = malloc((size_t)l->grid * sizeof *l->running);
    return l->code->open(l);
}

bool launch_lets(const Launch *l, bool ended) {
    return l->open && l->started == l->grid && l->code->lets && l->code->lets(l, ended);
}
bool launch_ready_early(Launch *l) { return !l->open || has_room(l); }
int launch_step_early(Launch *l) {
    if (!l->open) {
        world.early++;
        return open_launch(l);
    }
    begin_blocks(l, true);
    return OK;
}

int launch_step(Launch *l, bool *done) {
    *done = false;
    if (!l->open) {
        int code = open_launch(l);
        if (code) return code;
    } else if (l->chosen < 0) {
        begin_blocks(l, false);
    } else if (l->running[l->chosen].tile == NO_TILE) {
        next_tile(l, l->chosen);
    } else {
        int code = marked_run(l, l->chosen);
        if (code) return code;
        next_tile(l, l->chosen);
    }
    *done = l->started == l->grid && !l->count;
    return OK;
}
