// Launches of a CUDA kernel on the CPU: its waits, its signals and its numbers, without a GPU. `nvidia.py` puts this before
// the kernel's source, in which it has made each `asm` statement a call of the function here that does the same.
//
// Every thread is a fiber; all resident blocks run at once, in an order drawn from a seed. What is asynchronous (TMA,
// cp.async, wgmma) happens at any time between its issue and the wait for it. Who may rely on which write is `order.h`'s.
#include "blocks.h"

namespace simt {

inline float power_of_2(float x) { return __builtin_exp2f(x); }

// elect.sync: all lanes of a warp come, and one of them is meant.
static bool elected() {
    meet(warps[warp()], 32);
    return number() % 32 == 0;
}

// ---------------------------------------------------------------- TMA

static u32 item_of(const EncodedMap* m) { return m->type == 7 ? 4 : m->type == 0 ? 1 : 2; }
static bool inside(const EncodedMap* m, int x, int y) { return x >= 0 && y >= 0 && (u64)x < m->columns && (u64)y < m->rows; }

// Elements of a row that are all ordered, or none. Of scales, some may be needed that others write later.
static u32 part_of(const EncodedMap* m) { return m->swizzle == 128 ? m->box_columns : 1; }

static void load_box(u32 to, const void* map, int x, int y, u32 barrier, u32 mask) {
    const EncodedMap* m = (const EncodedMap*)map;
    if (load_count == LOADS) abort();
    Load& l = loads[load_count++] = {m, x, y, me().block, me().block / cluster_size * cluster_size, to, barrier, mask, false, {}};
    const u64 wide = (u64)x < m->columns ? m->columns - (u64)x < m->box_columns ? m->columns - (u64)x : m->box_columns : 0;
    const u32 part = part_of(m);
    for (u32 r = 0; r < m->box_rows; ++r)
        for (u32 i = 0; i < wide && inside(m, x, y + (int)r); i += part) {
            const u64 at = m->address + (y + r) * m->pitch + (u64)(x + i) * item_of(m);
            if (!check_read(number(), at, (wide - i < part ? wide - i : part) * item_of(m), true, "TMA", hint)) l.unordered[r] |= 1u << i / part;
        }
}
static void load_now(Load& l) {
    const u32 item = item_of(l.map);
    l.done = true;
    for (int c = 0; c < cluster_size; ++c) {
        const int target = l.mask ? l.cluster + c : l.block;
        if (l.mask ? !(l.mask >> c & 1) : c > 0) continue;
        for (u32 r = 0; r < l.map->box_rows; ++r)
            for (u32 i = 0; i < l.map->box_columns; ++i) {
                const u32 at = swizzled((l.to & 0xffffff) + (r * l.map->box_columns + i) * item, l.map->swizzle);
                char* to = blocks[target].shared + at;
                const int x = l.x + (int)i, y = l.y + (int)r;
                if (l.unordered[r] >> i / part_of(l.map) & 1) memset(to, 0xFF, item);   // it may be as old as can be
                else if (inside(l.map, x, y)) memcpy(to, (void*)(l.map->address + (u64)y * l.map->pitch + (u64)x * item), item);
                else memset(to, 0, item);
            }
        Barrier& b = usable_barrier(blocks[target], l.barrier);
        b.bytes -= l.map->box_rows * l.map->box_columns * item;
        check_phase(b);
    }
    progress = 0;
}

// st.async: a block of the cluster finds it behind its barrier's phase.
static void store_there(u32 at, u32 barrier, u32 cta, float a, float b, float c, float d) {
    yield_now();
    Block& target = blocks[me().block / cluster_size * cluster_size + (int)cta];
    const float all[] = {a, b, c, d};
    memcpy(target.shared + (at & 0xffffff), all, sizeof all);
    Barrier& come = usable_barrier(target, barrier);
    come.bytes -= sizeof all;
    check_phase(come);
    progress = 0;
}

static void store_box(const void* map, int x, int y, u32 from) {
    Lane& t = me();
    const EncodedMap* m = (const EncodedMap*)map;
    const u32 bytes = m->box_rows * m->box_columns * item_of(m);
    for (u32 i = 0; i < bytes / 4; ++i) {
        const Written w = block().stored[(from & 0xffffff) / 4 + i];
        if (w.who >= 0 && !knows().known.has(w.who, w.number, true)) {
            found(fault, "TMA stores what thread %d has staged, not ordered behind it", w.who);
            break;
        }
    }
    if (t.store_count == 64) abort();
    t.stores[t.store_count++] = {m, x, y, from, t.store_groups, false, false};
    ++t.store_groups;
}
// It is written as soon as it is read: nobody may rely on that before the wait and the fence.
static void store_read(Lane& t, int i) {
    Lane::Store& s = t.stores[i];
    const u32 item = item_of(s.map), bytes = s.map->box_rows * s.map->box_columns * item;
    s.read = true;
    for (u32 b = 0; b < bytes; b += item) {
        const int x = s.x + (int)(b / item % s.map->box_columns), y = s.y + (int)(b / item / s.map->box_columns);
        if (!inside(s.map, x, y)) continue;
        const u64 to = s.map->address + (u64)y * s.map->pitch + (u64)x * item;
        memcpy((void*)to, shared_at(swizzled(s.from + b), t.block), item);
        if (const Region* r = region_of(to)) {
            if (!b) check_write((int)(&t - lanes), r, "TMA");
            check_free(to, item, "TMA");
            mark(to, item, (int)(&t - lanes), NOT_YET);
        }
    }
    progress = 0;
}
static void commit_no_stores() { ++me().store_groups; }
// Until at most N of the thread's groups of stores still read shared memory (`reading`), or are not done.
static void wait_stores(int most, bool reading) {
    Lane& t = me();
    for (int i = 0; i < t.store_count; ++i) {
        if (t.stores[i].group >= t.store_groups - most) continue;
        if (!t.stores[i].read) store_read(t, i);
        if (!reading) t.stores[i].done = true;
    }
}
static void fence_async() {          // the thread's stores that it has waited for become its writes
    Lane& t = me();
    int kept = 0;
    for (int i = 0; i < t.store_count; ++i) {
        Lane::Store& s = t.stores[i];
        if (!s.done) {
            t.stores[kept++] = s;
            continue;
        }
        for (u32 r = 0; r < s.map->box_rows; ++r)
            if (inside(s.map, s.x, s.y + (int)r)) {
                const u64 wide = s.map->columns - s.x < s.map->box_columns ? s.map->columns - s.x : s.map->box_columns;
                mark(s.map->address + (u64)(s.y + r) * s.map->pitch + (u64)s.x * item_of(s.map), wide * item_of(s.map), number(), knows().known.all[number()]);
            }
    }
    t.store_count = kept;
    fence_proxy(number());
}

// ---------------------------------------------------------------- numbers

static float bits_to_float(u32 v) { return __builtin_bit_cast(float, v); }
static float wide(unsigned short x, bool half) { return half ? (float)__builtin_bit_cast(_Float16, x) : bits_to_float((u32)x << 16); }
static unsigned short narrow(float f, bool half) {
    if (half) return __builtin_bit_cast(unsigned short, (_Float16)f);
    const u32 u = __builtin_bit_cast(u32, f);
    if ((u & 0x7fffffff) > 0x7f800000) return (unsigned short)(u >> 16 | 0x40);
    return (unsigned short)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
static u32 pack_words(float high, float low, bool half) { return (u32)narrow(high, half) << 16 | narrow(low, half); }

// ---------------------------------------------------------------- wgmma

enum Kind { BF16, F16, E4M3, E5M2 };
static float wide_byte(unsigned char x, Kind kind) {
    const int mantissa = kind == E4M3 ? 3 : 2, bias = kind == E4M3 ? 7 : 15;
    const int exponent = (x & 127) >> mantissa, rest = x & ((1 << mantissa) - 1);
    if (kind == E4M3 ? (x & 127) == 127 : exponent == 31 && rest) return __builtin_nanf("");
    if (kind == E5M2 && exponent == 31) return x & 128 ? -__builtin_inff() : __builtin_inff();
    const float size = __builtin_ldexpf((float)(exponent ? rest + (1 << mantissa) : rest), (exponent ? exponent : 1) - bias - mantissa);
    return x & 128 ? -size : size;
}

static Group& group() { return groups[number() / 128]; }

static void multiply_now(Group& g, int first_thread, Kind left, Kind right, int n, bool left_t, bool right_t) {
    Product& p = g.products[g.done++];
    static float a[64][32], b[256][32];
    const int item = left >= E4M3 ? 1 : 2, deep = 32 / item;
    const int from = lanes[first_thread].block;
    auto part = [&](u64 d, Kind kind, bool t, int i, int k) {
        const u32 at = (u32)(d & 0x3fff) << 4, lead = (u32)(d >> 16 & 0x3fff) << 4, step = (u32)(d >> 32 & 0x3fff) << 4;
        const u32 place = t ? at + i / 64 * lead + k / 8 * step + k % 8 * 128 + i % 64 * 2 : at + i / 8 * step + i % 8 * 128 + k * item;
        unsigned short x = 0;
        memcpy(&x, shared_at(swizzled(place), from), item);
        return item == 1 ? wide_byte((unsigned char)x, kind) : wide(x, kind == F16);
    };
    for (int k = 0; k < deep; ++k) {
        for (int i = 0; i < 64; ++i) a[i][k] = part(p.left, left, left_t, i, k);
        for (int i = 0; i < n; ++i) b[i][k] = part(p.right, right, right_t, i, k);
    }
    for (int t = 0; t < 128; ++t) {
        const int row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
        for (int j = 0; j < n / 2; ++j) {
            const float *x = a[row + (j & 2 ? 8 : 0)], *y = b[j / 4 * 8 + column + (j & 1)];
            float sum = p.use ? p.sums[t][j] : 0;
            for (int k = 0; k < deep; ++k) sum += x[k] * y[k];
            p.sums[t][j] = sum;
        }
    }
    progress = 0;
}
static void (*multiply_next)(Group& g, int first_thread);

template <int N, Kind LEFT, Kind RIGHT, bool LEFT_TURNED, bool RIGHT_TURNED> static void wgmma(float* sums, u64 left, u64 right, int use) {
    Group& g = group();
    Lane& t = me();
    multiply_next = [](Group& g, int first) { multiply_now(g, first, LEFT, RIGHT, N, LEFT_TURNED, RIGHT_TURNED); };
    if (t.given == g.room) {
        g.room = g.room ? 2 * g.room : 256;
        g.products = (Product*)realloc(g.products, (size_t)g.room * sizeof *g.products);
        memset((void*)(g.products + t.given), 0, (size_t)(g.room - t.given) * sizeof *g.products);
    }
    Product& p = g.products[t.given++];
    p.left = left, p.right = right, p.use = use, p.sums[number() % 128] = sums;
    ++p.given;
}
static void wgmma_commit() {
    Lane& t = me();
    t.commits[t.committed++ % 256] = t.given;
}
static void wgmma_wait(int most) {
    Lane& t = me();
    if (t.committed <= most) return;
    Group& g = group();
    const int until = t.commits[(t.committed - 1 - most) % 256];
    while (g.done < until) {
        wait_until([&] { return g.products[g.done].given == 128 || g.done >= until; });
        if (g.done < until) multiply_next(g, number() / 128 * 128);
    }
}

// ---------------------------------------------------------------- matrices of a warp

static void load_matrices(u32 address, bool turned, u32& a, u32& b, u32& c, u32& d) {
    u32 all[32], v[4];
    exchange(address, all);
    const int lane = number() % 32;
    for (int i = 0; i < 4; ++i) {
        if (!turned) memcpy(&v[i], shared_at(all[8 * i + lane / 4]) + lane % 4 * 4, 4);
        else
            for (int h = 0; h < 2; ++h)
                memcpy((char*)&v[i] + 2 * h, shared_at(all[8 * i + lane % 4 * 2 + h]) + lane / 4 * 2, 2);
    }
    a = v[0], b = v[1], c = v[2], d = v[3];
}
static void store_matrices(u32 address, bool turned, u32 a, u32 b, u32 c, u32 d) {
    u32 all[32];
    exchange(address, all);
    const int lane = number() % 32;
    const u32 v[4] = {a, b, c, d};
    for (int i = 0; i < 4; ++i) {
        const u32 at = all[8 * i + lane / 4] + lane % 4 * 4;
        if (turned)
            for (int h = 0; h < 2; ++h)
                memcpy(shared_at(all[8 * i + lane % 4 * 2 + h]) + lane / 4 * 2, (char*)&v[i] + 2 * h, 2);
        else {
            memcpy(shared_at(at), &v[i], 4);
            stored_shared(at, 4);
        }
    }
}
// d = a · b + d of 16 × 8 × 16: "Matrix Fragments for mma.m16n8k16" of the PTX manual.
template <bool HALF_> static void mma(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    struct Left { u32 a[4]; } left[32];
    struct Right { u32 b[2]; } right[32];
    exchange(Left{{a0, a1, a2, a3}}, left);
    exchange(Right{{b0, b1}}, right);
    const int lane = number() % 32;
    float* d[4] = {&d0, &d1, &d2, &d3};
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 16; ++k) {
            const u32 x = left[lane / 4 * 4 + k % 8 / 2].a[i / 2 + k / 8 * 2], y = right[(lane % 4 * 2 + i % 2) * 4 + k % 8 / 2].b[k / 8];
            *d[i] += wide((unsigned short)(x >> k % 2 * 16), HALF_) * wide((unsigned short)(y >> k % 2 * 16), HALF_);
        }
}

// … of 16 × 8 × 8 in TF32, whose lower bits the tensor core leaves out
static void mma_tf32(float& d0, float& d1, float& d2, float& d3, u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    struct Left { u32 a[4]; } left[32];
    struct Right { u32 b[2]; } right[32];
    exchange(Left{{a0, a1, a2, a3}}, left);
    exchange(Right{{b0, b1}}, right);
    const int lane = number() % 32;
    float* d[4] = {&d0, &d1, &d2, &d3};
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k) {
            const u32 v[2] = {left[lane / 4 * 4 + k % 4].a[i / 2 + k / 4 * 2] & ~0x1fffu,
                              right[(lane % 4 * 2 + i % 2) * 4 + k % 4].b[k / 4] & ~0x1fffu};
            float f[2];
            memcpy(f, v, 8);
            *d[i] += f[0] * f[1];
        }
}

