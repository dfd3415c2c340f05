// Graphs: what streams record while they are captured, and its replay, node by node in any order that its edges leave.
#include "standin.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------- capture

static Capture *opened;  // captures that have not ended
static uint64_t captures;
static __thread CaptureMode mode_of_thread;

int capture_begin(Stream *s, int mode) {
    if (s->capture || mode < GLOBAL || mode > RELAXED) return INVALID_VALUE;
    Capture *c = s->capture = calloc(1, sizeof *s->capture);
    c->origin = s;
    c->mode = (CaptureMode)mode;
    c->thread = pthread_self();
    c->next = opened;
    c->number = ++captures;
    c->handle = handle_of(CAPTURE, c);
    opened = c;
    s->count = 0;
    return OK;
}

int capture_mode(int mode) {
    int before = (int)mode_of_thread;
    mode_of_thread = (CaptureMode)mode;
    return before;
}

bool capture_implicit(const Device *d) {
    for (Capture *c = opened; c; c = c->next)
        if (c->origin->device == d && c->origin->blocking) return true;
    return false;
}

int capture_spoiled(void) {
    int code = OK;
    if (mode_of_thread == RELAXED) return OK;
    for (Capture *c = opened; c; c = c->next)
        if (c->mode == GLOBAL || (c->mode == THREAD_LOCAL && pthread_equal(c->thread, pthread_self())))
            c->invalid = true, code = CAPTURE_UNSUPPORTED;
    return code;
}

void captures_reset(void) { opened = NULL, mode_of_thread = GLOBAL; }

static void come_after(Stream *s, int node) {
    for (int i = 0; i < s->count; i++)
        if (s->nodes[i] == node) return;
    s->nodes = realloc(s->nodes, (size_t)(s->count + 1) * sizeof *s->nodes);
    s->nodes[s->count++] = node;
}

// A stream that waits for a captured event takes part in the capture from here on.
void capture_join(Stream *s, Capture *c, const int *nodes, int count) {
    if (!s->capture) {
        s->capture = c;
        s->count = 0;
    }
    for (int i = 0; i < count; i++) come_after(s, nodes[i]);
}

static Node *node_new(Capture *c) {
    if (c->count == c->room) {
        c->room = c->room ? 2 * c->room : 64;
        c->nodes = realloc(c->nodes, (size_t)c->room * sizeof *c->nodes);
    }
    Node *n = &c->nodes[c->count++];
    memset(n, 0, sizeof *n);
    return n;
}

int capture_add(Stream *s, Command *command) {
    Capture *c = s->capture;
    if (c->invalid) {
        command_free(command);
        return CAPTURE_INVALIDATED;
    }
    Node *n = node_new(c);
    n->command = command;
    n->count = s->count;
    n->after = malloc((size_t)(s->count + 1) * sizeof *n->after);
    memcpy(n->after, s->nodes, (size_t)s->count * sizeof *n->after);
    if (command->launch) {
        n->has_priority = true;
        n->priority = command->launch->has_priority ? command->launch->priority : s->priority;
    }
    s->count = 0;
    come_after(s, c->count - 1);
    return OK;
}

// Handles of nodes are their numbers, from 1.
static int number_of(const void *node) { return (int)(uintptr_t)node - 1; }

void capture_nodes(Stream *s, void *const *nodes, size_t count, bool set) {
    if (set) s->count = 0;
    for (size_t i = 0; i < count; i++) come_after(s, number_of(nodes[i]));
}

void *capture_embed(Capture *c, Graph *g, void *const *after, size_t count) {
    int first = c->count;
    bool *has_next = calloc((size_t)g->count + 1, 1);
    int ends = 0;
    for (int i = 0; i < g->count; i++) {
        const Node *from = &g->nodes[i];
        Node *n = node_new(c);
        *n = *from;
        n->command = node_command(from);
        n->count = from->count ? from->count : (int)count;
        n->after = malloc(((size_t)n->count + 1) * sizeof *n->after);
        for (int j = 0; j < n->count; j++) n->after[j] = from->count ? first + from->after[j] : number_of(after[j]);
        for (int j = 0; j < from->count; j++) has_next[from->after[j]] = true;
    }
    for (int i = 0; i < g->count; i++) ends += !has_next[i];
    Node *join = node_new(c);
    join->command = command_new(NOTHING, c->origin->device);
    join->after = malloc(((size_t)ends + count + 1) * sizeof *join->after);
    for (int i = 0; i < g->count; i++)
        if (!has_next[i]) join->after[join->count++] = first + i;
    for (size_t i = 0; !g->count && i < count; i++) join->after[join->count++] = number_of(after[i]);
    free(has_next);
    return (void *)(uintptr_t)c->count;
}

