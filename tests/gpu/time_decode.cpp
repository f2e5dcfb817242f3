// Times a decoder's step in ExecuTorch's C++ runtime with CudaBackend, for time_decode.py --host.
//
//   time_decode MODEL.pte WEIGHTS.ptd TOKENS ROUNDS DEPTH [graph]
//
// TOKENS is a file of int64: what each step is given, at positions DEPTH, DEPTH + 1, ... First all steps run and the
// likeliest token behind each is printed; then ROUNDS times, and the median microseconds of a step are. The logits stay
// on the GPU then, where a sampler would read them. With `graph` CudaBackend replays the method as a CUDA graph.
//
// Built as examples/cpp is, in the place of its host.cpp, against an executorch with the CUDA backend.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>

#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <stdexcept>
#include <vector>

using namespace executorch::extension;
using namespace executorch::runtime;
using executorch::aten::ScalarType;

void check(Error error, const char* what) {
  if (error != Error::Ok) {
    throw std::runtime_error(std::string(what) + ": " + to_string(error));
  }
}

std::vector<int64_t> read_tokens(const char* path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  std::vector<int64_t> tokens(static_cast<size_t>(file.tellg()) / sizeof(int64_t));
  file.seekg(0).read(reinterpret_cast<char*>(tokens.data()), tokens.size() * sizeof(int64_t));
  if (!file || tokens.empty()) {
    throw std::runtime_error(std::string(path) + " has no tokens");
  }
  return tokens;
}

// The index of the largest of the last `vocabulary` values, which are bfloat16, on the GPU.
size_t likeliest(const executorch::aten::Tensor& logits) {
  const size_t vocabulary = logits.size(logits.dim() - 1);
  std::vector<uint16_t> bits(logits.numel());
  cudaMemcpy(bits.data(), logits.const_data_ptr(), logits.nbytes(), cudaMemcpyDefault);
  std::vector<float> values(vocabulary);
  for (size_t i = 0; i < vocabulary; i++) {
    const uint32_t wide = static_cast<uint32_t>(bits[bits.size() - vocabulary + i]) << 16;
    std::memcpy(&values[i], &wide, sizeof(wide));
  }
  return std::max_element(values.begin(), values.end()) - values.begin();
}

void time_decode(Module& module, std::vector<int64_t> tokens, int rounds, int64_t depth) {
  check(module.load_method("forward"), "loading forward");
  Method* method = *module.method("forward");
  const auto meta = *module.method_meta("forward");
  if (const auto info = *meta.output_tensor_meta(0); !info.is_memory_planned()) {
    void* memory = nullptr;
    cudaMalloc(&memory, info.nbytes());
    check(method->set_output_data_ptr(memory, info.nbytes(), 0), "binding the logits");
  }
  int64_t token = 0, position = 0;
  const auto tokens_in = from_blob(&token, {1, 1}, ScalarType::Long);
  const auto positions_in = from_blob(&position, {1}, ScalarType::Long);
  const auto step = [&](size_t index) {
    token = tokens[index];
    position = depth + static_cast<int64_t>(index);
    check(method->set_input(*tokens_in, 0), "the token");
    check(method->set_input(*positions_in, 1), "the position");
    check(method->execute(), "a step");
  };
  for (size_t i = 0; i < tokens.size(); i++) {
    step(i);
    std::printf("%zu ", likeliest(method->get_output(0).toTensor()));
  }
  std::vector<double> took;
  for (int round = 0; round < rounds; round++) {
    cudaDeviceSynchronize();
    const auto began = std::chrono::steady_clock::now();
    for (size_t i = 0; i < tokens.size(); i++) {
      step(i);
      cudaDeviceSynchronize(); // the next token is chosen from the logits
    }
    const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - began;
    took.push_back(passed.count() / tokens.size());
  }
  std::sort(took.begin(), took.end());
  std::printf("\n%.1f\n", took[took.size() / 2]);
}

int main(int argc, char** argv) {
  try {
    if (argc < 6) {
      throw std::runtime_error("time_decode MODEL.pte WEIGHTS.ptd TOKENS ROUNDS DEPTH [graph]");
    }
    cudaMemPool_t pool; // AOTInductor frees memory in each call, which the driver takes back at each synchronization
    uint64_t everything = UINT64_MAX;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything);
    if (argc > 6) {
      BackendOptions<1> options;
      check(options.set_option("enable_cuda_graph_for_method", "forward"), "an option");
      check(set_option("CudaBackend", options.view()), "CudaBackend's options");
    }
    Module module(argv[1], std::vector<std::string>{argv[2]}, Module::LoadMode::Mmap);
    time_decode(module, read_tokens(argv[3]), std::stoi(argv[4]), std::stoll(argv[5]));
    std::fflush(stdout);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  std::_Exit(0); // AOTInductor's containers are left to the system
}