// ---------------------------------------------------------------- cp.async

static void copy_done(Lane& t, Lane::Copy& c) {
    char* to = shared_at(c.to, t.block);
    memset(to, 0, 16);
    if (c.unordered) memset(to, 0xFF, (size_t)c.size);   // it may be as old as can be
    else memcpy(to, c.from, (size_t)c.size);
    c.done = true;
}
static void copy_async(u32 to, const void* from, int size) {
    Lane& t = me();
    const bool unordered = !check_read(number(), (u64)from, (u64)size, false, "cp.async", hint);
    int kept = 0;
    for (int i = 0; i < t.copy_count; ++i)
        if (!t.copies[i].done) t.copies[kept++] = t.copies[i];
    t.copy_count = kept;
    if (kept == 128) abort();
    t.copies[t.copy_count++] = {to, (const u8*)from, size, t.copy_groups, false, unordered};
    if (!draw((u32)lag + 1)) copy_done(t, t.copies[t.copy_count - 1]);
}
static void copy_async_if(u32 to, const void* from, int yes) {
    if (yes) copy_async(to, from, 16);
}
static void copies_commit() { ++me().copy_groups; }
static void copies_wait(int most) {
    Lane& t = me();
    for (int i = 0; i < t.copy_count; ++i)
        if (!t.copies[i].done && t.copies[i].group < t.copy_groups - most) copy_done(t, t.copies[i]);
}

