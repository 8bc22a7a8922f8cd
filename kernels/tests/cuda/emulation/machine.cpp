// Threads of a block as fibers, shared memory, asynchronous copies, barriers and warpgroup products.
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>
#include <ucontext.h>

struct Bf16 { uint16_t bits; };
constexpr int WARP = 32;
#include "emulated_intrinsics.h"

namespace emulation {
namespace {

constexpr size_t STACK = 256 << 10;
constexpr size_t SHARED_ALIGNMENT = 1024;

struct Copy { unsigned char* to; const unsigned char* from; bool valid; };
struct GroupProduct { float* x; uint64_t rows, columns; bool add; };

struct Fiber {
    std::unique_ptr<char[]> stack{new char[STACK]};
    ucontext_t start;
    jmp_buf at;
    bool done = true;
    bool stuck = false;                            // waits for other warps
    std::vector<std::vector<Copy>> copies;         // committed groups
    std::vector<Copy> open_copies;
    std::vector<std::vector<GroupProduct>> products;
    std::vector<GroupProduct> open_products;
};

struct SyncPoint { unsigned arrived = 0, generation = 0; void* lanes[128]; };

// A tensor map of the emulation (CUDA's is opaque). `driver.rs` writes it.
struct EmulatedMap { uint64_t base, numbers, rows, heads; };

struct BoxCopy { unsigned char* to; EmulatedMap map; int number, row, head; uint64_t* barrier; };

struct Machine {
    std::vector<std::unique_ptr<Fiber>> fibers;
    ucontext_t outside;
    unsigned threads = 0, current = 0, block = 0;
    bool late = false, backwards = false;
    void (*kernel)(const void*) = nullptr;
    const void* parameters = nullptr;
    std::vector<unsigned char> memory;
    unsigned char* shared = nullptr;
    size_t shared_bytes = 0;
    std::vector<SyncPoint> warps, groups;
    SyncPoint whole;
    std::vector<BoxCopy> boxes;
    struct { float rows[64][16], columns[128][16]; } product;
    uint64_t seen_by_warps = 0, seen_by_lanes = 0; // progress at the last switch
    unsigned idle = 0, turns = 0;                  // switches since then
    uint64_t progress = 0;                         // counts the events that a fiber may wait for
};

// Each test thread has its own machine, behind a pointer: static thread-local storage is fast but small.
__attribute__((tls_model("initial-exec"))) thread_local Machine* machine_of_thread = nullptr;

Machine& machine() { return *machine_of_thread; }

Fiber& fiber() { return *machine().fibers[machine().current]; }

unsigned alive_in(unsigned warp) {
    unsigned alive = 0;
    for (unsigned lane = 0; lane < WARP; lane++) alive += !machine().fibers[warp * WARP + lane]->done;
    return alive;
}

// Records an event that lanes of other warps may wait for.
void wake_all() {
    machine().progress++;
    for (unsigned thread = 0; thread < machine().threads; thread++) machine().fibers[thread]->stuck = false;
}

void go_to(unsigned thread) {
    machine().current = thread;
    _longjmp(fiber().at, 1);
}

// The next fiber that may run: of this warp, else of the next warp; the block's end if there is none.
[[noreturn]] void switch_away() {
    unsigned warp = machine().current / WARP, lane = machine().current % WARP;
    for (unsigned step = 1; step < WARP; step++) {
        unsigned next = warp * WARP + (lane + step) % WARP;
        Fiber& candidate = *machine().fibers[next];
        if (!candidate.done && !candidate.stuck) go_to(next);
    }
    unsigned& idle = machine().idle;
    idle = machine().progress == machine().seen_by_warps ? idle + 1 : 0;
    machine().seen_by_warps = machine().progress;
    unsigned warps = machine().threads / WARP;
    if (idle > 4 * warps + 8) fail("all threads of a block wait: not all of them reach a barrier");
    for (unsigned step = 1; step <= warps; step++) {
        unsigned next = (warp + (machine().backwards ? warps - step : step)) % warps;
        if (alive_in(next) == 0) continue;
        for (unsigned lane = 0; lane < WARP; lane++) machine().fibers[next * WARP + lane]->stuck = false;
        for (unsigned lane = 0; lane < WARP; lane++)
            if (!machine().fibers[next * WARP + lane]->done) go_to(next * WARP + lane);
    }
    setcontext(&machine().outside);
    abort();
}

// Runs other fibers. With `other_warps`, no lane of this warp can end the wait.
void yield(bool other_warps) {
    unsigned& turns = machine().turns;
    turns = machine().progress == machine().seen_by_lanes ? turns + 1 : 0;
    machine().seen_by_lanes = machine().progress;
    Fiber& own = fiber();
    // If a lane waits for one of its own warp that waits for another warp, the other warp must run.
    own.stuck = other_warps || turns > 4 * WARP;
    if (_setjmp(own.at) == 0) switch_away();
}

void synchronize(SyncPoint& point, unsigned members, unsigned slot, void* mine, void (*work)(SyncPoint&)) {
    point.lanes[slot] = mine;
    if (++point.arrived == members) {
        if (work) work(point);
        point.arrived = 0;
        point.generation++;
        wake_all();
        return;
    }
    unsigned generation = point.generation;
    while (point.generation == generation) yield(true);
}

void run_fiber() {
    if (_setjmp(fiber().at) == 0) setcontext(&machine().outside);
    machine().kernel(machine().parameters);
    Fiber& own = fiber();
    if (!own.open_copies.empty() || !own.open_products.empty()) fail("a thread ended with work that it never committed");
    own.done = true;
    machine().progress++;
    switch_away();
}

void do_copy(const Copy& copy) {
    if (copy.valid) std::memcpy(copy.to, copy.from, 16);
    else std::memset(copy.to, 0, 16);
}

// Barrier words: 15 bits of expected and of pending arrivals, one of the phase, 32 of pending bytes.
struct Word {
    uint64_t* at;
    uint32_t expected() const { return *at & 0x7FFF; }
    uint32_t pending() const { return *at >> 15 & 0x7FFF; }
    uint32_t phase() const { return *at >> 30 & 1; }
    int32_t bytes() const { return int32_t(*at >> 32); }
    void set(uint32_t expected, uint32_t pending, uint32_t phase, int32_t bytes) {
        if (pending == 0 && bytes == 0) {
            phase ^= 1;
            pending = expected;
            wake_all();
        }
        *at = expected | uint64_t(pending) << 15 | uint64_t(phase) << 30 | uint64_t(uint32_t(bytes)) << 32;
    }
};

void check_shared(const void* pointer, size_t bytes, size_t alignment) {
    size_t offset = static_cast<const unsigned char*>(pointer) - machine().shared;
    if (offset + bytes > machine().shared_bytes) fail("an access beyond the block's shared memory");
    if (offset % alignment) fail("a misaligned access to shared memory");
}

// The 128-byte swizzle: bits 4 to 6 of an address are XORed with bits 7 to 9.
size_t swizzled(size_t address) { return address ^ (address >> 7 & 7) << 4; }

void do_box(const BoxCopy& copy) {
    constexpr int NUMBERS = 64, ROWS = 128;
    check_shared(copy.to, NUMBERS * ROWS * 2, 1024);
    size_t start = copy.to - machine().shared;
    for (int row = 0; row < ROWS; row++)
        for (int number = 0; number < NUMBERS; number++) {
            uint64_t y = copy.row + row, x = copy.number + number;
            uint16_t bits = 0;
            if (x < copy.map.numbers && y < copy.map.rows && uint64_t(copy.head) < copy.map.heads)
                bits = reinterpret_cast<const uint16_t*>(copy.map.base)[(copy.head * copy.map.rows + y) * copy.map.numbers + x];
            std::memcpy(machine().shared + swizzled(start + row * 128 + number * 2), &bits, 2);
        }
    Word word{copy.barrier};
    word.set(word.expected(), word.pending(), word.phase(), word.bytes() - NUMBERS * ROWS * 2);
}

// The offset in shared memory of a number of the matrix that `descriptor` points to.
size_t described(uint64_t descriptor, int row, int number) {
    size_t start = (descriptor & 0x3FFF) << 4, stride = (descriptor >> 32 & 0x3FFF) << 4;
    if (descriptor >> 62 != 1) fail("only the 128-byte swizzle is emulated");
    return swizzled(start + row / 8 * stride + row % 8 * 128 + number * 2);
}

void do_group_product(SyncPoint& group, size_t number) {
    auto& [rows, columns] = machine().product;
    auto product = [&](int thread) -> GroupProduct& { return static_cast<Fiber*>(group.lanes[thread])->products.front()[number]; };
    GroupProduct& first = product(0);
    auto read = [&](uint64_t descriptor, int row, int k) {
        Bf16 value;
        size_t at = described(descriptor, row, k);
        if (at + 2 > machine().shared_bytes) fail("a product reads beyond the block's shared memory");
        std::memcpy(&value, machine().shared + at, 2);
        return widen(value);
    };
    for (int k = 0; k < 16; k++) {
        for (int row = 0; row < 64; row++) rows[row][k] = read(first.rows, row, k);
        for (int column = 0; column < 128; column++) columns[column][k] = read(first.columns, column, k);
    }
    for (int thread = 0; thread < 128; thread++) {
        GroupProduct& own = product(thread);
        if (own.rows != first.rows || own.columns != first.columns || own.add != first.add)
            fail("threads of a warpgroup disagree about a product");
        for (int half = 0; half < 2; half++)
            for (int c = 0; c < 32; c++) {
                const float* row = rows[thread / WARP * 16 + thread % WARP / 4 + half * 8];
                const float* column = columns[c / 2 * 8 + thread % 4 * 2 + c % 2];
                float& x = own.x[half * 32 + c];
                if (!own.add) x = 0.0f;
                for (int k = 0; k < 16; k += 8) x = tensor_core_sum(x, row + k, column + k);
            }
    }
}

void do_oldest_products(SyncPoint& group) {
    size_t count = static_cast<Fiber*>(group.lanes[0])->products.front().size();
    for (size_t number = 0; number < count; number++) do_group_product(group, number);
    for (int thread = 0; thread < 128; thread++) {
        auto& products = static_cast<Fiber*>(group.lanes[thread])->products;
        products.erase(products.begin());
    }
}

void synchronize_group(void (*work)(SyncPoint&)) {
    unsigned group = machine().current / 128;
    synchronize(machine().groups[group], 128, machine().current % 128, &fiber(), work);
}

} // namespace

Index thread_index() { return {machine().current}; }
Index block_index() { return {machine().block}; }
Index block_size() { return {machine().threads}; }
unsigned char* shared_memory() { return machine().shared; }
uint32_t shared_address(const void* pointer) { return uint32_t(static_cast<const unsigned char*>(pointer) - machine().shared); }

void fail(const char* reason) {
    std::fprintf(stderr, "emulated GPU, block %u, thread %u: %s\n", machine().block, machine().current, reason);
    std::abort();
}

void synchronize_warp(void* mine, void (*work)(void* const* lanes)) {
    SyncPoint& point = machine().warps[machine().current / WARP];
    point.lanes[machine().current % WARP] = mine;
    if (++point.arrived == WARP) {
        work(point.lanes);
        point.arrived = 0;
        point.generation++;
        machine().progress++;
        return;
    }
    unsigned generation = point.generation;
    while (point.generation == generation) yield(false);
}

void synchronize_block() {
    // All use slot 0, because nothing is exchanged.
    synchronize(machine().whole, machine().threads, 0, nullptr, nullptr);
}

void copy_async(void* shared, const void* global, bool valid) {
    check_shared(shared, 16, 16);
    if (reinterpret_cast<uintptr_t>(global) % 16) fail("an asynchronous copy from a misaligned address");
    Copy copy = {static_cast<unsigned char*>(shared), static_cast<const unsigned char*>(global), valid};
    if (machine().late) fiber().open_copies.push_back(copy);
    else do_copy(copy);
}

void commit_copies() {
    fiber().copies.push_back(std::move(fiber().open_copies));
    fiber().open_copies.clear();
}

void wait_copies(int pending) {
    auto& groups = fiber().copies;
    while (groups.size() > size_t(pending)) {
        for (const Copy& copy : groups.front()) do_copy(copy);
        groups.erase(groups.begin());
    }
}

void barrier_init(uint64_t* barrier, uint32_t arrivals) {
    check_shared(barrier, 8, 8);
    Word{barrier}.set(arrivals, arrivals, 0, 0);
}

void barrier_arrive(uint64_t* barrier, uint32_t bytes) {
    Word word{barrier};
    if (word.pending() == 0) fail("more arrivals at a barrier than it expects");
    word.set(word.expected(), word.pending() - 1, word.phase(), word.bytes() + int32_t(bytes));
}

void barrier_wait(uint64_t* barrier, uint32_t parity) {
    while (Word{barrier}.phase() == parity) {
        if (!machine().boxes.empty()) {
            BoxCopy copy = machine().boxes.front();
            machine().boxes.erase(machine().boxes.begin());
            do_box(copy);
        } else {
            yield(true);
        }
    }
}

void copy_box(void* shared, const void* map, int number, int row, int head, uint64_t* barrier) {
    BoxCopy copy = {static_cast<unsigned char*>(shared), {}, number, row, head, barrier};
    std::memcpy(&copy.map, map, sizeof copy.map);
    if (machine().late) {
        machine().boxes.push_back(copy);
        wake_all();
    } else {
        do_box(copy);
    }
}

void group_multiply(float* x, uint64_t rows, uint64_t columns, bool add) {
    fiber().open_products.push_back({x, rows, columns, add});
}

void group_multiply_commit() {
    fiber().products.push_back(std::move(fiber().open_products));
    fiber().open_products.clear();
    if (!machine().late) synchronize_group(do_oldest_products);
}

void group_multiply_wait(int pending) {
    while (fiber().products.size() > size_t(pending)) synchronize_group(do_oldest_products);
}

} // namespace emulation