void *capture_record(Capture *c, Event *e, void *const *after, size_t count) {
    Node *n = node_new(c);
    n->command = command_new(RECORD_OUTSIDE, e->device);
    n->command->event = e;
    n->loose = true;
    void *node = (void *)(uintptr_t)c->count;
    for (size_t i = 0; i < count; i++) capture_edges(c, &after[i], &node, 1);
    return node;
}

void capture_edges(Capture *c, void *const *from, void *const *to, size_t count) {
    for (size_t i = 0; i < count; i++) {
        Node *n = &c->nodes[number_of(to[i])];
        n->after = realloc(n->after, ((size_t)n->count + 1) * sizeof *n->after);
        n->after[n->count++] = number_of(from[i]);
    }
}

static void free_nodes(Node *nodes, int count) {
    for (int i = 0; i < count; i++) {
        command_free(nodes[i].command);
        free(nodes[i].after);
    }
    free(nodes);
}

// Whether everything that streams captured comes before what the origin has come to: all forks are joined.
static bool joined(const Capture *c, const Stream *origin) {
    bool *seen = calloc((size_t)c->count + 1, 1);
    for (int i = 0; i < origin->count; i++) seen[origin->nodes[i]] = true;
    for (int i = c->count; i-- > 0;)  // edges lead to smaller numbers, but from loose nodes
        for (int j = 0; seen[i] && j < c->nodes[i].count; j++) seen[c->nodes[i].after[j]] = true;
    bool all = true;
    for (int i = 0; i < c->count; i++) all &= seen[i] || c->nodes[i].loose;
    free(seen);
    return all;
}

int capture_end(Stream *s, Graph **made) {
    Capture *c = s->capture;
    if (!c) return INVALID_VALUE;
    if (c->origin != s) return CAPTURE_UNMATCHED;
    int code = c->invalid ? CAPTURE_INVALIDATED : joined(c, s) ? OK : CAPTURE_UNJOINED;
    streams_leave(c);
    if (code) free_nodes(c->nodes, c->count);
    else {
        *made = calloc(1, sizeof **made);
        (*made)->nodes = c->nodes;
        (*made)->count = c->count;
        (*made)->handle = handle_of(GRAPH, *made);
    }
    c->nodes = NULL;
    c->count = 0;
    for (Capture **at = &opened; *at; at = &(*at)->next)
        if (*at == c) {
            *at = c->next;
            break;
        }
    handle_gone(c->handle);
    c->ended = true;  // it stays: events that were recorded in it point to it
    return code;
}

// ---------------------------------------------------------------- graphs

Command *node_command(const Node *n) {
    const Command *from = n->command;
    Command *c = command_new(from->verb, from->device);
    *c = *from;
    c->next = NULL;
    c->launch = from->launch ? launch_again(from->launch) : NULL;
    if (c->collective) collective_kept(c->collective);
    return c;
}

static Node *copy_nodes(const Node *from, int count) {
    Node *nodes = malloc(((size_t)count + 1) * sizeof *nodes);
    for (int i = 0; i < count; i++) {
        nodes[i] = from[i];
        nodes[i].command = node_command(&from[i]);
        nodes[i].after = malloc(((size_t)from[i].count + 1) * sizeof *nodes[i].after);
        memcpy(nodes[i].after, from[i].after, (size_t)from[i].count * sizeof *nodes[i].after);
    }
    return nodes;
}

static char priorities[256];  // of the kernels of the graph that was made last, in the order of capture
const char *standin_priorities(void) { return priorities; }

int graph_instantiate(Graph *g, bool keep_priorities, Exec **made) {
    size_t used = 0;
    priorities[0] = 0;
    for (int i = 0; i < g->count && used + 16 < sizeof priorities; i++)
        if (g->nodes[i].has_priority)
            used += (size_t)sprintf(priorities + used, "%d ", keep_priorities ? g->nodes[i].priority : 0);
    Exec *e = calloc(1, sizeof *e);
    e->nodes = copy_nodes(g->nodes, g->count);
    e->count = g->count;
    e->nexts = calloc((size_t)e->count + 1, sizeof *e->nexts);
    e->next = calloc((size_t)e->count + 1, sizeof *e->next);
    for (int i = 0; i < e->count; i++)
        for (int j = 0; j < e->nodes[i].count; j++) e->nexts[e->nodes[i].after[j]]++;
    for (int i = 0; i < e->count; i++) e->next[i] = malloc(((size_t)e->nexts[i] + 1) * sizeof(int)), e->nexts[i] = 0;
    for (int i = 0; i < e->count; i++)
        for (int j = 0; j < e->nodes[i].count; j++) {
            int before = e->nodes[i].after[j];
            e->next[before][e->nexts[before]++] = i;
        }
    e->handle = handle_of(EXEC, e);
    *made = e;
    return OK;
}