// ---------------------------------------------------------------- flags, counters, fences

static void raised(u32* p) {
    progress = 0;
    keep_promises(p);
}
static void noted(const void* to, u64 bytes) {
    if ((u64)to >= lowest && (u64)to < highest) note_write(number(), to, bytes, "a thread");
}
template <Order ORDER, Scope SCOPE> static u32 load_word(const u32* p) {
    yield_now();
    acquired(number(), p, ORDER, SCOPE);
    return *p;
}
template <Order ORDER, Scope SCOPE> static void store_word(u32* p, u32 v) {
    yield_now();
    *p = v;
    noted(p, sizeof *p);
    released(number(), p, ORDER, SCOPE, true);
    raised(p);
}
template <Order ORDER, Scope SCOPE> static u32 add_word(u32* p, u32 v) {
    yield_now();
    const u32 old = *p;
    *p += v;
    acquired(number(), p, ORDER, SCOPE);
    released(number(), p, ORDER, SCOPE, false);
    return old;
}
static u32 swap_word(u32* p, u32 if_it_is, u32 v) {
    yield_now();
    const u32 old = *p;
    acquired(number(), p, RELAXED, GPU);
    if (old != if_it_is) return old;
    *p = v;
    released(number(), p, RELAXED, GPU, false);
    return old;
}
template <Order ORDER> static u32 look_shared(u32 at) {
    yield_now();
    acquired(number(), shared_at(at), ORDER, CTA);
    return *(u32*)shared_at(at);
}
template <Order ORDER> static void add_shared(u32 at, u32 v) {
    yield_now();
    *(u32*)shared_at(at) += v;
    released(number(), shared_at(at), ORDER, CTA, false);
    progress = 0;
}

