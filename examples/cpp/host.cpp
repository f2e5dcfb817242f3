// Runs a .pte with ExecuTorch's Module, and writes what it returns as numpy files.
//
//   host MODEL.pte [WEIGHTS.ptd ...] [METHOD:]FOLDER ...
//
// Each FOLDER is one call: input_0.npy, ... are read there, and output_0.npy, ... written.
#include "numpy.h"
#include "shared_memory.h"

#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/device_allocator.h>

#include <cstdio>
#include <optional>
#ifdef WITH_CUDA
#include <cuda_runtime.h>
#endif
#ifdef WITH_CUDA_BACKEND
#include <executorch/extension/cuda/caller_stream.h>
#endif
#ifdef WITH_TENSORRT_GUARD
#include <torch_tensorrt/executorch/TensorRTBackend.h>
#endif

using namespace executorch::extension;
using namespace executorch::runtime;
using executorch::aten::Device;

void check(Error error, const std::string& what) {
  if (error != Error::Ok) {
    throw std::runtime_error(what + ": " + to_string(error));
  }
}

// A tensor that isn't the host's is in memory that something in this host allocates.
void check_device(const Device& device, const char* what) {
  if (!device.is_cpu() && !get_device_allocator(device.type())) {
    throw std::runtime_error(std::string("nothing in this host allocates device memory, which the file has ") + what);
  }
}

// Before anything is loaded: the backends and the memory that the file asks for.
void check_host(const MethodMeta& method) {
  for (size_t i = 0; i < method.num_backends(); i++) {
    const char* name = *method.get_backend_name(i);
    const BackendInterface* backend = get_backend_class(name);
    if (!backend || !backend->is_available()) {
      throw std::runtime_error(std::string(name) + (backend ? " finds no device" : " is not linked into this host"));
    }
  }
  for (size_t i = 0; i < method.num_memory_planned_buffers(); i++) {
    check_device(*method.memory_planned_buffer_device(i), "planned");
  }
}

// The tensor where `like` is labelled to be.
TensorPtr placed(const TensorPtr& tensor, const executorch::aten::Tensor& like) {
  return like.device().is_cpu() ? tensor : clone_tensor_ptr_to(tensor, like.device());
}

// A loaded method, with its outputs bound.
struct Bound {
  std::vector<EValue> inputs;
  Method* method;
};

Bound load(Module& module, SharedMemory& memory, const std::string& name, std::vector<TensorPtr>& kept) {
  const auto meta = module.method_meta(name);
  check(meta.error(), name);
  check_host(*meta);
  check(memory.load(module, name), "loading " + name); // allocates the arenas on all devices
  Bound bound{std::vector<EValue>(meta->num_inputs()), *module.method(name)};
  Method* method = bound.method;
  check(method->get_inputs(bound.inputs.data(), bound.inputs.size()), "inputs");
  for (const EValue& input : bound.inputs) {
    if (input.isTensor()) {
      check_device(input.toTensor().device(), "its inputs in");
    }
  }
  for (size_t i = 0; i < meta->num_outputs(); i++) {
    const auto info = meta->output_tensor_meta(i);
    if (info.ok() && !info->is_memory_planned()) { // left to the host
      const auto& output = method->get_output(i).toTensor();
      check_device(output.device(), "its outputs in");
      kept.push_back(placed(empty({info->sizes().begin(), info->sizes().end()}, info->scalar_type()), output));
      check(method->set_output_data_ptr(kept.back()->mutable_data_ptr(), info->nbytes(), i), "binding an output");
    }
  }
  return bound;
}

// Of "METHOD:FOLDER" or "FOLDER".
std::string method_of(const std::string& call) {
  const size_t colon = call.find(':');
  return colon == call.npos ? "forward" : call.substr(0, colon);
}

void run(const std::string& program, const std::vector<std::string>& weights, const std::vector<std::string>& calls) {
  SharedMemory memory; // outlives the module
  std::vector<TensorPtr> kept; // a delegate may still be reading after a call
  Module module(program, weights, Module::LoadMode::Mmap);
  check(module.load(), program);
#ifdef WITH_CUDA
  // AOTInductor frees memory in each call, which the driver takes back at each synchronization.
  cudaMemPool_t pool;
  uint64_t everything = UINT64_MAX;
  cudaDeviceGetDefaultMemPool(&pool, 0);
  cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything);
  cudaStream_t stream = nullptr; // of all delegates
  cudaStreamCreate(&stream);
#ifdef WITH_TENSORRT_GUARD // of Torch-TensorRT 2.13; later ones go by ExecuTorch's
  torch_tensorrt::executorch_backend::CudaStreamGuard engines(stream);
#endif
#endif
#ifdef WITH_CUDA_BACKEND
  cuda::CallerStreamGuard guard(stream);
  // Methods' libraries have one cache, and their weights once: buffers of one name are one.
  BackendOptions<1> options;
  options.set_option("weight_sharing_across_methods", module.num_methods().get() > 1);
  check(set_option("CudaBackend", options.view()), "CudaBackend's options");
#endif
  std::map<std::string, Bound> methods; // all are loaded before one is run: state gets its first value then
  for (const std::string& call : calls) {
    const std::string name = method_of(call);
    if (!methods.count(name)) {
      methods.emplace(name, load(module, memory, name, kept));
    }
  }
  for (const std::string& call : calls) {
    const size_t colon = call.find(':');
    const std::string name = method_of(call);
    const std::string folder = call.substr(colon == call.npos ? 0 : colon + 1);
    const std::vector<EValue>& inputs = methods.at(name).inputs;
    std::vector<EValue> given;
    for (size_t i = 0; i < inputs.size(); i++) {
      const TensorPtr host = numpy::read(folder + "/input_" + std::to_string(i) + ".npy");
      kept.insert(kept.end(), {host, placed(host, inputs[i].toTensor())});
      given.emplace_back(kept.back());
    }
    const auto outputs = module.execute(name, given);
    check(outputs.error(), folder);
    for (size_t i = 0; i < outputs->size(); i++) {
      const TensorPtr output = make_tensor_ptr((*outputs)[i].toTensor());
      const bool on_host = output->device().is_cpu();
      numpy::write(
          folder + "/output_" + std::to_string(i) + ".npy",
          on_host ? *output : *clone_tensor_ptr_to(output, executorch::aten::DeviceType::CPU));
    }
  }
}

int main(int argc, char** argv) {
  std::vector<std::string> weights, calls;
  for (int i = 2; i < argc; i++) {
    const std::string name = argv[i];
    (name.size() > 4 && name.substr(name.size() - 4) == ".ptd" ? weights : calls).push_back(name);
  }
  try {
    if (calls.empty()) {
      throw std::runtime_error("host MODEL.pte [WEIGHTS.ptd ...] [METHOD:]FOLDER ...");
    }
    run(argv[1], weights, calls);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
