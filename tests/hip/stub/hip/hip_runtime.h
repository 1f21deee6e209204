// HIP's device language on a CPU, for tests: what `hip/hip_runtime.h` is to a kernel, with the threads of a
// block as contexts that take turns. Blocks run one after the other; a wave has 64 lanes.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <ucontext.h>
#include <utility>
#include <vector>

#define __global__ __attribute__((visibility("default")))
#define __device__
#define __shared__ static
#define __forceinline__ inline
#define __launch_bounds__(...)

namespace stub {
struct Index { int x, y, z; };
constexpr int WAVE = 64;
constexpr size_t STACK = 256 << 10;

struct Barrier {
  int expected = 0, arrived = 0;
  long generation = 0;
};

struct Thread {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[STACK]};
  Barrier* waits = nullptr;
  long generation = 0;
  bool done = false;
};

struct Block {
  std::vector<Thread> threads;
  std::vector<Barrier> waves;
  Barrier all;
  std::vector<float> slots;  // what lanes show each other
  ucontext_t scheduler;
  int current = 0;
  void* kernel = nullptr;
  void** arguments = nullptr;
  int count = 0;
};
inline Block block;
inline Index grid_index, thread_index;

inline void wait(Barrier& barrier) {
  Thread& self = block.threads[block.current];
  if (++barrier.arrived == barrier.expected) {
    barrier.arrived = 0;
    ++barrier.generation;
    return;
  }
  self.waits = &barrier;
  self.generation = barrier.generation;
  const Index mine = thread_index;
  swapcontext(&self.context, &block.scheduler);
  thread_index = mine;
}

template <size_t... I>
inline void call(std::index_sequence<I...>) {
  ((void (*)(decltype((void*)I)...))block.kernel)(block.arguments[I]...);
}

template <int COUNT>
inline void call_with() {
  if (block.count == COUNT) return call(std::make_index_sequence<COUNT>());
  if constexpr (COUNT < 16) return call_with<COUNT + 1>();
  fprintf(stderr, "stub: a kernel of %d arguments\n", block.count);
  abort();
}

inline void entry() {
  call_with<1>();
  block.threads[block.current].done = true;
  setcontext(&block.scheduler);
}

inline void run_block(int count) {
  block.threads.clear();
  block.threads.resize(count);
  block.all = Barrier{count, 0, 0};
  block.waves.assign((count + WAVE - 1) / WAVE, Barrier{});
  for (int i = 0; i < count; ++i) ++block.waves[i / WAVE].expected;
  block.slots.assign(count, 0.0f);
  for (Thread& thread : block.threads) {
    getcontext(&thread.context);
    thread.context.uc_stack.ss_sp = thread.stack.get();
    thread.context.uc_stack.ss_size = STACK;
    thread.context.uc_link = nullptr;
    makecontext(&thread.context, entry, 0);
  }
  for (int left = count; left > 0;) {
    bool progress = false;
    for (int i = 0; i < count; ++i) {
      Thread& thread = block.threads[i];
      if (thread.done || (thread.waits && thread.waits->generation == thread.generation)) continue;
      thread.waits = nullptr;
      block.current = i;
      thread_index = {i, 0, 0};
      swapcontext(&block.scheduler, &thread.context);
      progress = true;
      left -= thread.done;
    }
    if (!progress) { fprintf(stderr, "stub: threads wait for others that have ended\n"); abort(); }
  }
}
}  // namespace stub

#define blockIdx (stub::grid_index)
#define threadIdx (stub::thread_index)

extern "C" __global__ void stub_launch(void* kernel, const unsigned* grid, unsigned threads, void** arguments,
                                       int count) {
  stub::block.kernel = kernel;
  stub::block.arguments = arguments;
  stub::block.count = count;
  for (unsigned z = 0; z < grid[2]; ++z)
    for (unsigned y = 0; y < grid[1]; ++y)
      for (unsigned x = 0; x < grid[0]; ++x) {
        stub::grid_index = {int(x), int(y), int(z)};
        stub::run_block(threads);
      }
}
#define STUB_TEXT2(x) #x
#define STUB_TEXT(x) STUB_TEXT2(x)
extern "C" __attribute__((visibility("default"))) const char stub_arch[] = STUB_TEXT(STUB_ARCH);

static inline void __syncthreads() { stub::wait(stub::block.all); }
static inline int __lane_id() { return stub::thread_index.x % stub::WAVE; }
static inline float atomicAdd(float* p, float v) {
  const float old = *p;
  *p = old + v;
  return old;
}
static inline int atomicAdd(int* p, int v) {
  const int old = *p;
  *p = old + v;
  return old;
}
// Lane `lane` of this lane's part of `width` lanes; all lanes of the wave call it together.
static inline float __shfl(float value, int lane, int width = stub::WAVE) {
  const int self = stub::thread_index.x, wave = self / stub::WAVE;
  stub::block.slots[self] = value;
  stub::wait(stub::block.waves[wave]);
  const float result = stub::block.slots[self / width * width + lane % width];
  stub::wait(stub::block.waves[wave]);
  return result;
}
#define warpSize 64
static inline long long clock64() { static long long now = 0; return now += 1; }