static void wait_launch_before() {
    wait_until([] { return gone[0]; });
    knows().known.all[width - OTHERS] = knows().known.tma[width - OTHERS] = 1;   // a launch's end is for both proxies
}
static void let_next_launch() {
    if (block().let) return;
    block().let = true;
    if (++let_count == grid && others_wait()) found(fault, "the next launch may begin while this one still waits");
}

static void nap() { yield_now(); }

template <class... T> static void load_ints(const int* p, T&... to) { ((to = *p++), ...); }
static void store_shared(u32 at, unsigned short low, unsigned short high) {
    const unsigned short both[] = {low, high};
    memcpy(shared_at(at), both, sizeof both);
    stored_shared(at, sizeof both);
}
template <class... T> static void store_shared(u32 at, T... x) {
    const float all[] = {x...};
    memcpy(shared_at(at), all, sizeof all);
    stored_shared(at, sizeof all);
}
template <class... T> static void load_shared(u32 at, float& a, T&... more) {
    const float* p = (const float*)shared_at(at);
    a = *p++;
    ((more = *p++), ...);
}
static void load_shared(u32 at, u32& a, u32& b, u32& c, u32& d) {
    u32 v[4];
    memcpy(v, shared_at(at), 16);
    a = v[0], b = v[1], c = v[2], d = v[3];
}
static void unpack_halves(u32 v, float& low, float& high) {
    low = wide((unsigned short)v, true), high = wide((unsigned short)(v >> 16), true);
}

