"""A stand-alone C++ host for a Program of HIP kernels: for a service without Python.

model.cpp     loads the code object and the weights, runs the steps; with -DCONVOPT_MAIN a program
kernels.hip   all kernels, for hipcc
weights.bin   the weights as they lie on the device
"""

from __future__ import annotations

from pathlib import Path

from convopt.codegen.hip import program_source
from convopt.errors import InputError
from convopt.runtime import hipcc
from convopt.runtime.device_program import DeviceProgram
from convopt.runtime.folders import write_files
from convopt.runtime.loaded import nbytes
from convopt.runtime.program import IslandStep, KernelStep, TensorSpec

_SPACES = ("arena", "weights", "input", "output")


def write_host(loaded: DeviceProgram, folder: Path) -> list[str]:
    """Writes the three files; their names. InputError: other kernels than HIP's, nodes that fall
    back, a file that can't be written.
    """
    if loaded.kind != "hip":
        raise InputError(f"--host cpp: it is for kernels in HIP source, these are of kind {loaded.kind}")
    program = loaded.program
    islands = [step for step in program.steps if isinstance(step, IslandStep)]
    if islands:
        reasons = {place.node: place.detail for place in program.placement}
        nodes = [node for step in islands for node in step.nodes]
        listed = "; ".join(f"{node} ({reasons.get(node, 'no reason known')})" for node in nodes)
        raise InputError(f"--host cpp: these nodes run in onnxruntime, which needs Python: {listed}")
    source = program_source(binary.decode() for binary in loaded.binaries.values())
    contents = {
        "kernels.hip": source.encode(),
        "weights.bin": bytes(loaded.weights),
        "model.cpp": _model(loaded, hipcc.arch_of(source)).encode(),
    }
    write_files(folder, contents)
    return list(contents)


def _model(loaded: DeviceProgram, arch: str) -> str:
    program = loaded.program
    arguments: list[str] = []
    steps: list[str] = []
    for step in program.steps:
        assert (
            isinstance(step, KernelStep) and step.launch is not None
        )  # islands are refused, the rest checked
        grid, block = (", ".join(map(str, extents)) for extents in (step.launch.grid, step.launch.block))
        steps.append(
            f'    {{"{step.symbol}", {{{grid}}}, {{{block}}}, {step.launch.shared}, {len(arguments)},'
            f" {len(step.args)}}},  // {step.label}"
        )
        arguments += [f"    {{{_SPACES.index(a.space)}, {a.index}, {a.offset}}}," for a in step.args]
    line = " ".join(hipcc.command("hipcc", arch, "kernels.hip", "kernels.co"))
    return _TEMPLATE.format(
        line=line,
        signature="\n".join(
            f"//   {what} {i}: {spec.name} {spec.dtype} {spec.shape}"
            for what, specs in (("input", program.inputs), ("output", program.outputs))
            for i, spec in enumerate(specs)
        ),
        arena=max(program.arena_bytes, 1),
        inputs=_sizes(program.inputs),
        outputs=_sizes(program.outputs),
        arguments="\n".join(arguments),
        steps="\n".join(steps),
    )


def _sizes(specs: tuple[TensorSpec, ...]) -> str:
    return ", ".join(str(nbytes(spec)) for spec in specs)


