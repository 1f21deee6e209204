/* Runs the kernel steps of a Program on a small pool of threads. Linked into every Program's shared object.
 *
 * A step calls one kernel, void kernel(int32 begin, int32 end, void *scratch, p0, p1, ...), over its tasks
 * [0, tasks), cut into one contiguous part per thread. Steps run in order with a barrier between them.
 * Addresses are (base, offset in bytes); the bases (arena, weights, inputs, outputs) come with each run.
 *
 * The caller is thread 0. A launch is one atomic store of `order` = (launch number, step). Every part is a few
 * chunks, claimed one by one with a compare-and-swap on the part's ticket = (launch number, next chunk): each
 * thread takes those of its own part, whose data its cache has, then what is left of the others'. So a worker
 * that the system keeps off its core delays nobody: the others do its part. The caller waits until all chunks
 * are done. A late worker finds another launch number in the tickets and touches nothing else. Workers poll for
 * a while after the last launch, then sleep on a condition variable. Who waits long gives up its time slice,
 * and at once if the one it waits for sits on the same core.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    CACHE_LINE = 64,
    HUGE_PAGE = 2 << 20,
    STEP_BITS = 20,             /* of `order`; the launch number has the other 44 */
    POLLS_PER_CLOCK = 32,       /* polls between two looks at the clock */
    YIELD_AFTER = 20 * 1000,    /* ns of polling after which a waiting thread yields between polls, if there
                                 * are cores for all; at once if there are not */
    SLEEP_AFTER = 100 * 1000,   /* ns without a run after which a worker sleeps; waking takes 5 to 80 us */
    SLEEP_IN_RUN = 1000 * 1000, /* ns without a launch in a run: a long step on one thread is no idleness */
    CHUNK_BITS = 16,            /* of a ticket; the launch number has the other 48 */
    CHUNKS = 4,                 /* of a part: what a thread that is off its core can hold back is one */
};

/* Steps that no table holds. */
static const uint64_t STEP_MASK = ((uint64_t)1 << STEP_BITS) - 1;
#define STEP_STOP STEP_MASK
#define STEP_WAKE (STEP_MASK - 1)

/* The two records that Python fills in: see `convopt.runtime.execution`. */
struct operand {
    int64_t base;
    int64_t offset;
};

struct step {
    void (*kernel)(void);
    const struct operand *operands;
    int32_t operand_count;
    int32_t tasks;
    int32_t serial; /* not worth a launch: the caller does it alone */
};

struct member {
    alignas(CACHE_LINE) _Atomic uint64_t ticket; /* of this thread's part */
    _Atomic int core; /* where it ran when it last looked */
    struct pool *pool;
    pthread_t thread;
    int index;
};

struct pool {
    alignas(CACHE_LINE) _Atomic uint64_t order;
    alignas(CACHE_LINE) _Atomic uint64_t done; /* chunks of this launch */
    alignas(CACHE_LINE) _Atomic int sleepers;
    _Atomic int running;
    alignas(CACHE_LINE) const struct step *steps;
    void *const *bases;
    struct member *members; /* [threads]; 0 is the caller */
    char *scratch;
    size_t scratch_stride;
    int threads;
    int yield_after;
    pid_t owner;
    pthread_mutex_t mutex;
    pthread_cond_t wake;
};

static inline void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__) || defined(__arm__)
    __asm__ __volatile__("yield");
#endif
}

static int64_t nanoseconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static int current_core(void) {
#ifdef __linux__
    return sched_getcpu();
#else
    return -1;
#endif
}

/* ---- one step ---- */

