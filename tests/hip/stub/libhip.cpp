// A HIP runtime without a device: memory is the host's, kernels run on the CPU (see hip/hip_runtime.h), every
// call is recorded. What a test wants to go wrong, it says by stub_configure.
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {
enum { SUCCESS = 0, INVALID = 1, OUT_OF_MEMORY = 2, NO_DEVICE = 100, INVALID_IMAGE = 200, NO_BINARY = 209,
       NOT_FOUND = 500 };
std::string log_text, arch = "gfx928:sramecc+:xnack-";
size_t memory = size_t(1) << 30, used = 0;
int devices = 1, fail_next_launch = 0;
std::map<char*, size_t> blocks;
std::set<void*> streams, events, modules, graphs;
struct Launch { void* kernel; void* module; unsigned grid[3]; unsigned threads; std::vector<void*> arguments; };
std::vector<Launch>* capture = nullptr;

void record(const std::string& text) { log_text += text + "\n"; }
std::string number(unsigned long long n) { return std::to_string(n); }
bool inside(const void* p, size_t n) {
  auto it = blocks.upper_bound((char*)p);
  if (it == blocks.begin()) return false;
  --it;
  return (char*)p >= it->first && (char*)p + n <= it->first + it->second;
}
struct Function { void* kernel; void* module; };
std::map<void*, std::vector<Function*>> functions;
void run(const Launch& launch) {
  auto start = (void (*)(void*, const unsigned*, unsigned, void**, int))dlsym(launch.module, "stub_launch");
  start(launch.kernel, launch.grid, launch.threads, const_cast<void**>(launch.arguments.data()),
        int(launch.arguments.size()));
}
}  // namespace