// To the nearest with 10 bits of mantissa, ties away from zero
static u32 tf32(float f) {
    u32 u;
    memcpy(&u, &f, 4);
    return (u & 0x7fffffffu) < 0x7f800000u ? u + 0x1000u & ~0x1fffu : u;
}

// To the nearest number of fp8, ties to even, at most the largest; NaN is 0x7f
static u32 fp8(Kind kind, float f) {
    const int mantissa = kind == E4M3 ? 3 : 2, least = kind == E4M3 ? -6 : -14;
    const u32 sign = __builtin_signbit(f) ? 0x80u : 0u;
    if (f != f) return 0x7fu;
    const float size = __builtin_fminf(__builtin_fabsf(f), kind == E4M3 ? 448.0f : 57344.0f);
    const int exponent = size < __builtin_ldexpf(1, least) ? least : __builtin_ilogbf(size);
    const u32 steps = (u32)__builtin_rintf(__builtin_ldexpf(size, mantissa - exponent));  // the first bit is the exponent's
    return sign | (((u32)(exponent - least) << mantissa) + steps);
}
static unsigned short pair_of(Kind kind, float high, float low) {
    return (unsigned short)(fp8(kind, high) << 8 | fp8(kind, low));
}

template <class T> static T load_checked(const T* p) {
    check_read(number(), (u64)p, sizeof *p, false, "a thread", fault);
    return *p;
}

