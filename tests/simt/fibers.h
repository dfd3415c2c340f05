// Threads of a kernel as fibers of one CPU thread, and their orders, drawn from a seed.
#pragma once
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

namespace simt {

constexpr int STACK = 64 << 10;

struct Fiber { ucontext_t context; jmp_buf place; char* stack; bool begun, ended; };

static ucontext_t scheduler;  // where a fiber's first switch comes from
static jmp_buf back;
static Fiber* running;
static uint64_t state;
static void (*body)();

static uint32_t draw(uint32_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % below;
}

// Only a fiber's first switch is the library's: it asks the system to mask signals, at every one.
static void yield() {
    if (!_setjmp(running->place)) _longjmp(back, 1);
}

static void go_on(Fiber& f) {
    if (_setjmp(back)) return;
    running = &f;
    if (f.begun) _longjmp(f.place, 1);
    f.begun = true;
    swapcontext(&scheduler, &f.context);
}

static void run() {
    body();
    running->ended = true;
    yield();
}

static void make_ready(Fiber& f) {
    if (!f.stack) f.stack = (char*)malloc(STACK);
    f.begun = f.ended = false;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = STACK;
    f.context.uc_link = nullptr;
    makecontext(&f.context, run, 0);
}

}  // namespace simt
