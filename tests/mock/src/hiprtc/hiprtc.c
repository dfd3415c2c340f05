// libhiprtc.so: it reads what architecture is asked for and what kernels the source names, and makes no code. A header
// that a source includes must be given, under the name that the source has for it. What it gives is for the stand-in of libamdhip64.so alone: "STANDIN-CODE gfx90a", then a line "entry NAME" for each kernel.
#define _GNU_SOURCE
#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, INVALID_INPUT = 3, INVALID_OPTION = 5, COMPILATION = 6, HEADERS = 8 };

typedef struct {
    char *source, *code, *log, *headers[HEADERS], *names[HEADERS];
    int count;                       // of headers
} Program;

int hiprtcVersion(int *major, int *minor) { return *major = 7, *minor = 0, OK; }

int hiprtcCreateProgram(Program **program, const char *source, const char *name, int headers, const char **texts,
                        const char **names) {
    (void)name;
    if (headers > HEADERS) return INVALID_INPUT;
    *program = calloc(1, sizeof **program);
    (*program)->count = headers;
    for (int i = 0; i < headers; i++) (*program)->headers[i] = strdup(texts[i]), (*program)->names[i] = strdup(names[i]);
    (*program)->source = strdup(source);
    (*program)->code = strdup("");
    (*program)->log = strdup("");
    return OK;
}

int hiprtcDestroyProgram(Program **program) {
    for (int i = 0; i < (*program)->count; i++) free((*program)->headers[i]), free((*program)->names[i]);
    free((*program)->source);
    free((*program)->code);
    free((*program)->log);
    free(*program);
    return *program = NULL, OK;
}

// The value of -DNAME=VALUE, or the name itself.
static void expand(char *name, size_t room, int count, const char **options) {
    size_t length = strlen(name);
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "-D", 2) && !strncmp(options[i] + 2, name, length) && options[i][2 + length] == '=') {
            snprintf(name, room, "%s", options[i] + 3 + length);
            return;
        }
}

// The identifier before the parameters of the kernel that starts at `text`, after its attributes.
static bool kernel_name(const char *text, char *name, size_t room) {
    while (*text && *text != ';' && *text != '{') {
        if (!isalpha((unsigned char)*text) && *text != '_') {
            text++;
            continue;
        }
        size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789");
        const char *after = text + length + strspn(text + length, " \n");
        if (*after == '(' && strncmp(text, "__", 2)) {
            snprintf(name, room, "%.*s", (int)length, text);
            return true;
        }
        if (*after == '(') after = strchr(after, ')') ? strchr(after, ')') + 1 : after + 1;  // __launch_bounds__(…)
        text = after;
    }
    return false;
}

// The first header that a text includes and nobody has given, in `name`.
static bool missing_header(const Program *p, const char *text, char *name, size_t room) {
    for (const char *at = text; (at = strstr(at, "#include \""));) {
        at += strlen("#include \"");
        snprintf(name, room, "%.*s", (int)strcspn(at, "\"\n"), at);
        int i = 0;
        while (i < p->count && strcmp(p->names[i], name)) i++;
        if (i == p->count) return true;
    }
    return false;
}

static int refused(Program *p, const char *what, const char *name) {
    char line[320];
    snprintf(line, sizeof line, "%s%s\n", what, name);
    free(p->log);
    p->log = strdup(line);
    return COMPILATION;
}

int hiprtcCompileProgram(Program *p, int count, const char **options) {
    const char *arch = NULL;
    for (int i = 0; i < count; i++)
        if (!strncmp(options[i], "--offload-arch=", 15)) arch = options[i] + 15;
    if (!arch) return INVALID_OPTION;
    char header[256];
    for (int i = -1; i < p->count; i++)
        if (missing_header(p, i < 0 ? p->source : p->headers[i], header, sizeof header))
            return refused(p, "no header ", header);
    char *code = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&code, &size);
    fprintf(out, "STANDIN-CODE %s\n", arch);
    int kernels = 0;
    for (const char *at = p->source; (at = strstr(at, "__global__")); at++) {
        char name[256];
        if (!kernel_name(at + strlen("__global__"), name, sizeof name)) continue;
        expand(name, sizeof name, count, options);
        fprintf(out, "entry %s\n", name);
        kernels++;
    }
    fclose(out);
    free(p->code);
    p->code = code;
    return kernels ? OK : refused(p, "the source names no kernel", "");
}

int hiprtcGetProgramLogSize(Program *p, size_t *size) { return *size = strlen(p->log) + 1, OK; }
int hiprtcGetProgramLog(Program *p, char *log) { return strcpy(log, p->log), OK; }
int hiprtcGetCodeSize(Program *p, size_t *size) { return *size = strlen(p->code) + 1, OK; }
int hiprtcGetCode(Program *p, char *code) { return strcpy(code, p->code), OK; }
