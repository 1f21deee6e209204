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
 * a while after the last run, then sleep on a condition variable. A worker that finds itself on the caller's
 * core moves off it. Who waits yields only to the one that it waits for, or where there are more threads than
 * cores: a yield costs milliseconds wherever any other process wants the core.
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
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    CACHE_LINE = 64,
    HUGE_PAGE = 2 << 20,
    STEP_BITS = 20,             /* of `order`; the launch number has the other 44 */
    POLLS_PER_CLOCK = 32,       /* polls between two looks at the clock */
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
    int64_t base, offset;
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
    int cores; /* that this process may use */
    _Atomic int32_t *running_threads; /* of all pools of this process */
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
#endif
    return -1;
}

/* ---- one step ---- */

#define TYPE(i) void *
#define VALUE(i) p[i]
#define E1(f) f(0)
#define E2(f) E1(f), f(1)
#define E3(f) E2(f), f(2)
#define E4(f) E3(f), f(3)
#define E5(f) E4(f), f(4)
#define E6(f) E5(f), f(5)
#define E7(f) E6(f), f(6)
#define E8(f) E7(f), f(7)
#define E9(f) E8(f), f(8)
#define E10(f) E9(f), f(9)
#define E11(f) E10(f), f(10)
#define E12(f) E11(f), f(11)
#define E13(f) E12(f), f(12)
#define E14(f) E13(f), f(13)
#define E15(f) E14(f), f(14)
#define E16(f) E15(f), f(15)
#define CASE(n)                                                                                        \
    case n:                                                                                            \
        ((void (*)(int32_t, int32_t, void *, E##n(TYPE)))step->kernel)(begin, end, scratch, E##n(VALUE)); \
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

/* Moves a worker to a core that no member of its pool was last seen on; 0 where it may run on none. The system's
 * balancer leaves a thread that yields where it is, as one whose data the core's cache holds. */
static int leave_core(const struct member *self) {
#ifdef __linux__
    cpu_set_t allowed, others;
    if (sched_getaffinity(0, sizeof allowed, &allowed))
        return 0;
    others = allowed;
    for (int i = 0; i < self->pool->threads; i++)
        CPU_CLR((size_t)atomic_load_explicit(&self->pool->members[i].core, memory_order_relaxed), &others);
    if (CPU_COUNT(&others) && !sched_setaffinity(0, sizeof others, &others))
        return !sched_setaffinity(0, sizeof allowed, &allowed);
#endif
    return 0;
}

/* Whether there are more threads that want to run, this pool's counted, than cores. */
static int is_crowded(const struct pool *pool, int running) {
    int threads = atomic_load_explicit(pool->running_threads, memory_order_relaxed);
    return threads + (running ? 0 : pool->threads) > pool->cores;
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
        else if (is_crowded(pool, running) || (in_the_way(self, core) && !(self->index && leave_core(self))))
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
 * of the steps' scratch bytes; `running_threads` counts over all pools of the process and outlives them.
 * Returns NULL with errno where memory or threads can't be had. */
EXPORT struct pool *convopt_pool_create(const struct step *steps, int threads, int64_t scratch,
                                        _Atomic int32_t *running_threads) {
    struct pool *pool = allocate(sizeof *pool);
    if (!pool)
        return NULL;
    /* `threads` counts those that really run, so that a failure below can be cleaned up. */
    *pool = (struct pool){.steps = steps, .threads = 1, .owner = getpid(), .cores = usable_cores(),
                          .running_threads = running_threads};
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

    /* Signals belong to the application's threads, except for those that a thread brings on itself. */
    static const int own[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
    sigset_t foreign, before;
    sigfillset(&foreign);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&foreign, own[i]);
    pthread_sigmask(SIG_SETMASK, &foreign, &before);
    int error = 0;
    for (int i = 0; i < threads && !error; i++) {
        pool->members[i] = (struct member){.pool = pool, .index = i, .core = -1};
        if (i && !(error = pthread_create(&pool->members[i].thread, NULL, work, &pool->members[i])))
            pool->threads++;
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
    atomic_fetch_add_explicit(pool->running_threads, pool->threads, memory_order_relaxed);
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
    atomic_fetch_sub_explicit(pool->running_threads, pool->threads, memory_order_relaxed);
}
