/* A CUDA driver without a GPU: memory is the host's, streams are in order, every kernel computes
   y[i] = 2 * x[i] + dynamic shared bytes for i < grid.x * block.x, with x and y its two arguments.
   Launches between cuStreamBeginCapture and cuStreamEndCapture are recorded and run by cuGraphLaunch. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef int status;
typedef uint64_t device_pointer;
enum { OK = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_FOUND = 500, CAPTURE_UNSUPPORTED = 900 };
enum { CAPTURE_INVALIDATED = 901, SPOILT = 2 };

struct launch { device_pointer x, y; unsigned n, shared; };
struct graph { struct launch launches[64]; int count; };
static struct graph recorded;
static int capturing, current;
static int allowed_shared = 48 << 10;

/* What is alive: blocks of memory, modules, graphs, executable graphs, events, streams. */
enum { MEMORY, MODULE, GRAPH, EXECUTABLE, EVENT, STREAM, KINDS };
static int alive[KINDS], fail_instantiate;
static int to_device, to_host; /* copies */
int stub_copies(void) { return to_device + to_host; }
int stub_alive(int kind) { return alive[kind]; }
int stub_capturing(void) { return capturing; }
void stub_fail_instantiate(int fail) { fail_instantiate = fail; }
static status made(int kind, void **handle, long value) { alive[kind]++; *handle = (void *)value; return OK; }
static status gone(int kind, void *handle) {
  if (!handle || !current) return INVALID_VALUE;
  alive[kind]--;
  return OK;
}

status cuInit(unsigned flags) { return OK; }
status cuDriverGetVersion(int *version) { *version = 13000; return OK; }
status cuDeviceGet(int *device, int ordinal) { *device = ordinal; return ordinal ? 101 : OK; }
status cuDeviceGetName(char *name, int length, int device) { strncpy(name, "stub", length); return OK; }
status cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)0x10; return OK; }
status cuCtxSetCurrent(void *context) { current = context != NULL; return OK; }
status cuStreamCreate(void **stream, unsigned flags) { return made(STREAM, stream, 0x20); }
status cuStreamDestroy_v2(void *stream) { return gone(STREAM, stream); }
status cuStreamSynchronize(void *stream) { return capturing ? 906 : OK; }
status cuStreamWaitEvent(void *stream, void *event, unsigned flags) { return event ? OK : INVALID_VALUE; }
status cuEventCreate(void **event, unsigned flags) { return made(EVENT, event, 0x30); }
status cuEventRecord(void *event, void *stream) { return event ? OK : INVALID_VALUE; }
status cuEventSynchronize(void *event) { return OK; }
status cuEventDestroy_v2(void *event) { return gone(EVENT, event); }
status cuEventElapsedTime_v2(float *milliseconds, void *a, void *b) { *milliseconds = 2.5f; return OK; }
status cuEventElapsedTime(float *milliseconds, void *a, void *b) { *milliseconds = 2.5f; return OK; }

status cuMemAlloc_v2(device_pointer *pointer, size_t size) {
  if (!current) return 201;
  if (size > (size_t)1 << 40) return OUT_OF_MEMORY;
  *pointer = (device_pointer)malloc(size);
  alive[MEMORY]++;
  memset((void *)*pointer, 0xa5, size);
  return OK;
}
status cuMemFree_v2(device_pointer pointer) { free((void *)pointer); return gone(MEMORY, (void *)pointer); }
status cuMemsetD8Async(device_pointer to, unsigned char value, size_t size, void *stream) {
  memset((void *)to, value, size);
  return OK;
}
status cuMemcpyHtoDAsync_v2(device_pointer to, const void *from, size_t size, void *stream) {
  memcpy((void *)to, from, size);
  to_device++;
  return OK;
}
status cuMemcpyDtoHAsync_v2(void *to, device_pointer from, size_t size, void *stream) {
  memcpy(to, (void *)from, size);
  to_host++;
  return OK;
}
status cuMemcpyDtoDAsync_v2(device_pointer to, device_pointer from, size_t size, void *stream) {
  memcpy((void *)to, (void *)from, size);
  return OK;
}

status cuModuleLoadData(void **module, const void *image) {
  if (memcmp(image, "stub", 4)) return 200;
  return made(MODULE, module, 0x40);
}
status cuModuleUnload(void *module) { return gone(MODULE, module); }
status cuModuleGetFunction(void **function, void *module, const char *name) {
  *function = (void *)0x50;
  return strcmp(name, "twice") ? NOT_FOUND : OK;
}
status cuFuncSetAttribute(void *function, int attribute, int value) {
  if (attribute != 8) return INVALID_VALUE; /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES */
  allowed_shared = value;
  return OK;
}

static void run(struct launch l) {
  const float *x = (const float *)l.x;
  float *y = (float *)l.y;
  for (unsigned i = 0; i < l.n; i++) y[i] = 2 * x[i] + l.shared;
}
status cuLaunchKernel(void *function, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                      unsigned bz, unsigned shared, void *stream, void **arguments, void **extra) {
  struct launch l = {*(device_pointer *)arguments[0], *(device_pointer *)arguments[1], gx * bx, shared};
  if (!current || gy * gz * by * bz != 1 || shared > allowed_shared) {
    if (capturing) capturing = SPOILT;
    return INVALID_VALUE;
  }
  if (!capturing) run(l);
  else recorded.launches[recorded.count++] = l;
  return OK;
}
status cuStreamBeginCapture_v2(void *stream, int mode) {
  if (!stream) return CAPTURE_UNSUPPORTED; /* the default stream */
  capturing = 1;
  recorded.count = 0;
  return OK;
}
static long copy_of(const struct graph *graph) {
  struct graph *copy = malloc(sizeof *copy);
  *copy = *graph;
  return (long)copy;
}
status cuStreamEndCapture(void *stream, void **graph) {
  int spoilt = capturing == SPOILT;
  capturing = 0;
  *graph = NULL;
  if (spoilt) return CAPTURE_INVALIDATED;
  return made(GRAPH, graph, copy_of(&recorded));
}
status cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
  if (fail_instantiate) return OUT_OF_MEMORY;
  return made(EXECUTABLE, executable, copy_of(graph));
}
status cuGraphLaunch(void *executable, void *stream) {
  const struct graph *graph = executable;
  for (int i = 0; i < graph->count; i++) run(graph->launches[i]);
  return OK;
}
status cuGraphDestroy(void *graph) { free(graph); return gone(GRAPH, graph); }
status cuGraphExecDestroy(void *executable) { free(executable); return gone(EXECUTABLE, executable); }

/* How cuda-bindings finds the others: the newest version of the name that is here. */
status cuGetProcAddress_v2(const char *symbol, void **found, int version, uint64_t flags, int *how) {
  static const char *endings[] = {"_v2", "WithFlags", ""};
  char name[128];
  *found = NULL;
  for (int i = 0; i < 3 && !*found; i++) {
    strcpy(name, symbol);
    *found = dlsym(RTLD_DEFAULT, strcat(name, endings[i]));
    if (!*found) {
      void *self = dlopen("libcuda.so.1", RTLD_NOLOAD | RTLD_NOW);
      if (self) *found = dlsym(self, name);
    }
  }
  if (!strcmp(symbol, "cuGetProcAddress")) *found = (void *)cuGetProcAddress_v2;
  return *found ? OK : NOT_FOUND;
}
