// The face of libnccl.so.2 and librccl.so.1: communicators, and collectives as commands of streams. A rank's command
// begins when its stream comes to it and ends when those of all ranks have begun; then all of them have their data.
// Communicators that do not block are in progress after a group has ended: for a few polls, by seed, and as long as ranks
// are missing. What was called is given to the streams by the last of these polls.
// The two libraries are empty themselves: they need the driver's library, and who looks for a name in them finds it here.
#include "cuda_face.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SUCCESS = 0, UNHANDLED_CUDA_ERROR = 1, INTERNAL_ERROR = 3, INVALID_ARGUMENT = 4, INVALID_USAGE = 5, REMOTE_ERROR = 6,
       IN_PROGRESS = 7 };
enum { MAX_RANKS = MAX_DEVICES, HANGS = 4000 };   // looks until a call that blocks is said to block for ever
typedef enum { ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, SEND_RECV } CollectiveKind;

typedef struct Meeting {             // one collective of a clique
    CollectiveKind kind;
    uint64_t count;
    int type, arrived, refs;
    bool done, lost;
    Collective *members[MAX_RANKS];
    struct Meeting *next;
    uint64_t number;
} Meeting;
typedef struct { uint64_t address, bytes; int peer; bool receives; } Message;
typedef struct { Stream *stream; Collective *call; } Grouped;
struct Comm {
    void *handle;
    Clique *clique;
    Device *device;
    int rank;
    uint64_t begun;
    bool aborted, used;              // used: by a thread that has begun a group, or whose call is in progress
    pthread_t user;
};
struct Clique {
    Apart *apart;                    // its ranks are in several processes
    uint64_t id;
    int ranks, joined, left, calls, ctas, error;
    bool blocking, opening, pending; // pending: in progress
    int polls;                       // until that is over
    Grouped *grouped;                // what is given to streams then
    int grouped_count;
    Comm *comms[MAX_RANKS];
    Meeting *meetings;
    Clique *next;
};
struct Collective {                  // a rank's part
    Comm *comm;
    CollectiveKind kind;
    uint64_t dst, src, count;
    int type, refs;
    Message *messages;
    int message_count;
};
typedef struct { char internal[128]; } UniqueId;
typedef struct { size_t size; unsigned magic, version; int blocking, cluster, min_ctas, max_ctas; } Config;

static Clique *cliques;
static uint64_t ids;
static __thread int depth;
static __thread Grouped grouped[4 * MAX_RANKS];
static __thread struct { Clique *clique; bool lost; } leaving[MAX_RANKS];   // what the group's end gives back
static struct { bool busy; pthread_t thread; } closers[MAX_DEVICES];         // who gives communicators of a device back
static __thread int leaving_count;
static __thread int grouped_count, failed;   // failed: what a call of the group gave; the group's end gives it, and does nothing