// Runs all blocks of a launch in turn. `mode`: bit 0, asynchronous work happens as late as it may; bit 1, warps run from
// the last to the first.
extern "C" void emulate_launch(void (*kernel)(const void*), unsigned blocks, unsigned threads, size_t shared_bytes,
                               const void* parameters, unsigned mode) {
    using namespace emulation;
    static thread_local std::unique_ptr<Machine> own_machine = std::make_unique<Machine>();
    machine_of_thread = own_machine.get();
    if (threads % WARP) fail("a block of partial warps");
    machine().late = mode & 1;
    machine().backwards = mode & 2;
    machine().kernel = kernel;
    machine().parameters = parameters;
    machine().threads = threads;
    machine().shared_bytes = shared_bytes;
    machine().memory.resize(shared_bytes + SHARED_ALIGNMENT);
    uintptr_t start = reinterpret_cast<uintptr_t>(machine().memory.data());
    machine().shared = machine().memory.data() + (SHARED_ALIGNMENT - start % SHARED_ALIGNMENT) % SHARED_ALIGNMENT;
    while (machine().fibers.size() < threads) machine().fibers.push_back(std::make_unique<Fiber>());
    for (machine().block = 0; machine().block < blocks; machine().block++) {
        std::memset(machine().shared, 0xFF, shared_bytes);
        machine().warps.assign(threads / WARP, {});
        machine().groups.assign((threads + 127) / 128, {});
        machine().whole = {};
        machine().boxes.clear();
        for (unsigned thread = 0; thread < threads; thread++) {
            machine().current = thread;
            Fiber& own = fiber();
            own.done = own.stuck = false;
            own.copies.clear();
            getcontext(&own.start);
            own.start.uc_stack.ss_sp = own.stack.get();
            own.start.uc_stack.ss_size = STACK;
            own.start.uc_link = nullptr;
            makecontext(&own.start, run_fiber, 0);
            swapcontext(&machine().outside, &own.start);
        }
        machine().current = machine().backwards ? threads - WARP : 0;
        // Execution continues here when the last thread is done.
        volatile bool started = false;
        getcontext(&machine().outside);
        if (!started) {
            started = true;
            go_to(machine().current);
        }
    }
}
