// The face of libcuda.so.1: capture and graphs.
#include "cuda_face.h"

#include <string.h>

enum { USE_NODE_PRIORITY = 8 };

int cuStreamBeginCapture_v2(Handle stream, int mode) {
    CALL(cuStreamBeginCapture);
    STREAM_OF(s, stream);
    return stream ? capture_begin(s, mode) : CAPTURE_UNSUPPORTED;
}
int cuStreamEndCapture(Handle stream, Handle *graph) {
    CALL(cuStreamEndCapture);
    STREAM_OF(s, stream);
    Graph *g = NULL;
    int code = capture_end(s, &g);
    *graph = code ? NULL : g->handle;
    return code;
}
int cuStreamIsCapturing(Handle stream, int *status) {
    CALL(cuStreamIsCapturing);
    STREAM_OF(s, stream);
    if (!stream && capture_implicit(s->device)) return CAPTURE_IMPLICIT;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    return OK;
}
int cuStreamGetCaptureInfo(Handle stream, int *status, uint64_t *number, Handle *graph, void ***after, uint64_t **edges,
                           size_t *count) {
    static __thread void *nodes[256];
    static uint64_t plain[256];  // edges of the ordinary kind, 8 bytes each
    CALL(cuStreamGetCaptureInfo);
    STREAM_OF(s, stream);
    if (!stream && capture_implicit(s->device)) return CAPTURE_IMPLICIT;
    *status = !s->capture ? 0 : s->capture->invalid ? 2 : 1;
    if (*status != 1) return OK;
    if (number) *number = s->capture->number;
    if (graph) *graph = s->capture->handle;
    for (int i = 0; i < s->count && i < 256; i++) nodes[i] = (void *)(uintptr_t)(s->nodes[i] + 1);
    if (after) *after = nodes;
    if (edges) *edges = plain;
    if (count) *count = (size_t)s->count;
    return OK;
}
int cuStreamUpdateCaptureDependencies(Handle stream, void **nodes, void *edges, size_t count, unsigned flags) {
    CALL(cuStreamUpdateCaptureDependencies);
    STREAM_OF(s, stream);
    if (edges || flags > 1) return INVALID_VALUE;
    if (!s->capture || s->capture->invalid) return CAPTURE_INVALIDATED;
    capture_nodes(s, nodes, count, flags == 1);
    return OK;
}
int cuThreadExchangeStreamCaptureMode(int *mode) {
    CALL(cuThreadExchangeStreamCaptureMode);
    if (*mode < GLOBAL || *mode > RELAXED) return INVALID_VALUE;
    *mode = capture_mode(*mode);
    return OK;
}
int cuGraphGetNodes(Handle graph, const Node **nodes, size_t *count) {
    CALL(cuGraphGetNodes);
    const Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    for (size_t i = 0; nodes && i < *count && i < (size_t)g->count; i++) nodes[i] = &g->nodes[i];
    if (!nodes || *count > (size_t)g->count) *count = (size_t)g->count;
    return OK;
}
int cuGraphNodeGetType(const Node *node, int *type) {
    CALL(cuGraphNodeGetType);
    return *type = node->command->launch ? 0 : 5, OK;  // a kernel; all others are called empty here
}
typedef struct {
    Handle function;
    unsigned grid[3], block[3], smem;
    void **values, **extra;
    Handle kernel, context;
} KernelNode;
int cuGraphKernelNodeGetParams_v2(const Node *node, KernelNode *found) {
    CALL(cuGraphKernelNodeGetParams);
    const Launch *l = node->command->launch;
    if (!l) return INVALID_VALUE;
    Function *f = (Function *)l->function;
    if (!strncmp(f->name, "library_", 8)) {  // its function is the library's own: nobody gives it back
        f->handle = handle_of(FUNCTION, f);
        world.live[FUNCTION]--;
    }
    *found = (KernelNode){f->handle, {(unsigned)l->grid, 1, 1}, {(unsigned)l->block, 1, 1}, (unsigned)l->smem, 0, 0, 0, 0};
    return OK;
}
int cuGraphAddChildGraphNode(Handle *node, Handle graph, void **after, size_t count, Handle child) {
    CALL(cuGraphAddChildGraphNode);
    Capture *c = object_of(CAPTURE, graph, called_.name);  // graphs are built by captures alone here
    Graph *g = object_of(GRAPH, child, called_.name);
    if (!c || !g) return INVALID_HANDLE;
    *node = capture_embed(c, g, after, count);
    return OK;
}
int cuGraphAddEventRecordNode(void **node, Handle graph, void **after, size_t count, Handle event) {
    CALL(cuGraphAddEventRecordNode);
    Capture *c = object_of(CAPTURE, graph, called_.name);
    EVENT_OF(e, event);
    if (!c) return INVALID_HANDLE;
    *node = capture_record(c, e, after, count);
    return OK;
}
int cuGraphAddDependencies_v2(Handle graph, void **from, void **to, void *edges, size_t count) {
    CALL(cuGraphAddDependencies);
    Capture *c = object_of(CAPTURE, graph, called_.name);
    if (!c) return INVALID_HANDLE;
    if (edges) return INVALID_VALUE;
    capture_edges(c, from, to, count);
    return OK;
}
int cuGraphInstantiateWithFlags(Handle *exec, Handle graph, unsigned long long flags) {
    CALL(cuGraphInstantiate);
    Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    Exec *e = NULL;
    int code = graph_instantiate(g, flags == USE_NODE_PRIORITY, &e);
    if (!code) *exec = e->handle;
    return code;
}
int cuGraphDestroy(Handle graph) {
    CLOSING(cuGraphDestroy);
    Graph *g = object_of(GRAPH, graph, called_.name);
    if (!g) return INVALID_HANDLE;
    graph_destroy(g);
    return CLOSED(OK);
}
int cuGraphExecDestroy(Handle exec) {
    CLOSING(cuGraphExecDestroy);
    Exec *e = object_of(EXEC, exec, called_.name);
    if (!e) return INVALID_HANDLE;
    exec_destroy(e);
    return CLOSED(OK);
}
int cuGraphUpload(Handle exec, Handle stream) {
    CALL(cuGraphUpload);
    STREAM_OF(s, stream);
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    return object_of(EXEC, exec, called_.name) ? OK : INVALID_HANDLE;
}
int cuGraphLaunch(Handle exec, Handle stream) {
    CALL(cuGraphLaunch);
    STREAM_OF(s, stream);
    Exec *e = object_of(EXEC, exec, called_.name);
    if (!e) return INVALID_HANDLE;
    if (s->capture) return s->capture->invalid = true, CAPTURE_UNSUPPORTED;
    Command *c = command_new(REPLAY, s->device);
    c->exec = e;
    e->launches++;
    replay_begins(c);
    return stream_submit(s, c);
}