_TEMPLATE = """// Made by convopt. Build:
//   {line}
//   c++ -O2 -std=c++17 -D__HIP_PLATFORM_AMD__ -DCONVOPT_MAIN model.cpp -lamdhip64 -o model
// and run: ./model kernels.co weights.bin INPUT.bin... OUTPUT.bin...   (row-major, no header)
// On a DCU: -I and -L of $ROCM_PATH/hip, and -lgalaxyhip. Without -DCONVOPT_MAIN it is the class Model.
//
{signature}
#include <hip/hip_runtime_api.h>

#include <cstdio>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <string>
#include <vector>

namespace convopt {{

constexpr size_t ARENA = {arena};
const std::vector<size_t> INPUTS = {{{inputs}}}, OUTPUTS = {{{outputs}}};  // bytes

struct Argument {{
  int space;  // 0 arena, 1 weights, 2 inputs, 3 outputs
  int index;
  size_t offset;
}};
struct Step {{
  const char* symbol;
  unsigned grid[3], block[3], shared;
  int first, count;  // among the arguments
}};
const Argument ARGUMENTS[] = {{
{arguments}
}};
const Step STEPS[] = {{
{steps}
}};

inline void check(hipError_t status, const char* what) {{
  if (status != hipSuccess) throw std::runtime_error(std::string(what) + ": " + hipGetErrorString(status));
}}

inline std::vector<char> read_file(const std::string& path) {{
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  return {{std::istreambuf_iterator<char>(file), {{}}}};
}}

// One stream, one arena: calls of one Model must not overlap.
class Model {{
 public:
  Model(const std::string& code_path, const std::string& weights_path) {{
    try {{
      const std::vector<char> code = read_file(code_path), weights = read_file(weights_path);
      check(hipStreamCreateWithFlags(&stream_, hipStreamNonBlocking), "stream");
      check(hipModuleLoadData(&module_, code.data()), code_path.c_str());
      memory_ = {{{{allocate(ARENA)}}, {{allocate(weights.size())}}, {{}}, {{}}}};
      for (size_t n : INPUTS) memory_[2].push_back(allocate(n));
      for (size_t n : OUTPUTS) memory_[3].push_back(allocate(n));
      copy(memory_[1][0], weights.data(), weights.size(), hipMemcpyHostToDevice);
      check(hipStreamSynchronize(stream_), "weights");
      for (const Step& step : STEPS) {{
        kernels_.emplace_back();
        check(hipModuleGetFunction(&kernels_.back(), module_, step.symbol), step.symbol);
      }}
    }} catch (...) {{
      release();
      throw;
    }}
  }}
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;
  ~Model() {{ release(); }}

  // Host memory in, host memory out; returns when the outputs are there.
  void run(const std::vector<const void*>& inputs, const std::vector<void*>& outputs) {{
    if (inputs.size() != INPUTS.size() || outputs.size() != OUTPUTS.size())
      throw std::runtime_error("wrong number of inputs or outputs");
    for (size_t i = 0; i < INPUTS.size(); ++i)
      copy(memory_[2][i], inputs[i], INPUTS[i], hipMemcpyHostToDevice);
    launch();
    for (size_t i = 0; i < OUTPUTS.size(); ++i)
      copy(outputs[i], memory_[3][i], OUTPUTS[i], hipMemcpyDeviceToHost);
    check(hipStreamSynchronize(stream_), "run");
  }}

  // On what input(i) and output(i) hold; waits for nothing.
  void launch() {{
    for (size_t i = 0; i < kernels_.size(); ++i) {{
      const Step& step = STEPS[i];
      std::vector<char*> pointers;
      for (int a = step.first; a < step.first + step.count; ++a) {{
        const Argument& place = ARGUMENTS[a];
        pointers.push_back(static_cast<char*>(memory_[place.space][place.index]) + place.offset);
      }}
      size_t size = pointers.size() * sizeof(char*);
      void* packed[] = {{HIP_LAUNCH_PARAM_BUFFER_POINTER, pointers.data(),
                        HIP_LAUNCH_PARAM_BUFFER_SIZE, &size, HIP_LAUNCH_PARAM_END}};
      check(hipModuleLaunchKernel(kernels_[i], step.grid[0], step.grid[1], step.grid[2], step.block[0],
                                  step.block[1], step.block[2], step.shared, stream_, nullptr, packed),
            step.symbol);
    }}
  }}
  void* input(int i) {{ return memory_[2][i]; }}
  void* output(int i) {{ return memory_[3][i]; }}
  hipStream_t stream() {{ return stream_; }}

 private:
  // Zeroed, as the borders of padded intermediates must be.
  void* allocate(size_t n) {{
    void* memory = nullptr;
    check(hipMalloc(&memory, n ? n : 1), "memory");
    owned_.push_back(memory);
    check(hipMemsetAsync(memory, 0, n ? n : 1, stream_), "memory");
    return memory;
  }}
  void copy(void* to, const void* from, size_t n, hipMemcpyKind kind) {{
    if (n) check(hipMemcpyAsync(to, from, n, kind, stream_), "copy");
  }}
  void release() {{
    for (void* memory : owned_) (void)hipFree(memory);
    if (module_) (void)hipModuleUnload(module_);
    if (stream_) (void)hipStreamDestroy(stream_);
  }}
  hipStream_t stream_ = nullptr;
  hipModule_t module_ = nullptr;
  std::vector<std::vector<void*>> memory_;
  std::vector<void*> owned_;
  std::vector<hipFunction_t> kernels_;
}};

}}  // namespace convopt

#ifdef CONVOPT_MAIN
int main(int count, char** arguments) try {{
  using namespace convopt;
  if (size_t(count) != 3 + INPUTS.size() + OUTPUTS.size()) {{
    std::fprintf(stderr, "usage: %s kernels.co weights.bin INPUT.bin... OUTPUT.bin...\\n", arguments[0]);
    return 2;
  }}
  Model model(arguments[1], arguments[2]);
  std::vector<std::vector<char>> inputs, outputs;
  std::vector<const void*> in;
  std::vector<void*> out;
  for (size_t i = 0; i < INPUTS.size(); ++i) {{
    inputs.push_back(read_file(arguments[3 + i]));
    if (inputs.back().size() != INPUTS[i])
      throw std::runtime_error(std::string(arguments[3 + i]) + ": wrong size");
  }}
  for (auto& data : inputs) in.push_back(data.data());
  for (size_t n : OUTPUTS) outputs.emplace_back(n);
  for (auto& data : outputs) out.push_back(data.data());
  model.run(in, out);
  for (size_t i = 0; i < OUTPUTS.size(); ++i) {{
    std::ofstream file(arguments[3 + INPUTS.size() + i], std::ios::binary);
    if (!file.write(outputs[i].data(), outputs[i].size()))
      throw std::runtime_error("an output cannot be written");
  }}
  return 0;
}} catch (const std::exception& error) {{
  std::fprintf(stderr, "%s\\n", error.what());
  return 1;
}}
#endif
"""
