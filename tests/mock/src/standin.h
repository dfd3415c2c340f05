// A stand-in for a GPU vendor's driver library: devices, memory and streams on the host, without hardware.
//
// What is submitted to a stream waits in its queue. Nothing runs at the time of the call: the stepper (step.c) takes
// one command of one stream, or one tile of one kernel, at a time, in an order drawn from a seed, whenever the host
// waits or asks. So work that no event or flag orders comes in any order, and a missing wait gives wrong numbers.
//
// world.c    settings, faults to be injected, counts, violations      memory.c   allocations, who may touch what
// stream.c   streams, events, what is submitted to them               step.c     what runs next
// shared.c   memory of several processes                           (its faces: cuda_shared.c)
// graph.c    capture and replay                                       kernel.c   launches and their blocks
// naive.c    tiles.c    test_kernels.c  the kernels                    image.c    what stands in a module's image
// cuda.c     cuda_memory.c    cuda_stream.c    cuda_graph.c    hip.c    the vendors' faces
// collective.c                                                        NCCL's and RCCL's face
// apart.c    ranks of communicators in several processes
// gemms.c    cublaslt.c    hipblaslt.c    their libraries of GEMMs
#pragma once
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {  // codes; both vendors number these alike
    OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101,
    INVALID_IMAGE = 200, INVALID_CONTEXT = 201, NO_BINARY = 209, PEER_UNSUPPORTED = 217, INVALID_PTX = 218,
    INVALID_HANDLE = 400, NOT_FOUND = 500, NOT_READY = 600, ILLEGAL_ADDRESS = 700, LAUNCH_RESOURCES = 701,
    LAUNCH_TIMEOUT = 702, PEER_ALREADY = 704, PEER_NOT_ENABLED = 705, LAUNCH_FAILED = 719, NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801, CAPTURE_UNSUPPORTED = 900, CAPTURE_INVALIDATED = 901, CAPTURE_UNMATCHED = 903, CAPTURE_UNJOINED = 904,
    CAPTURE_IMPLICIT = 906, CAPTURED_EVENT = 907, INVALID_CLUSTER = 912, UNKNOWN = 999
};

enum { MAX_DEVICES = 64, MAX_QUEUES = 128 };

typedef struct Device Device;
typedef struct Stream Stream;
typedef struct Event Event;
typedef struct Record Record;
typedef struct Command Command;
typedef struct Capture Capture;
typedef struct Module Module;
typedef struct Function Function;
typedef struct Graph Graph;
typedef struct Exec Exec;
typedef struct Launch Launch;
typedef struct Comm Comm;
typedef struct Clique Clique;
typedef struct Collective Collective;

typedef enum { CONTEXT, STREAM, EVENT, ALLOCATION, MODULE, FUNCTION, GRAPH, EXEC, CAPTURE, COMMUNICATOR, LIBRARY,
               DESCRIPTOR, PHYSICAL, MAPPING, OPENED, KINDS } Kind;

struct Device {
    int ordinal;
    char name[64], arch[64];         // arch: sm_90, gfx942
    int major, minor, sms, smem_sm, smem_block, smem_reserved, max_blocks, wavefront;
    int clock_khz, memory_clock_khz, bus_bits;
    uint64_t memory, used;           // bytes
    int links[MAX_DEVICES];          // to the other's memory: 0 none, 1 a link of their own, 2 by the host's bus
    bool enabled[MAX_DEVICES];       // and whether it may
    void *context;                   // handle
    int retained;
    int sick;                        // a code that every later call of this device gives
    int held;                        // of its multiprocessors, by blocks that run; see kernel.c
    Stream *null_stream;
    unsigned loaded;                 // kernels of its library of GEMMs, by bits
    int queues, loads[MAX_QUEUES];   // hardware queues, once it has a stream; the streams of each
    int streams;                     // that were ever made
};

// ---------------------------------------------------------------- world.c