void graph_destroy(Graph *g) {
    handle_gone(g->handle);
    free_nodes(g->nodes, g->count);
    free(g);
}

static void exec_free(Exec *e) {
    free_nodes(e->nodes, e->count);
    for (int i = 0; i < e->count; i++) free(e->next[i]);
    free(e->next);
    free(e->nexts);
    free(e);
}

void exec_destroy(Exec *e) {
    handle_gone(e->handle);
    e->gone = true;
    if (!e->launches) exec_free(e);
}

// ---------------------------------------------------------------- replay: `ready` lists the nodes that may run

void replay_begins(Command *c) {
    Exec *e = c->exec;
    c->exec_nodes = e->count;
    c->outside = calloc((size_t)e->count + 1, sizeof *c->outside);
    for (Verb verb = WAIT_OUTSIDE; verb >= RECORD_OUTSIDE; verb--)  // waits know the records before the launch alone
        for (int i = 0; i < e->count; i++)
            if (e->nodes[i].command->verb == verb)
                c->outside[i] = record_of(e->nodes[i].command->event, verb == RECORD_OUTSIDE);
}

// A node's command, to be run in this launch.
static Command *started(const Command *c, int node) {
    Command *made = node_command(&c->exec->nodes[node]);
    if (c->outside[node]) {
        made->verb = made->verb == RECORD_OUTSIDE ? RECORD : WAIT_EVENT;
        made->record = kept(c->outside[node]);
    }
    return made;
}

static void start(Command *c) {
    Exec *e = c->exec;
    e->running = true;
    c->left = e->count;
    c->indegree = calloc(2 * (size_t)e->count + 1, sizeof *c->indegree);
    c->ready = c->indegree + e->count;
    c->running = calloc((size_t)e->count + 1, sizeof *c->running);
    for (int i = 0; i < e->count; i++) {
        c->indegree[i] = e->nodes[i].count;
        if (!c->indegree[i]) c->ready[c->readies++] = i;
    }
}

// A launch that may begin early takes a step behind the only node that it comes after.
static bool early_step(Command *c) {
    const Exec *e = c->exec;
    for (int i = 0; i < c->readies; i++) {
        int before = c->ready[i];
        if (!c->running[before] || c->running[before]->verb != LAUNCH) continue;
        for (int j = 0; j < e->nexts[before]; j++) {
            int node = e->next[before][j];
            const Command *made = e->nodes[node].command;
            if (e->nodes[node].count != 1 || made->verb != LAUNCH || !made->launch->early) continue;
            if (!launch_lets(c->running[before]->launch, true)) continue;
            if (!c->running[node]) c->running[node] = node_command(&e->nodes[node]);
            if (command_step_early(c->running[before], true, c->running[node])) return true;
        }
    }
    return false;
}

bool replay_ready(Command *c) {
    if (!c->running) return !c->exec->running;  // one launch of an exec at a time
    if (!c->left) return true;
    if (!drawn(4) && early_step(c)) {
        c->chosen = -1;
        return true;
    }
    if (!c->readies) return false;
    int first = (int)drawn((uint64_t)c->readies);
    for (int i = 0; i < c->readies; i++) {
        int place = (first + i) % c->readies, node = c->ready[place];
        if (!c->running[node]) c->running[node] = started(c, node);
        if (command_ready(c->running[node])) {
            c->chosen = place;
            return true;
        }
        if (c->running[node]->delay) {  // a step that only its delay takes
            c->chosen = -1;
            return true;
        }
    }
    return false;
}

bool replay_step(Command *c) {
    Exec *e = c->exec;
    if (!c->running) start(c);
    else if (c->chosen < 0) return false;
    else if (c->left) {
        int node = c->ready[c->chosen];
        if (!command_step(c->running[node])) return false;
        command_free(c->running[node]);
        c->running[node] = NULL;
        c->ready[c->chosen] = c->ready[--c->readies];
        c->left--;
        for (int j = 0; j < e->nexts[node]; j++)
            if (!--c->indegree[e->next[node][j]]) c->ready[c->readies++] = e->next[node][j];
    }
    if (c->left) return false;
    e->running = false;
    if (!--e->launches && e->gone) exec_free(e);
    return true;
}