// ---------------------------------------------------------------- the launch

static bool draw_events() {
    bool went = false, waiting = false;
    const int often = 1 + lag;
    for (int i = load_first; i < load_count; ++i) {
        if (loads[i].done) {
            if (i == load_first) ++load_first;
            continue;
        }
        waiting = true;
        if (!draw((u32)often)) load_now(loads[i]), went = true;
    }
    if (load_first == load_count) load_first = load_count = 0;
    for (int i = 0; i < grid * per_block; i += 32) {   // lane 0 stores
        Lane& t = lanes[i];
        for (int k = 0; k < t.store_count; ++k)
            if (!t.stores[k].read && !draw((u32)often * 4)) store_read(t, k), went = true;
    }
    for (int i = 0; i < grid * per_block / 128; ++i) {
        Group& g = groups[i];
        if (g.done < g.room && g.products[g.done].given == 128 && !draw((u32)often)) multiply_next(g, i * 128), went = true;
    }
    return went || waiting;
}

static void start_block(int b) {
    Block& k = blocks[b];
    k.begun = true;
    k.left = per_block;
    memset(k.shared, 0xFF, SHARED);
    for (int i = 0; i < SHARED / 4; ++i) k.stored[i] = {-1, 0};
    for (int i = 0; i < per_block; ++i) make_ready(lanes[b * per_block + i]);
}

static int all_run() {
    constexpr int steps[] = {1, 5, 7, 11, 13, 17, 19, 23};   // numbers of threads are a power of two, or three times one
    int active = 0, ended_blocks = 0, other = 0;
    const int count = grid * per_block;
    int* order = (int*)of_launch((size_t)other_count * sizeof(int) + 4);
    for (int i = 0; i < other_count; ++i) order[i] = i;
    const int first_drawn = lowered_count > 0;   // then the launch before goes first
    for (int i = other_count; i-- > 1 + first_drawn;) {
        const int j = first_drawn + (int)draw((u32)(i - first_drawn) + 1), k = order[i];
        order[i] = order[j], order[j] = k;
    }
    int still = -1, until = 0;       // a warp that does not go on for some passes
    for (int pass = 0; ended_blocks < grid; ++pass) {
        if (pass >= until) still = draw(2) ? (int)draw((u32)count / 32) : -1, until = pass + 1 + (int)draw(40);
        while (started < grid && active + cluster_size <= resident)
            for (int c = 0; c < cluster_size; ++c, ++active) start_block(started++);
        const int first = (int)draw((u32)count), step = steps[draw(8)];
        int went = 0;
        for (int n = 0, i = first; n < count; ++n, i = (i + step) % count) {
            Lane& t = lanes[i];
            if (!blocks[t.block].begun || t.ended || i / 32 == still) continue;
            if (t.ready && !t.ready(t.what)) continue;
            ++went;
            go_on(t);
            if (fault[0]) return 2;
            if (t.ended && !--blocks[t.block].left) {
                ++ended_blocks;
                --active;
                progress = 0;
                if (!blocks[t.block].let) ++let_count;
            }
        }
        bool waiting = draw_events();
        if (fault[0]) return 2;
        if (other < other_count) {
            waiting = true;
            if (!draw(16u * (u32)lag) || progress > 200) other_goes(order[other++]);
        }
        if (!went) until = pass;   // nobody is kept still where nobody else goes on
        if (!went && !waiting && still < 0 && ended_blocks < grid && progress > 50) return 1;
        if (++progress > 3000) return 1;
    }
    return 0;
}