#define NCCL(function)                                                                     \
    static Called called_ = {.name = #function};                                           \
    Call call_ __attribute__((cleanup(leave))) = enter(&called_);                          \
    if (call_.code) return failed = call_.code < 7 ? call_.code : UNHANDLED_CUDA_ERROR

void collectives_reset(void) { cliques = NULL, depth = grouped_count = leaving_count = 0; }   // NOTE what was there stays: others may point to it

// ---------------------------------------------------------------- commands

static void collective_free(Collective *c) {
    if (--c->refs) return;
    c->comm->clique->calls--;
    free(c->messages);
    free(c);
}

Collective *collective_kept(Collective *c) { return c->refs++, c; }
void collective_dropped(Collective *c) { collective_free(c); }

static Meeting *meeting_of(Clique *clique, uint64_t number) {
    for (Meeting *m = clique->meetings; m; m = m->next)
        if (m->number == number) return m;
    Meeting *m = calloc(1, sizeof *m);
    m->number = number;
    m->next = clique->meetings;
    m->lost = ++world.collectives == world.lose_collective;
    if (m->lost) clique->error = world.lose_collective_code;
    return clique->meetings = m;
}

static Type type_of(int nccl) { return nccl == 1 ? FP8_E4M3 : nccl == 6 ? FP16 : nccl == 7 ? FP32 : BF16; }   // 1: bytes

static float load(Type t, uint64_t base, uint64_t i) { return number_load(t, (void *)(base + i * (uint64_t)type_bytes(t))); }

// The sum as a ring makes it: from rank to rank, rounded at each.
static float summed(const Meeting *m, int ranks, uint64_t i) {
    const Type t = type_of(m->type);
    float total = load(t, m->members[0]->src, i), rounded;
    for (int r = 1; r < ranks; r++) {
        unsigned char at[4];
        number_store(t, at, total + load(t, m->members[r]->src, i));
        rounded = number_load(t, at);
        total = rounded;
    }
    return total;
}

static uint64_t bytes_of(const Collective *c, bool dst) {
    uint64_t n = c->count * (uint64_t)type_bytes(type_of(c->type)), all = n * (uint64_t)c->comm->clique->ranks;
    return c->kind == ALL_GATHER ? (dst ? all : n) : c->kind == REDUCE_SCATTER ? (dst ? n : all) : n;
}

// ---------------------------------------------------------------- ranks in several processes

static void give(const Collective *c, uint64_t number) {
    Parcel parcels[64] = {{-1, bytes_of(c, false), (void *)c->src}};
    int count = c->kind != SEND_RECV;
    memory_settle();
    for (int i = 0; i < c->message_count && count < 64; i++)
        if (!c->messages[i].receives)
            parcels[count++] = (Parcel){c->messages[i].peer, c->messages[i].bytes, (void *)c->messages[i].address};
    apart_give(c->comm->clique->apart, c->comm->rank, number, c->kind, c->type, c->count, parcels, count);
}

static void take(const Collective *c, uint64_t number) {
    const Apart *apart = c->comm->clique->apart;
    const Type t = type_of(c->type);
    const uint64_t size = (uint64_t)type_bytes(t), own = bytes_of(c, false), n = c->count;
    const int ranks = c->comm->clique->ranks, rank = c->comm->rank;
    Device *d = c->comm->device;
    if (!apart_alike(apart, number, c->kind, c->type, n)) {
        violation("rank %d calls another collective than another rank: nobody knows what comes of it", rank);
        return;
    }
    int seen[MAX_RANKS] = {0};
    for (int i = 0; i < c->message_count; i++) {
        const Message *to = &c->messages[i];
        const void *of = to->receives ? apart_parcel(apart, to->peer, number, rank, seen[to->peer]++, to->bytes) : NULL;
        if (of) memory_write(d, to->address, of, to->bytes);
        else if (to->receives) violation("ncclRecv: rank %d gets nothing that fits from rank %d", rank, to->peer);
    }
    for (int p = 0; c->kind == ALL_GATHER && p < ranks; p++)
        memory_write(d, c->dst + (uint64_t)p * own, apart_parcel(apart, p, number, -1, 0, own), own);
    if (c->kind != ALL_REDUCE && c->kind != REDUCE_SCATTER) return;
    char *sums = malloc(n * size);
    for (uint64_t i = 0; i < n; i++) {
        const uint64_t at = c->kind == ALL_REDUCE ? i : (uint64_t)rank * n + i;
        for (int p = 0; p < ranks; p++) {
            const float next = load(t, (uint64_t)apart_parcel(apart, p, number, -1, 0, own), at);
            number_store(t, sums + i * size, p ? number_load(t, sums + i * size) + next : next);
        }
    }
    memory_write(d, c->dst, sums, n * size);
    free(sums);
}

// What `from` sends to `rank` as the answer to its message `number`: the n-th for the n-th of that peer.
static const Message *sent(const Collective *from, int rank, long number, const Message *received) {
    int nth = 0;
    for (long i = 0; i < number; i++) nth += received[i].receives && received[i].peer == from->comm->rank;
    for (int j = 0; j < from->message_count; j++)
        if (!from->messages[j].receives && from->messages[j].peer == rank && !nth--) return &from->messages[j];
    return NULL;
}

static void exchange(const Meeting *m, int ranks) {
    for (int r = 0; r < ranks; r++)
        for (int i = 0; i < m->members[r]->message_count; i++) {
            const Message *to = &m->members[r]->messages[i];
            if (!to->receives) continue;
            const Message *of = sent(m->members[to->peer], r, to - m->members[r]->messages, m->members[r]->messages);
            if (of && of->bytes == to->bytes)
                memory_write(m->members[r]->comm->device, to->address, (void *)of->address, of->bytes);
            else violation("ncclRecv: rank %d gets nothing that fits from rank %d", r, to->peer);
        }
}

static void carry_out(Meeting *m, int ranks) {
    const Type t = type_of(m->type);
    const uint64_t size = (uint64_t)type_bytes(t), n = m->count;
    memory_settle();
    if (m->kind == SEND_RECV) exchange(m, ranks);
    for (int r = 0; m->kind == ALL_GATHER && r < ranks; r++)
        for (int p = 0; p < ranks; p++)
            memory_write(m->members[r]->comm->device, m->members[r]->dst + (uint64_t)p * n * size, (void *)m->members[p]->src, n * size);
    if (m->kind == ALL_REDUCE || m->kind == REDUCE_SCATTER) {
        const uint64_t all = m->kind == ALL_REDUCE ? n : n * (uint64_t)ranks;
        char *sums = malloc(all * size);
        for (uint64_t i = 0; i < all; i++) number_store(t, sums + i * size, summed(m, ranks, i));
        for (int r = 0; r < ranks; r++)
            memory_write(m->members[r]->comm->device, m->members[r]->dst,
                         sums + (m->kind == ALL_REDUCE ? 0 : (uint64_t)r * n * size), n * size);
        free(sums);
    }
    m->done = true;
}

static int blocks_of(const Collective *c) {
    int wanted = c->comm->clique->ctas;
    return (wanted < c->comm->device->sms ? wanted : c->comm->device->sms) * WHOLE;
}

// Whether the command may take a step: it begins where its blocks find room, and ends when all have begun.
bool collective_ready(Command *c) {
    Collective *mine = c->collective;
    if (mine->comm->aborted) return true;
    if (!c->meeting) return c->device->held + blocks_of(mine) <= c->device->sms * WHOLE;
    const Clique *clique = mine->comm->clique;
    if (c->meeting->lost) return false;
    return clique->apart ? apart_given(clique->apart, c->meeting->number) : c->meeting->arrived == clique->ranks;
}

int collective_step(Command *c, bool *done) {
    Collective *mine = c->collective;
    Comm *comm = mine->comm;
    *done = false;
    if (!c->meeting && !comm->aborted) {
        Meeting *m = c->meeting = meeting_of(comm->clique, comm->begun++);
        c->device->held += blocks_of(mine);
        if (!m->arrived) m->kind = mine->kind, m->count = mine->count, m->type = mine->type;
        else if (m->kind != mine->kind || m->count != mine->count || m->type != mine->type)
            violation("rank %d calls another collective than rank 0: nobody knows what comes of it", comm->rank);
        m->members[comm->rank] = mine;
        m->arrived++;
        for (int i = 0; i < mine->message_count; i++) {
            int code = memory_reach(c->device, mine->messages[i].address, mine->messages[i].bytes);
            if (code) return code;
        }
        int code = mine->kind == SEND_RECV ? OK : memory_reach(c->device, mine->dst, bytes_of(mine, true));
        if (!code && mine->kind != SEND_RECV) code = memory_reach(c->device, mine->src, bytes_of(mine, false));
        if (!code && comm->clique->apart) give(mine, m->number);
        return code;
    }
    if (c->meeting) c->device->held -= blocks_of(mine);
    if (c->meeting && !comm->aborted && comm->clique->apart) take(mine, c->meeting->number);
    else if (c->meeting && !comm->aborted && !c->meeting->done) carry_out(c->meeting, comm->clique->ranks);
    *done = true;
    return OK;
}

// ---------------------------------------------------------------- communicators

static Device *current_device(void) {
    Device *d = NULL;
    if (!strncmp(devices[0].arch, "gfx", 3)) return hip_current();
    return cuda_current("a library of collectives", &d) ? NULL : d;
}

static bool others(const Comm *c) { return c->used && !pthread_equal(c->user, pthread_self()); }

static Comm *comm_of(void *handle, const char *who) {
    Comm *comm = handle ? object_of(COMMUNICATOR, handle, who) : NULL;
    if (comm && others(comm)) violation("%s: two threads are in one communicator at the same time", who);
    return comm;
}

static void uses(Comm *c) { c->used = true, c->user = pthread_self(); }

static void used_no_more(const Clique *clique) {
    for (int r = 0; r < clique->ranks; r++)
        if (clique->comms[r]) clique->comms[r]->used = false;
}

int ncclGetVersion(int *version) {
    NCCL(ncclGetVersion);
    return *version = world.nccl, world.nccl ? SUCCESS : INTERNAL_ERROR;
}
const char *ncclGetErrorString(int code) {
    static const char *const texts[] = {"no error", "unhandled cuda error", "unhandled system error", "internal error",
                                        "invalid argument", "invalid usage", "remote process exited or there was a network error"};
    return code >= 0 && code < 7 ? texts[code] : "unknown result code";
}
const char *ncclGetLastError(void *comm) { return (void)comm, "the stand-in says no more"; }

int ncclGetUniqueId(UniqueId *id) {
    NCCL(ncclGetUniqueId);
    memset(id, 0, sizeof *id);
    ids++;
    memcpy(id->internal, &ids, sizeof ids);
    return world.apart && !apart_made(id, (uint64_t)getpid() << 32 | ids) ? INTERNAL_ERROR : SUCCESS;
}

int ncclCommInitRankConfig(void **made, int ranks, UniqueId unique, int rank, const Config *config) {
    NCCL(ncclCommInitRankConfig);
    *made = NULL;
    uint64_t id;
    memcpy(&id, unique.internal, sizeof id);
    Device *d = current_device();
    if (config && (config->magic != 0xCAFEBEEF || config->min_ctas > config->max_ctas)) return INVALID_ARGUMENT;
    if (!d || ranks < 1 || ranks > MAX_RANKS || rank < 0 || rank >= ranks) return INVALID_ARGUMENT;
    if (d->sick) return UNHANDLED_CUDA_ERROR;
    if (!depth && ranks > 1) violation("ncclCommInitRankConfig: outside of a group it waits for ranks that nobody opens");
    Clique *clique = cliques;
    while (clique && clique->id != id) clique = clique->next;
    if (!clique) {
        clique = calloc(1, sizeof *clique);
        *clique = (Clique){.id = id, .ranks = ranks, .next = cliques, .ctas = 1, .opening = true,
                            .blocking = !config || config->blocking, .apart = apart_joined(unique.internal, ranks)};
        cliques = clique;
    }
    for (int r = 0; r < ranks; r++)
        if (clique->comms[r] && (r == rank || clique->comms[r]->device == d)) return INVALID_USAGE;
    if (config && config->max_ctas > 0) clique->ctas = config->max_ctas;
    Comm *comm = calloc(1, sizeof *comm);
    *comm = (Comm){.clique = clique, .device = d, .rank = rank};
    clique->comms[rank] = comm;
    clique->joined++;
    if (depth) uses(comm);
    if (clique->apart) apart_stands(clique->apart, rank, THERE);
    *made = comm->handle = handle_of(COMMUNICATOR, comm);
    return SUCCESS;
}

static int submitted(Stream *s, Collective *call);

// The library's own thread comes to an end.
static int progress(Clique *c) {
    if (c->opening && c->apart && !apart_all(c->apart, false)) return IN_PROGRESS;
    if (c->polls-- > 0) return IN_PROGRESS;
    for (int i = 0; i < c->grouped_count; i++) {
        if (c->error) collective_free(c->grouped[i].call);
        else c->error = submitted(c->grouped[i].stream, c->grouped[i].call);
    }
    c->grouped_count = 0;
    c->opening = c->pending = false;
    used_no_more(c);
    return SUCCESS;
}

int ncclCommGetAsyncError(void *handle, int *code) {
    NCCL(ncclCommGetAsyncError);
    const Comm *comm = comm_of(handle, "ncclCommGetAsyncError");
    if (!comm) return INVALID_ARGUMENT;
    Clique *clique = comm->clique;
    if (!clique->error && clique->apart && apart_any_lost(clique->apart)) return *code = REMOTE_ERROR, SUCCESS;
    if (clique->pending && progress(clique)) return *code = IN_PROGRESS, SUCCESS;
    return *code = clique->error, SUCCESS;
}

// NOTE the library's threads take a while for this, in which other threads may call.
static void closes(const Clique *clique, const char *who, bool begins) {
    for (int r = 0; r < clique->ranks; r++) {
        const int d = clique->comms[r] ? clique->comms[r]->device->ordinal : -1;
        if (d < 0) continue;
        if (begins && closers[d].busy && !pthread_equal(closers[d].thread, pthread_self()))
            violation("%s: two threads give communicators of device %d back at the same time", who, d);
        closers[d].busy = begins;
        closers[d].thread = pthread_self();
    }
}

// All communicators of a clique are given back: that waits for all that was called of it, and for graphs to go.
static int reclaimed(Clique *clique, bool aborts, bool lost, const char *who) {
    for (int r = 0; r < clique->ranks; r++) lost |= clique->comms[r] && clique->comms[r]->device->sick != OK;
    if (lost) return UNHANDLED_CUDA_ERROR;
    closes(clique, who, true);
    breathe();
    closes(clique, who, false);
    for (int i = 0; clique->calls && i < HANGS; i++)
        if (!step()) breathe();
    for (int i = 0; clique->apart && !aborts && !apart_all(clique->apart, true); i++) {   // all of a machine give theirs back
        if (i == HANGS) violation("%s blocks for ever: another process keeps its communicator", who);
        if (i == HANGS) return INTERNAL_ERROR;
        breathe();
    }
    if (!clique->calls && clique->apart) apart_left(clique->apart), clique->apart = NULL;
    if (!clique->calls) return SUCCESS;
    violation("%s blocks for ever: %d calls are in graphs, or have not ended", who, clique->calls);
    return INTERNAL_ERROR;
}

// The last communicator of a clique gives back all; in a group, the group's end does.
static int closed(void *handle, bool aborts, bool lost, const char *who) {
    Comm *comm = handle ? object_of(COMMUNICATOR, handle, who) : NULL;
    if (!comm) return INVALID_ARGUMENT;
    Clique *clique = comm->clique;
    if (others(comm) && !(aborts && clique->pending)) violation("%s: a call of another thread is under way", who);
    if (clique->pending && !aborts) violation("%s: the communicator is in progress", who);
    for (int i = 0; i < clique->grouped_count; i++) collective_free(clique->grouped[i].call);
    clique->grouped_count = 0;
    clique->pending = false;
    used_no_more(clique);
    comm->aborted |= aborts;
    handle_gone(comm->handle);
    if (clique->apart) apart_stands(clique->apart, comm->rank, aborts ? LOST : DEPARTED);
    if (++clique->left < clique->joined) return SUCCESS;
    if (!depth || !aborts || leaving_count == MAX_RANKS) return reclaimed(clique, aborts, lost, who);
    leaving[leaving_count].clique = clique, leaving[leaving_count++].lost = lost;
    return SUCCESS;
}
int ncclCommDestroy(void *comm) {
    CLOSING(ncclCommDestroy);
    int code = closed(comm, false, call_.code, "ncclCommDestroy");
    return CLOSED(code) < 7 ? CLOSED(code) : UNHANDLED_CUDA_ERROR;
}
int ncclCommAbort(void *comm) {
    CLOSING(ncclCommAbort);
    int code = closed(comm, true, call_.code, "ncclCommAbort");
    return CLOSED(code) < 7 ? CLOSED(code) : UNHANDLED_CUDA_ERROR;
}

// ---------------------------------------------------------------- calls

int ncclGroupStart(void) {
    NCCL(ncclGroupStart);
    if (!depth++) failed = SUCCESS;
    return SUCCESS;
}

int ncclGroupEnd(void) {
    CLOSING(ncclGroupEnd);
    if (!depth) return INVALID_USAGE;
    if (--depth) return SUCCESS;
    int code = !call_.code ? failed : call_.code < 7 ? call_.code : UNHANDLED_CUDA_ERROR;
    bool pending = false;
    failed = SUCCESS;
    for (Clique *c = cliques; c && !code; c = c->next) {
        bool waits = false;
        for (; c->blocking && c->apart && !c->left && !apart_all(c->apart, false); waits = true) breathe();
        if (waits && c->left) code = REMOTE_ERROR;   // aborted meanwhile
    }
    for (Clique *c = cliques; c; c = c->next)
        if (c->joined < c->ranks && !c->left && !c->apart) {
            if (!code) violation("ncclGroupEnd blocks for ever: %d of %d ranks open their communicators", c->joined, c->ranks);
            code = code ? code : INTERNAL_ERROR;
            c->ranks = c->joined;
        }
    for (int i = 0; i < grouped_count; i++) {
        Clique *c = grouped[i].call->comm->clique;
        if (code) collective_free(grouped[i].call);
        else if (c->blocking) code = submitted(grouped[i].stream, grouped[i].call);
        else {
            if (!c->grouped) c->grouped = calloc(sizeof grouped / sizeof *grouped, sizeof *grouped);
            c->grouped[c->grouped_count++] = grouped[i];
        }
    }
    grouped_count = 0;
    for (Clique *c = cliques; c; c = c->next)
        for (int r = 0; r < c->ranks; r++) {
            Comm *comm = c->comms[r];
            if (!comm || !comm->used || others(comm)) continue;
            if (!c->blocking && !code && !c->pending) c->pending = true, c->polls = (int)drawn(4);
            pending |= c->pending;
            comm->used = c->pending && !c->opening;
        }
    for (int i = 0; i < leaving_count; i++) {
        int found = reclaimed(leaving[i].clique, true, leaving[i].lost, "ncclCommAbort");
        code = code ? code : found;
    }
    leaving_count = 0;
    return !code && pending ? IN_PROGRESS : code;
}

static int submitted(Stream *s, Collective *call) {
    if (s->device != call->comm->device) {
        violation("a collective of device %d on a stream of device %d", call->comm->device->ordinal, s->device->ordinal);
        return INVALID_ARGUMENT;
    }
    Command *c = command_new(COLLECTIVE, s->device);
    c->collective = call;
    return stream_submit(s, c) ? UNHANDLED_CUDA_ERROR : SUCCESS;
}

static int called(void *handle, void *stream, CollectiveKind kind, uint64_t dst, uint64_t src, uint64_t count, int type,
                  const Message *message, const char *who) {
    Comm *comm = comm_of(handle, who);
    Stream *s = stream ? object_of(STREAM, stream, who) : NULL;
    if (!comm || !s || comm->aborted || (type != 6 && type != 7 && type != 9)) return failed = INVALID_ARGUMENT;
    if (comm->clique->pending) {
        violation("%s: the communicator is in progress", who);
        return failed = INVALID_ARGUMENT;
    }
    if (s->device->sick) return UNHANDLED_CUDA_ERROR;
    if (depth) uses(comm);
    if (grouped_count == (int)(sizeof grouped / sizeof *grouped)) return INTERNAL_ERROR;
    Collective *call = NULL;
    for (int i = 0; message && i < grouped_count; i++)
        if (grouped[i].call->comm == comm && grouped[i].call->kind == SEND_RECV) call = grouped[i].call;
    if (!call) {
        call = calloc(1, sizeof *call);
        *call = (Collective){.comm = comm, .kind = kind, .dst = dst, .src = src, .count = count, .type = type, .refs = 1};
        comm->clique->calls++;
        if (!depth) {
            violation("%s: outside of a group", who);
            collective_free(call);
            return INVALID_USAGE;
        }
        grouped[grouped_count].stream = s;
        grouped[grouped_count++].call = call;
    }
    if (message) {
        call->messages = realloc(call->messages, (size_t)(call->message_count + 1) * sizeof *message);
        call->messages[call->message_count++] = *message;
    }
    return SUCCESS;
}

int ncclAllReduce(const void *src, void *dst, size_t count, int type, int op, void *comm, void *stream) {
    NCCL(ncclAllReduce);
    return op ? INVALID_ARGUMENT
              : called(comm, stream, ALL_REDUCE, (uint64_t)dst, (uint64_t)src, count, type, NULL, "ncclAllReduce");
}
int ncclReduceScatter(const void *src, void *dst, size_t count, int type, int op, void *comm, void *stream) {
    NCCL(ncclReduceScatter);
    return op ? INVALID_ARGUMENT
              : called(comm, stream, REDUCE_SCATTER, (uint64_t)dst, (uint64_t)src, count, type, NULL, "ncclReduceScatter");
}
int ncclAllGather(const void *src, void *dst, size_t count, int type, void *comm, void *stream) {
    NCCL(ncclAllGather);
    return called(comm, stream, ALL_GATHER, (uint64_t)dst, (uint64_t)src, count, type, NULL, "ncclAllGather");
}
int ncclSend(const void *src, size_t count, int type, int peer, void *comm, void *stream) {
    NCCL(ncclSend);
    Message m = {(uint64_t)src, count * (uint64_t)type_bytes(type_of(type)), peer, false};
    return called(comm, stream, SEND_RECV, 0, 0, 0, type, &m, "ncclSend");
}
int ncclRecv(void *dst, size_t count, int type, int peer, void *comm, void *stream) {
    NCCL(ncclRecv);
    Message m = {(uint64_t)dst, count * (uint64_t)type_bytes(type_of(type)), peer, true};
    return called(comm, stream, SEND_RECV, 0, 0, 0, type, &m, "ncclRecv");
}
long standin_collectives(void) { return world.collectives; }