typedef struct Called {              // one function of a face
    const char *name;
    long count, fail_at;             // fail_at: the call that fails, counted from 1; 0: none
    int code;
    bool known;
    struct Called *next;
} Called;
typedef struct { int code; } Call;   // code: what an injected fault gives

Call enter(Called *function);        // locks; `leave` unlocks
void leave(Call *call);
void breathe(void);                  // lets other threads call, in a call that waits for them
#define CALL(function)                                                                     \
    static Called called_ = {.name = #function};                                           \
    Call call_ __attribute__((cleanup(leave))) = enter(&called_);                          \
    if (call_.code) return call_.code
// A call that gives something back does so whatever code it returns: that may be an earlier error's.
#define CLOSING(function)                                                                  \
    static Called called_ = {.name = #function};                                           \
    Call call_ __attribute__((cleanup(leave))) = enter(&called_)
#define CLOSED(otherwise) (call_.code ? call_.code : (otherwise))

typedef struct {
    int devices;                     // 0: the library is there and no GPU
    int init_code;                   // what initialisation gives
    int steps_per_query, steps_per_call;
    int order;                       // 0 any, 1 ranked streams, 2 the same stream as long as it can
    int tile_order;                  // likewise of blocks
    int gemm[2][2];                  // of the library's kernels, the one it likes best first: registers a thread (0: there
                                     // is no other), shared memory of a block
    int copies_lost;                 // HIP: copies without compute units write nothing
    int version;                     // of the driver; HIP: numbers below a million stand for the usual one
    int queues;                      // of each device; 0: as the environment says, else as the vendor has it
    uint64_t tickets;                // commands that streams were given
    long early;                      // launches that began before the one before them had ended
    int uuid;                        // of device 0; those of the others follow
    bool shared;                     // ordinary memory can go to other processes as IPC memory
    int way;                         // what memory leaves the process as: 1 descriptors, 0 IPC handles alone
    int reuse;                       // freed memory's addresses are given again, the last ones first
    int exclusive;                   // devices are one process's alone
    int fabric;                      // and as fabric handles, by this IMEX channel; 0: the devices have none; −1: no channel
    bool flush;                      // devices can flush remote writes, and need to
    long corrupt_copy, delay_copy, delay_steps, stop_command, lose_call, interrupt_call, kill_call, pause_call;
    int lose_code;
    int nccl;                        // the version of the library of collectives; 0: its calls say that there is none
    bool apart;                      // ranks of communicators are in several processes
    long collectives, lose_collective;   // the one that never ends, and whose communicators tell of an error
    int lose_collective_code;
    long copies, commands, calls;    // counted since the last reset
    uint64_t now;                    // microseconds of the virtual clock
    long live[KINDS], timed;         // timed: of the events
    char violations[4096];
    long violated;
} World;
extern World world;
extern Device devices[MAX_DEVICES];
extern const char *const kind_names[KINDS];

void violation(const char *format, ...) __attribute__((format(printf, 1, 2)));
uint64_t drawn(uint64_t below);      // uniform, 0 … below − 1

void *handle_of(Kind kind, void *object);
void *object_of(Kind kind, const void *handle, const char *who);   // NULL, with a violation, if it is none or gone
void handle_gone(const void *handle);
void handles_reset(void);

// ---------------------------------------------------------------- memory.c

int memory_alloc(Device *d, uint64_t bytes, bool fine, uint64_t *address);   // `fine`: no GPU keeps it in a cache
int memory_free(uint64_t address, const char *who);
Device *memory_home(uint64_t address, uint64_t bytes);             // NULL: not (all of it) live memory of a device
bool memory_was_device(uint64_t address);                          // it belongs to what has been freed
bool memory_is_fine(uint64_t address);
bool memory_is_foreign(uint64_t address);                          // another process's
int memory_reach(const Device *d, uint64_t address, uint64_t bytes);   // OK if a kernel or copy of `d` may touch it
bool memory_is_plain(uint64_t address);                            // no mapping of a range, and of no pool
bool memory_mapping(uint64_t address, uint64_t *base, uint64_t *bytes);
int memory_may(uint64_t address, int device, bool *may);           // whether a device may touch a mapping
int memory_let(uint64_t address, uint64_t bytes, int device);      // it may touch these mappings from now on
Device *memory_pool_of(uint64_t address);                          // NULL: of no pool
int memory_pool_let(const Device *home, int device);               // likewise, what is of a device's pool
bool memory_is_elsewhere(uint64_t address);                        // of another context than its device's primary one
uint64_t memory_number(uint64_t address);                          // another one for each allocation; 0: none is there
bool memory_place(uint64_t address, uint64_t *base, uint64_t *bytes);   // the allocation or mapping around it
// `foreign`: of another process.
void memory_insert(Device *home, uint64_t base, uint64_t bytes, bool ranged, bool foreign, bool fine,
                   void *physical);
int memory_file(uint64_t address);                                 // of an ordinary allocation; −1: it has none
void *memory_physical(uint64_t address);                           // behind a mapping
int memory_gone(uint64_t base, uint64_t bytes);                    // mappings that are unmapped
// What a device writes to another's memory. Where devices can flush such writes (`flush 1`), they are seen late: when a
// kernel or an event acquires, when a stream's wait asks for the flush, or at any time.
void memory_write(const Device *writer, uint64_t dst, const void *src, uint64_t bytes);
void memory_settle(void);                                          // all of it is seen
void memory_drift(void);                                           // or a little
void memory_reset(void);

// ---------------------------------------------------------------- shared.c

// `kinds`: what it leaves the process as, as CUDA's CUmemAllocationHandleType counts them.
typedef struct Physical { void *handle; int file, kinds; uint64_t bytes; Device *home; int refs; bool fine, ours; } Physical;
enum { DESCRIPTOR_KIND = 1, FABRIC_KIND = 8 };
int shared_file(uint64_t bytes, int home, bool fine);              // of memory that processes share; −1: none is to be had
Physical *physical_create(Device *d, uint64_t bytes, bool fine, int kinds);
Physical *physical_import(int file);                               // NULL: it is no such file
int physical_file(const Physical *p);                              // a descriptor of it for somebody else
Physical *physical_again(const Physical *p);                       // a handle more of the same memory
void fabric_export(const Physical *p, void *handle);               // 64 bytes
int fabric_import(const void *handle, Physical **made);
void physical_release(Physical *p);
int physical_map(Physical *p, uint64_t address, uint64_t bytes);
int shared_reserve(uint64_t bytes, uint64_t *address);
int shared_unreserve(uint64_t address, uint64_t bytes);
int shared_unmap(uint64_t address, uint64_t bytes);
int shared_handle(uint64_t base, void *handle);                    // 64 bytes
int shared_open(const void *handle, uint64_t *address);
int shared_close(uint64_t address);

// ---------------------------------------------------------------- stream.c

struct Record { int refs; bool done; uint64_t time; };
struct Event { void *handle; Device *device; bool timing; Record *last; Capture *capture; int *nodes; int count; };

typedef enum { COPY, FILL, LAUNCH, RECORD, WAIT_EVENT, WRITE_VALUE, WAIT_VALUE, REPLAY, COLLECTIVE,
               NOTHING, RECORD_OUTSIDE, WAIT_OUTSIDE } Verb;   // of graphs alone: a join, and events of no capture
struct Command {
    Verb verb;
    Device *device;
    Command *next;
    uint64_t dst, src, rows, bytes, dst_pitch, src_pitch;   // COPY, FILL (rows of bytes)
    void *staged;                    // COPY: the bytes, taken from the host at the call
    uint32_t value;                  // FILL (width 1 or 4), WRITE_VALUE, WAIT_VALUE
    int width, flags;
    Record *record;
    Event *event;                    // RECORD_OUTSIDE, WAIT_OUTSIDE
    Launch *launch;
    Collective *collective;
    struct Meeting *meeting;         // COLLECTIVE: it has begun, with those of the other ranks
    Exec *exec;
    int *indegree, left;             // REPLAY: of each node; nodes not done
    int *ready, readies, chosen;     // REPLAY: nodes that may run; the one to be run next, as a place in `ready`
    Command **running;               // REPLAY: a node's command while it runs
    int exec_nodes;
    Record **outside;                // REPLAY: of each node, what its event stands for in this launch
    long delay;                      // steps before it may start
    bool begun, corrupt, stopped;
    uint64_t ticket;                 // its place among all that streams were given
    bool passed;                     // through its hardware queue
};
struct Stream {
    void *handle;
    Device *device;
    int priority;
    bool blocking;                   // it and the device's default stream wait for each other's work
    Command *head, *tail;
    bool active;
    uint64_t rank;                   // for the order of ranked streams
    int queue;                       // of the device's hardware queues
    Capture *capture;
    int *nodes, count;               // of the capture: what the next node comes after
    long done;                       // commands
};
Stream *stream_create(Device *d, int priority, bool blocking);
int stream_destroy(Stream *s);
int stream_submit(Stream *s, Command *c);       // takes the command
bool stream_idle(const Stream *s);
int stream_synchronize(Stream *s, const char *who);
int device_synchronize(Device *d, const char *who);
void streams_reset(void);
int queues_asked(const Device *d);   // how many hardware queues a context of the device gets that is made now
void streams_leave(Capture *c);      // the capture has ended
void streams_shuffle(void);          // new ranks
Command *command_new(Verb verb, Device *d);
void command_free(Command *c);
int stream_copy(Stream *s, uint64_t dst, uint64_t src, uint64_t rows, uint64_t bytes, uint64_t dst_pitch,
                uint64_t src_pitch, const char *who);
enum { BY_ENGINE = 1 };              // Command.flags of a COPY that takes no multiprocessor inside a device either
int stream_copy_by_engine(Stream *s, uint64_t dst, uint64_t src, uint64_t rows, uint64_t bytes, uint64_t dst_pitch,
                          uint64_t src_pitch, const char *who);
int stream_fill(Stream *s, uint64_t dst, uint32_t value, int width, uint64_t count, const char *who);
int stream_value(Stream *s, Verb verb, uint64_t address, uint32_t value, int flags, const char *who);
Event *event_create(Device *d, bool timing);
void event_destroy(Event *e);
int event_record(Event *e, Stream *s);
int event_wait(Event *e, Stream *s);
int event_outside(Event *e, Stream *s, Verb verb);   // in a capture, of an event outside of it
Record *record_of(Event *e, bool fresh);   // kept: the event's last record, one that is done, or a fresh one
Record *kept(Record *r);
void dropped(Record *r);
int event_query(Event *e);
int event_synchronize(Event *e, const char *who);
int event_elapsed(Event *a, Event *b, float *milliseconds);

// ---------------------------------------------------------------- step.c

bool step(void);                     // run something; false if nothing can
void advance(int steps);
bool command_ready(Command *c);
bool command_step(Command *c);       // true: it is done
bool command_step_early(Command *before, bool ended, Command *c);   // a launch behind another one; false: it could not
void stepper_add(Stream *s);
void stepper_reset(void);        // no stream has commands any more

// ---------------------------------------------------------------- graph.c

typedef struct { Command *command; int *after, count, priority; bool has_priority, loose; } Node;   // no stream comes to a loose one
typedef enum { GLOBAL, THREAD_LOCAL, RELAXED } CaptureMode;   // whose unsafe calls spoil it: anybody's, its thread's, nobody's
struct Capture {
    void *handle;
    uint64_t number;                 // from 1
    Stream *origin;
    Node *nodes;
    int count, room;
    bool invalid, ended;
    CaptureMode mode;
    pthread_t thread;
    Capture *next;                   // that is open too
};
struct Graph { void *handle; Node *nodes; int count; };
struct Exec { void *handle; Node *nodes; int count; int **next, *nexts, launches; bool running, gone; };
int capture_begin(Stream *s, int mode);
int capture_spoiled(void);           // by an unsafe call of this thread: a code
int capture_end(Stream *s, Graph **made);
bool capture_implicit(const Device *d);        // the device's default stream would take part in what is captured
int capture_mode(int mode);          // of this thread's unsafe calls from here on; the mode before
void *capture_embed(Capture *c, Graph *g, void *const *after, size_t count);   // all of the graph: the node of its end
void capture_nodes(Stream *s, void *const *nodes, size_t count, bool set);     // what the next node comes after
void *capture_record(Capture *c, Event *e, void *const *after, size_t count);  // a loose node, in each replay
void capture_edges(Capture *c, void *const *from, void *const *to, size_t count);
void replay_begins(Command *c);      // at the launch of a graph: which records its events outside stand for
void captures_reset(void);
int capture_add(Stream *s, Command *c);
void capture_join(Stream *s, Capture *c, const int *nodes, int count);
int graph_instantiate(Graph *g, bool keep_priorities, Exec **made);
void graph_destroy(Graph *g);
void exec_destroy(Exec *e);
Command *node_command(const Node *n);           // a copy of the template, to be run
bool replay_ready(Command *c);
bool replay_step(Command *c);

// ---------------------------------------------------------------- collective.c

Collective *collective_kept(Collective *c);
void collective_dropped(Collective *c);
bool collective_ready(Command *c);
int collective_step(Command *c, bool *done);
void collectives_reset(void);
enum { WHOLE = 5040 };           // a multiprocessor in the units of `held` and `share`: many numbers of blocks can share it alike

// ---------------------------------------------------------------- apart.c

typedef struct Apart Apart;
typedef enum { AWAY, THERE, DEPARTED, LOST } Stands;   // LOST: its process has ended, or it has aborted
typedef struct { int peer; uint64_t bytes; const void *data; } Parcel;
bool apart_made(void *unique, uint64_t id);        // of 128 bytes
Apart *apart_joined(const void *unique, int ranks);   // NULL: this is no such name
void apart_left(Apart *a);
void apart_stands(Apart *a, int rank, Stands where);
Stands apart_where(const Apart *a, int rank);
bool apart_all(const Apart *a, bool leaving);      // nobody is AWAY; `leaving`: nobody is THERE
bool apart_any_lost(const Apart *a);
void apart_give(Apart *a, int rank, uint64_t number, int kind, int type, uint64_t elements, const Parcel *parcels, int count);
bool apart_given(const Apart *a, uint64_t number); // by all ranks
bool apart_alike(const Apart *a, uint64_t number, int kind, int type, uint64_t elements);
const void *apart_parcel(const Apart *a, int rank, uint64_t number, int peer, int nth, uint64_t bytes);   // NULL: none

// ---------------------------------------------------------------- kernel.c, image.c

typedef struct KernelCode KernelCode;
struct KernelCode {
    const char *name;                // or the start of it, if `family`
    bool family;
    int parameters[16];              // bytes of each; 0 ends
    int (*open)(Launch *l);          // fills the launch's state; a code
    int (*tile_of)(Launch *l, int block, int round);       // the tile that block takes, −1: no more
    bool (*ready)(Launch *l, int tile);
    int (*run)(Launch *l, int tile); // a code: ILLEGAL_ADDRESS, LAUNCH_FAILED
    bool waits_itself;               // for the launch before it, where it begins early
    bool (*lets)(const Launch *l, bool ended);   // whether all blocks have let the next launch begin; `ended`: the
                                     // launch before has. NULL: they do when they end
    void (*read_ahead)(Launch *l, int at);       // what block `running[at]` may read before its tile is ready
};
struct Module { void *handle; Device *device; char *image; size_t size; Function *functions; };
struct Function {
    void *handle;
    Module *module;
    Function *next;
    char name[128];
    const KernelCode *code;
    bool marks;                      // its entry is the twin of `code`'s that marks: one more argument
    uint64_t ticks;                  // of the clock that it marks by, in a microsecond
    int static_smem, dynamic_smem, threads;
    int registers;                   // that the face of CUDA tells; 0: 64
    unsigned lazy;                   // its bit of Device.loaded; 0: it was loaded with its module
};
struct Launch {
    const Function *function;
    const KernelCode *code;
    Device *device;
    unsigned char *arguments;        // the parameters one behind the other, each at a multiple of 8
    int grid, block, smem, cluster, priority, refs;
    int share;                       // of a multiprocessor, that a block holds; see kernel.c
    bool has_priority, open;
    bool early;                      // it may begin when the launch before it on its stream lets it
    void *state;                     // the kernel's own; one allocation
    struct Mark *marks;              // of each tile, where the kernel is one that marks (kernels/src/marks.h)
    struct { int block, tile, round; float *ahead; uint64_t came; } *running;   // blocks that run, the tile that they are at (NO_TILE:
                                     // they wait for the launch before), what they have read of it
    int started, count, chosen;      // blocks started; running; the one to go next, −1: a new one
};
int module_load(Device *d, const void *image, Module **made);
int module_function(Module *m, const char *name, Function **made);
void module_unload(Module *m);
const char *kernel_name(const Launch *l);        // the entry's name, or that of the entry that it is the twin of
const KernelCode *kernel_named(const char *entry);
int launch_new(Function *f, Stream *s, int grid, int block, int smem, int cluster, const int *priority, void **values,
               const void *packed, size_t packed_bytes, Launch **made);
void launch_noted(const Launch *l, bool early);      // for `standin_launches`
void launches_forgotten(void);
Launch *launch_again(const Launch *l);
void launch_free(Launch *l);
bool device_has_room(const Device *d);          // for a block of a copy or fill
int blocks_per_sm(const Function *f, int threads, int smem);
bool launch_sees(const Launch *l, uint64_t flag, uint32_t goal);  // whether the flag, which others change, has come so far
enum { NO_TILE = -2 };
bool launch_ready(Launch *l);
bool launch_lets(const Launch *l, bool ended);
bool launch_ready_early(Launch *l);  // for what it does before the launch before it has ended: blocks begin, and read
int launch_step_early(Launch *l);    // what nobody writes
void launch_lowers(const Launch *l, uint64_t flag);  // who waited for it takes it down
int launch_step(Launch *l, bool *done);
bool image_of_hip(const char *image);
int image_check(const void *image, const Device *d, size_t *size);
bool image_has_entry(const char *image, size_t size, const char *entry);
extern const KernelCode naive_kernels[], tiled_kernels[], test_kernels[];

Device *hip_current(void);           // NULL: none
void cuda_reset(void);               // this thread has no current context
void hip_reset(void);                // its current device is the first

// ---------------------------------------------------------------- numbers

typedef enum { BF16, FP16, FP32, FP8_E4M3, FP8_E5M2, TYPES } Type;
float number_load(Type t, const void *at);
typedef enum { NO_FUNCTION, GELU, GELU_TANH, SILU, SILU_MUL } Applied;   // with SILU_MUL what comes last is a factor
Applied function_named(const char *entry);                               // of a kernel's sums
float number_applied(Applied function, float sum);
void number_store(Type t, void *at, float value);
static inline int type_bytes(Type t) { return t == FP32 ? 4 : t < FP32 ? 2 : 1; }
void kernel_store(const Launch *l, Type type, uint64_t to, float value);