static int launch(int blocks_, int threads_, int cluster, int at_once, u64 seed) {
    state = seed * 2 + 1;
    for (int i = 0; i < 4; ++i) draw(2);
    grid = blocks_, per_block = threads_, cluster_size = cluster, resident = at_once, started = let_count = 0;
    lag = 1 + (int)draw(6);
    const int count = grid * per_block;
    order_begins(count);
    static int room;
    if (count > room) {
        lanes = (Lane*)realloc((void*)lanes, (size_t)count * sizeof *lanes);
        for (int i = room; i < count; ++i) lanes[i].stack = nullptr;
        room = count;
    }
    for (int i = 0; i < count; ++i) {
        char* stack = lanes[i].stack;
        memset((void*)&lanes[i], 0, sizeof lanes[i]);
        lanes[i].stack = stack;
        lanes[i].block = i / per_block, lanes[i].thread = i % per_block;
        lanes[i].begun = lanes[i].ended = false;
    }
    blocks = (Block*)of_launch((size_t)grid * sizeof *blocks);
    for (int i = 0; i < grid; ++i) {
        blocks[i].shared = (char*)of_launch(SHARED);
        blocks[i].stored = (Written*)of_launch(SHARED / 4 * sizeof(Written));
    }
    for (int i = 0; groups && i < 64; ++i) free(groups[i].products);
    groups = (Group*)realloc((void*)groups, 64 * sizeof *groups);
    memset((void*)groups, 0, 64 * sizeof *groups);
    warps = (Meeting*)of_launch(((size_t)count / 32 + 1) * sizeof *warps);
    brought = (char(*)[2][16])of_launch((size_t)count * 32);
    if (!loads) loads = (Load*)malloc(LOADS * sizeof *loads);
    load_first = load_count = 0;
    return all_run();
}

// A clock on which no time is twice.
static u64 device_time() {
    static u64 ticks = 1763800000000000000u;
    return ++ticks;
}

struct Axis {
    int (*at)();
    operator int() const { return at(); }
};
struct Index { Axis x; };

}  // namespace simt

// ---------------------------------------------------------------- names that CUDA knows

static const simt::Index threadIdx{{[] { return simt::me().thread; }}};
static const simt::Index blockIdx{{[] { return simt::me().block; }}};
static const simt::Index gridDim{{[] { return simt::grid; }}};

// Vectors, whose stores are seen.
#define VECTOR(NAME, T, ...)                                                     \
    struct NAME {                                                                \
        T __VA_ARGS__;                                                           \
        NAME& operator=(const NAME& v) {                                         \
            memcpy((void*)this, &v, sizeof v);                                   \
            simt::noted(this, sizeof v);                                         \
            return *this;                                                        \
        }                                                                        \
        NAME() = default;                                                        \
        NAME(const NAME&) = default;
VECTOR(uint4, u32, x, y, z, w) uint4(u32 x, u32 y, u32 z, u32 w) : x(x), y(y), z(z), w(w) {} };
VECTOR(float4, float, x, y, z, w) float4(float x, float y, float z, float w) : x(x), y(y), z(z), w(w) {} };
VECTOR(float2, float, x, y) float2(float x, float y) : x(x), y(y) {} };
#undef VECTOR
static inline uint4 make_uint4(u32 x, u32 y, u32 z, u32 w) { return {x, y, z, w}; }
static inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static inline float2 make_float2(float x, float y) { return {x, y}; }

namespace simt {
static void load_floats(const float4* p, float& a, float& b, float& c, float& d, u32 there) {
    if (!there) return;
    const float4 v = load_checked(p);
    a = v.x, b = v.y, c = v.z, d = v.w;
}
}  // namespace simt