extern "C" {
void stub_configure(const char* new_arch, size_t new_memory, int new_devices) {
  arch = new_arch; memory = new_memory; devices = new_devices;
}
void stub_fail_next_launch() { fail_next_launch = 1; }
const char* stub_log() { return log_text.c_str(); }
void stub_forget() { log_text.clear(); }
int stub_live() {
  return int(blocks.size() + streams.size() + events.size() + modules.size() + graphs.size());
}

int hipGetDeviceCount(int* n) { *n = devices; return devices ? SUCCESS : NO_DEVICE; }
int hipSetDevice(int d) { record("set device " + number(d)); return d < devices ? SUCCESS : 101; }
int hipDeviceGetName(char* out, int n, int) { snprintf(out, n, "Stub DCU"); return SUCCESS; }
int hipRuntimeGetVersion(int* v) { *v = 50221153; return SUCCESS; }
int hipGetDeviceProperties(char* out, int) {  // the name first, the architecture somewhere behind it
  strcpy(out, "Stub DCU");
  strcpy(out + 396, arch.c_str());
  return SUCCESS;
}
const char* hipGetErrorString(int e) {
  switch (e) {
    case OUT_OF_MEMORY: return "out of memory";
    case NO_DEVICE: return "no ROCm-capable device is detected";
    case INVALID_IMAGE: return "device kernel image is invalid";
    case NO_BINARY: return "no kernel image is available for execution on the device";
    case NOT_FOUND: return "named symbol not found";
    case 719: return "unspecified launch failure";
    default: return "invalid argument";
  }
}
int hipMalloc(void** p, size_t n) {
  if (used + n > memory) return OUT_OF_MEMORY;
  *p = aligned_alloc(256, (n + 255) / 256 * 256);
  memset(*p, 0xA5, n);  // memory of a device holds what was left there
  blocks[(char*)*p] = n;
  used += n;
  record("malloc " + number(n));
  return SUCCESS;
}
int hipFree(void* p) {
  auto it = blocks.find((char*)p);
  if (it == blocks.end()) return INVALID;
  record("free " + number(it->second));
  used -= it->second;
  blocks.erase(it);
  free(p);
  return SUCCESS;
}
int hipMemsetAsync(void* p, int v, size_t n, void* s) {
  if (!inside(p, n) || !streams.count(s)) return INVALID;
  memset(p, v, n);
  return SUCCESS;
}
int hipMemcpyAsync(void* to, const void* from, size_t n, int kind, void* s) {
  if (!streams.count(s) || ((kind & 1) && !inside(to, n)) || ((kind & 2) && !inside(from, n))) return INVALID;
  memcpy(to, from, n);
  record(std::string("copy ") + (kind == 1 ? "to" : kind == 2 ? "from" : "on") + " device " + number(n));
  return SUCCESS;
}
int hipStreamCreateWithFlags(void** s, unsigned) { *s = malloc(1); streams.insert(*s); return SUCCESS; }
int hipStreamDestroy(void* s) { if (!streams.erase(s)) return INVALID; free(s); return SUCCESS; }
int hipStreamSynchronize(void* s) { record("synchronize"); return streams.count(s) ? SUCCESS : INVALID; }
int hipEventCreateWithFlags(void** e, unsigned) { *e = calloc(1, 8); events.insert(*e); return SUCCESS; }
int hipEventDestroy(void* e) { if (!events.erase(e)) return INVALID; free(e); return SUCCESS; }
int hipEventRecord(void* e, void* s) {
  static double now = 0;
  if (!events.count(e) || !streams.count(s)) return INVALID;
  *(double*)e = now += 0.25;
  return SUCCESS;
}
int hipStreamWaitEvent(void* s, void* e, unsigned) {
  if (!events.count(e) || !streams.count(s)) return INVALID;
  record("wait for event");
  return SUCCESS;
}
int hipEventSynchronize(void*) { return SUCCESS; }
int hipEventElapsedTime(float* ms, void* a, void* b) { *ms = float(*(double*)b - *(double*)a); return SUCCESS; }

int hipModuleLoadData(void** module, const void* image) {
  static int serial = 0;
  if (memcmp(image, "\177ELF", 4)) return INVALID_IMAGE;
  const auto* head = (const unsigned char*)image;  // an ELF file ends with its section headers
  const size_t size = *(const uint64_t*)(head + 40) + *(const uint16_t*)(head + 58) * *(const uint16_t*)(head + 60);
  const int file = memfd_create("module", 0);
  if (write(file, image, size) != ssize_t(size)) return INVALID_IMAGE;
  const std::string path = "/proc/self/fd/" + number(file), unique = "/tmp/stub-" + number(getpid()) + "-" + number(++serial);
  if (symlink(path.c_str(), unique.c_str())) return INVALID_IMAGE;
  void* library = dlopen(unique.c_str(), RTLD_NOW | RTLD_LOCAL);
  unlink(unique.c_str());
  close(file);
  if (!library) return INVALID_IMAGE;
  const char* made_for = (const char*)dlsym(library, "stub_arch");
  if (!made_for || arch.compare(0, strlen(made_for), made_for)) { dlclose(library); return NO_BINARY; }
  modules.insert(library);
  *module = library;
  record("load module");
  return SUCCESS;
}
int hipModuleUnload(void* m) {
  if (!modules.erase(m)) return INVALID;
  for (Function* f : functions[m]) delete f;
  functions.erase(m);
  record("unload module");
  return dlclose(m) ? INVALID : SUCCESS;
}
int hipModuleGetFunction(void** f, void* m, const char* name) {
  void* kernel = dlsym(m, name);
  if (!kernel) return NOT_FOUND;
  auto* function = new Function{kernel, m};
  functions[m].push_back(function);
  *f = function;
  return SUCCESS;
}
int hipModuleLaunchKernel(void* f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, void* s, void** parameters, void** extra) {
  if (!streams.count(s) || parameters || !extra || extra[0] != (void*)1 || extra[2] != (void*)2) return INVALID;
  if (fail_next_launch) { fail_next_launch = 0; return 719; }
  const auto* function = (Function*)f;
  auto** arguments = (void**)extra[1];
  const size_t count = *(size_t*)extra[3] / sizeof(void*);
  for (size_t i = 0; i < count; ++i)
    if (!inside(arguments[i], 1)) return INVALID;
  Launch launch{function->kernel, function->module, {gx, gy, gz}, bx * by * bz,
                std::vector<void*>(arguments, arguments + count)};
  record("launch " + number(gx) + "," + number(gy) + "," + number(gz) + " " + number(bx) + "," + number(by) + "," +
         number(bz) + " shared " + number(shared) + " arguments " + number(count));
  if (capture) capture->push_back(launch);
  else run(launch);
  return SUCCESS;
}

int hipStreamBeginCapture(void* s, int) {
  if (!streams.count(s) || capture) return INVALID;
  capture = new std::vector<Launch>;
  return SUCCESS;
}
int hipStreamEndCapture(void*, void** graph) { *graph = capture; graphs.insert(capture); capture = nullptr; return SUCCESS; }
int hipGraphInstantiate(void** exec, void* graph, void*, void*, size_t) {
  *exec = new std::vector<Launch>(*(std::vector<Launch>*)graph);
  graphs.insert(*exec);
  return SUCCESS;
}
int hipGraphLaunch(void* exec, void* s) {
  if (!streams.count(s) || !graphs.count(exec)) return INVALID;
  record("launch graph");
  for (const Launch& launch : *(std::vector<Launch>*)exec) run(launch);
  return SUCCESS;
}
int hipGraphExecDestroy(void* g) { if (!graphs.erase(g)) return INVALID; delete (std::vector<Launch>*)g; return SUCCESS; }
int hipGraphDestroy(void* g) { if (!graphs.erase(g)) return INVALID; delete (std::vector<Launch>*)g; return SUCCESS; }
}