#define A1 p[0]
#define A2 A1, p[1]
#define A3 A2, p[2]
#define A4 A3, p[3]
#define A5 A4, p[4]
#define A6 A5, p[5]
#define A7 A6, p[6]
#define A8 A7, p[7]
#define A9 A8, p[8]
#define A10 A9, p[9]
#define A11 A10, p[10]
#define A12 A11, p[11]
#define A13 A12, p[12]
#define A14 A13, p[13]
#define A15 A14, p[14]
#define A16 A15, p[15]
#define T1 void *
#define T2 T1, void *
#define T3 T2, void *
#define T4 T3, void *
#define T5 T4, void *
#define T6 T5, void *
#define T7 T6, void *
#define T8 T7, void *
#define T9 T8, void *
#define T10 T9, void *
#define T11 T10, void *
#define T12 T11, void *
#define T13 T12, void *
#define T14 T13, void *
#define T15 T14, void *
#define T16 T15, void *
#define CASE(n)                                                                              \
    case n:                                                                                  \
        ((void (*)(int32_t, int32_t, void *, T##n))step->kernel)(begin, end, scratch, A##n); \
        break;

enum { MAX_OPERANDS = 16 };

/* Thread `index` does the tasks [begin, end) of the step. */
static void run_tasks(struct pool *pool, const struct step *step, int index, int32_t begin, int32_t end) {
    void *scratch = pool->scratch ? pool->scratch + pool->scratch_stride * (size_t)index : NULL;
    void *p[MAX_OPERANDS];
    for (int i = 0; i < step->operand_count; i++)
        p[i] = (char *)pool->bases[step->operands[i].base] + step->operands[i].offset;
    switch (step->operand_count) {
        CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8)
        CASE(9) CASE(10) CASE(11) CASE(12) CASE(13) CASE(14) CASE(15) CASE(16)
    }
}

static int parts_of(const struct pool *pool, const struct step *step) {
    return step->serial ? 1 : step->tasks < pool->threads ? step->tasks : pool->threads;
}

/* The first task of part `part`. */
static int32_t part_begin(const struct step *step, int part, int parts) {
    return (int32_t)((int64_t)step->tasks * part / parts);
}

static int chunks_of(int32_t tasks) { return tasks < CHUNKS ? (int)tasks : CHUNKS; }

/* Member `self` does chunks of the launch until none is left, its own part's first. */
static void run_chunks(struct member *self, uint64_t launch, uint64_t index) {
    struct pool *pool = self->pool;
    const struct step *step = &pool->steps[index];
    int parts = parts_of(pool, step);
    for (int i = 0; i < parts; i++) {
        int part = (self->index + i) % parts;
        int32_t begin = part_begin(step, part, parts), tasks = part_begin(step, part + 1, parts) - begin;
        uint64_t chunks = (uint64_t)chunks_of(tasks);
        _Atomic uint64_t *ticket = &pool->members[part].ticket;
        uint64_t value = atomic_load_explicit(ticket, memory_order_acquire);
        while (value >> CHUNK_BITS == launch) {
            int64_t chunk = (int64_t)(value & (((uint64_t)1 << CHUNK_BITS) - 1));
            if ((uint64_t)chunk >= chunks)
                break;
            if (!atomic_compare_exchange_weak_explicit(ticket, &value, value + 1, memory_order_acq_rel,
                                                       memory_order_acquire))
                continue;
            run_tasks(pool, step, self->index, begin + (int32_t)(tasks * chunk / (int64_t)chunks),
                      begin + (int32_t)(tasks * (chunk + 1) / (int64_t)chunks));
            atomic_fetch_add_explicit(&pool->done, 1, memory_order_release);
            value = atomic_load_explicit(ticket, memory_order_acquire);
        }
    }
}

/* ---- workers ---- */

/* The store of `order` and the load of `sleepers` here, the increment of `sleepers` and the load of `order`
 * there, are all sequentially consistent: either the worker sees the new order or we see the sleeper. */
static uint64_t publish(struct pool *pool, uint64_t step) {
    uint64_t last = atomic_load_explicit(&pool->order, memory_order_relaxed);
    uint64_t order = ((last >> STEP_BITS) + 1) << STEP_BITS | step;
    atomic_store(&pool->order, order);
    if (atomic_load(&pool->sleepers)) {
        pthread_mutex_lock(&pool->mutex);
        pthread_cond_broadcast(&pool->wake);
        pthread_mutex_unlock(&pool->mutex);
    }
    return order;
}

static void sleep_until_changed(struct pool *pool, uint64_t seen) {
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (atomic_load(&pool->order) == seen)
        pthread_cond_wait(&pool->wake, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

/* Whether one that `self` waits for (the caller, or any worker) last ran on the core that `self` is on. */
static int in_the_way(const struct member *self, int core) {
    const struct pool *pool = self->pool;
    int first = self->index ? 0 : 1, last = self->index ? 1 : pool->threads;
    for (int i = first; i < last && core >= 0; i++)
        if (core == atomic_load_explicit(&pool->members[i].core, memory_order_relaxed))
            return 1;
    return 0;
}

/* Member `self` waits until others have changed `*word` from `seen`; with `may_sleep`, asleep after a while.
 * Returns the new value. */
static uint64_t wait_for_change(struct member *self, _Atomic uint64_t *word, uint64_t seen, int may_sleep) {
    struct pool *pool = self->pool;
    int64_t start = 0, idle = 0; /* when the waiting began, and when it was last seen that a run goes on */
    for (unsigned poll = 1;; poll++) {
        uint64_t value = atomic_load_explicit(word, memory_order_acquire);
        if (value != seen)
            return value;
        relax();
        if (poll % POLLS_PER_CLOCK)
            continue;
        int64_t now = nanoseconds();
        int running = atomic_load_explicit(&pool->running, memory_order_relaxed);
        start = start ? start : now;
        idle = running || !idle ? now : idle;
        int core = current_core();
        atomic_store_explicit(&self->core, core, memory_order_relaxed);
        if (may_sleep && (running ? now - start > SLEEP_IN_RUN : now - idle > SLEEP_AFTER))
            sleep_until_changed(pool, seen);
        else if (in_the_way(self, core) || now - start >= pool->yield_after)
            sched_yield();
    }
}

static void *work(void *argument) {
    struct member *self = argument;
    struct pool *pool = self->pool;
    uint64_t order = 0;
    for (;;) {
        order = wait_for_change(self, &pool->order, order, 1);
        uint64_t index = order & STEP_MASK;
        if (index == STEP_STOP)
            return NULL;
        if (index == STEP_WAKE)
            continue;
        run_chunks(self, order >> STEP_BITS, index);
    }
}

/* ---- what Python calls ---- */

EXPORT int convopt_max_operands(void) { return MAX_OPERANDS; }

EXPORT int convopt_max_steps(void) { return (int)STEP_WAKE; }

EXPORT void convopt_pool_destroy(struct pool *pool) {
    if (!pool)
        return;
    /* After a fork only the forking thread exists in the child: nobody is there to be joined or woken. */
    if (pool->owner == getpid()) {
        publish(pool, STEP_STOP);
        for (int i = 1; i < pool->threads; i++)
            pthread_join(pool->members[i].thread, NULL);
        pthread_cond_destroy(&pool->wake);
        pthread_mutex_destroy(&pool->mutex);
    }
    free(pool->scratch);
    free(pool->members);
    free(pool);
}

static int usable_cores(void) {
#ifdef __linux__
    cpu_set_t set;
    if (!sched_getaffinity(0, sizeof set, &set))
        return CPU_COUNT(&set);
#endif
    return (int)sysconf(_SC_NPROCESSORS_ONLN);
}

static void *allocate(size_t bytes) {
    size_t alignment = bytes >= 2 * HUGE_PAGE ? HUGE_PAGE : CACHE_LINE;
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
#ifdef MADV_HUGEPAGE
    if (memory && alignment == HUGE_PAGE)
        madvise(memory, bytes, MADV_HUGEPAGE); /* advice: its failure costs nothing but speed */
#endif
    return memory;
}

/* A pool of `threads` (the caller counted) for one step table, which must outlive it. `scratch` is the largest
 * of the steps' scratch bytes. Returns NULL with errno where memory or threads can't be had. */
EXPORT struct pool *convopt_pool_create(const struct step *steps, int threads, int64_t scratch) {
    struct pool *pool = allocate(sizeof *pool);
    if (!pool)
        return NULL;
    memset(pool, 0, sizeof *pool);
    pool->steps = steps;
    pool->threads = 1; /* counts the threads that really run, so that a failure below can be cleaned up */
    pool->owner = getpid();
    pool->yield_after = threads > usable_cores() ? 0 : YIELD_AFTER;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->wake, NULL);
    /* A line between two threads' scratch keeps the prefetcher of one off the other's. */
    pool->scratch_stride = ((size_t)scratch + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE + CACHE_LINE;
    pool->scratch = scratch ? allocate(pool->scratch_stride * (size_t)threads) : NULL;
    pool->members = allocate(sizeof *pool->members * (size_t)threads);
    if (!pool->members || (scratch && !pool->scratch)) {
        convopt_pool_destroy(pool);
        errno = ENOMEM;
        return NULL;
    }
    memset(pool->members, 0, sizeof *pool->members * (size_t)threads);

    /* Signals belong to the application's threads, except for those that a thread brings on itself. */
    sigset_t foreign, before;
    sigfillset(&foreign);
    sigdelset(&foreign, SIGSEGV);
    sigdelset(&foreign, SIGBUS);
    sigdelset(&foreign, SIGFPE);
    sigdelset(&foreign, SIGILL);
    pthread_sigmask(SIG_SETMASK, &foreign, &before);
    int error = 0;
    for (int i = 0; i < threads && !error; i++) {
        struct member *member = &pool->members[i];
        member->pool = pool;
        member->index = i;
        member->core = -1;
        if (i == 0)
            continue;
        error = pthread_create(&member->thread, NULL, work, member);
        pool->threads += !error;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error) {
        convopt_pool_destroy(pool);
        errno = error;
        return NULL;
    }
    return pool;
}

/* Run steps first <= i < last. `times`, if given, gets last - first + 1 timestamps in ns: the start, then the
 * end of each step. One run at a time per pool. */
EXPORT void convopt_run(struct pool *pool, int32_t first, int32_t last, void *const *bases, int64_t *times) {
    pool->bases = bases;
    atomic_store_explicit(&pool->members[0].core, current_core(), memory_order_relaxed);
    atomic_store_explicit(&pool->running, 1, memory_order_relaxed);
    if (atomic_load_explicit(&pool->sleepers, memory_order_relaxed))
        publish(pool, STEP_WAKE); /* they wake while the caller does what comes before the first launch */
    if (times)
        *times++ = nanoseconds();
    for (int32_t index = first; index < last; index++) {
        const struct step *step = &pool->steps[index];
        int parts = parts_of(pool, step);
        if (parts == 1) {
            run_tasks(pool, step, 0, 0, step->tasks);
        } else if (parts > 1) {
            uint64_t launch = (atomic_load_explicit(&pool->order, memory_order_relaxed) >> STEP_BITS) + 1;
            uint64_t chunks = 0, done = 0;
            for (int i = 0; i < parts; i++) {
                chunks += (uint64_t)chunks_of(part_begin(step, i + 1, parts) - part_begin(step, i, parts));
                atomic_store_explicit(&pool->members[i].ticket, launch << CHUNK_BITS, memory_order_relaxed);
            }
            atomic_store_explicit(&pool->done, 0, memory_order_relaxed);
            publish(pool, (uint64_t)index);
            run_chunks(&pool->members[0], launch, (uint64_t)index);
            while ((done = atomic_load_explicit(&pool->done, memory_order_acquire)) != chunks)
                wait_for_change(&pool->members[0], &pool->done, done, 0);
        }
        if (times)
            *times++ = nanoseconds();
    }
    atomic_store_explicit(&pool->running, 0, memory_order_relaxed);
}