template <class T> static T __ldg(const T* p) { return *p; }
template <class T> static T __ldcg(const T* p) { return simt::load_checked(p); }
template <class T> static void __stcg(T* p, const T& v) {
    *p = v;
    if constexpr (sizeof v <= 4) simt::noted(p, sizeof v);   // a vector's assignment notes it
}
template <class A, class B> static auto min(A a, B b) { return a < (decltype(a + b))b ? (decltype(a + b))a : (decltype(a + b))b; }
template <class A, class B> static auto max(A a, B b) { return a > (decltype(a + b))b ? (decltype(a + b))a : (decltype(a + b))b; }
static inline u32 __float_as_uint(float x) { return __builtin_bit_cast(u32, x); }
static inline float __uint_as_float(u32 x) { return __builtin_bit_cast(float, x); }
static inline float fmaf(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static inline float fmaxf(float a, float b) { return __builtin_fmaxf(a, b); }
static inline float fminf(float a, float b) { return __builtin_fminf(a, b); }
static inline float fabsf(float x) { return __builtin_fabsf(x); }
static inline float __fdividef(float x, float y) { return x / y; }
static inline int __popc(u32 x) { return __builtin_popcount(x); }
static inline int __ffs(u32 x) { return __builtin_ffs((int)x); }
static inline u32 __cvta_generic_to_shared(const void* p) { return simt::address_of(p); }
static inline void __syncwarp() { simt::meet(simt::warps[simt::warp()], 32); }
static inline void __syncthreads() { simt::meet(simt::block().everyone, simt::per_block); }
static inline void __threadfence() { simt::fence(simt::number(), simt::GPU); }
static inline void __threadfence_system() { simt::fence(simt::number(), simt::SYS); }
static inline void __nanosleep(u32) { simt::nap(); }
static inline u32 atomicAdd(u32* p, u32 v) { return simt::add_word<simt::RELAXED, simt::GPU>(p, v); }
static inline u32 atomicInc(u32* p, u32 most) {
    const u32 old = simt::add_word<simt::RELAXED, simt::GPU>(p, 1);
    if (old >= most) *p = 0;
    return old;
}
static inline u64 atomicMax(u64* p, u64 v) {
    const u64 old = *p;
    *p = old > v ? old : v;
    return old;
}
static inline u32 atomicCAS(u32* p, u32 old, u32 v) { return simt::swap_word(p, old, v); }
template <class T> static T __shfl_sync(u32, T v, int from) {
    T all[32];
    return simt::exchange(v, all)[from];
}
template <class T> static T __shfl_xor_sync(u32, T v, int mask) {
    T all[32];
    return simt::exchange(v, all)[simt::number() % 32 ^ mask];
}
static inline u32 __ballot_sync(u32, bool v) {
    bool all[32];
    u32 bits = 0;
    simt::exchange(v, all);
    for (int i = 0; i < 32; ++i) bits |= (u32)all[i] << i;
    return bits;
}
static inline bool __any_sync(u32 mask, bool v) { return __ballot_sync(mask, v) != 0; }

// Run KERNEL(parameters): 0 if all is well, 1 if it comes to a stop, 2 if something is wrong (`simt_fault`). A kernel that
// marks does so where `simt_mark` has said.
#define SIMT_LAUNCH(KERNEL, PARAMETERS)                                                                                \
    static const PARAMETERS* simt_parameters;                                                                          \
    IF_MARKS(static Mark* simt_marks; extern "C" void simt_mark(Mark* at) { simt_marks = at; })                        \
    extern "C" int simt_launch(const void* parameters, int grid, int threads, int cluster, int resident, u64 seed) {   \
        simt_parameters = (const PARAMETERS*)parameters;                                                               \
        simt::body = [] { KERNEL(*simt_parameters IF_MARKS(, simt_marks)); };                                          \
        return simt::launch(grid, threads, cluster, resident, seed);                                                   \
    }
