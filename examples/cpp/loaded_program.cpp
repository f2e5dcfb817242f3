#include "loaded_program.h"

#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/device_allocator.h>

#include <optional>
#include <stdexcept>
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

namespace {

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

} // namespace

void check(Error error, const std::string& what) {
  if (error != Error::Ok) {
    throw std::runtime_error(what + ": " + to_string(error));
  }
}

TensorPtr placed(const TensorPtr& tensor, const executorch::aten::Tensor& like) {
  return like.device().is_cpu() ? tensor : clone_tensor_ptr_to(tensor, like.device());
}

TensorPtr on_host(const executorch::aten::Tensor& tensor) {
  const TensorPtr view = make_tensor_ptr(tensor);
  return view->device().is_cpu() ? view : clone_tensor_ptr_to(view, executorch::aten::DeviceType::CPU);
}

// The stream of all delegates, which ends before the program does.
struct LoadedProgram::Stream {
#ifdef WITH_CUDA
  static cudaStream_t create() {
    // AOTInductor frees memory in each call, which the driver takes back at each synchronization.
    cudaMemPool_t pool;
    uint64_t everything = UINT64_MAX;
    cudaDeviceGetDefaultMemPool(&pool, 0);
    cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &everything);
    cudaStream_t stream = nullptr;
    cudaStreamCreate(&stream);
    return stream;
  }
  cudaStream_t stream = create();
#ifdef WITH_TENSORRT_GUARD // of Torch-TensorRT 2.13; later ones go by ExecuTorch's
  torch_tensorrt::executorch_backend::CudaStreamGuard engines{stream};
#endif
#ifdef WITH_CUDA_BACKEND
  std::optional<cuda::CallerStreamGuard> guard;
#endif
#endif
};

LoadedProgram::LoadedProgram(
    const std::string& file, const std::vector<std::string>& weights, const std::string& cuda_graph)
    : module_(file, weights, Module::LoadMode::Mmap) {
  check(module_.load(), file);
  stream_ = std::make_unique<Stream>();
#ifdef WITH_CUDA_BACKEND
  if (cuda_graph.empty()) { // which CudaBackend captures on a stream of its own alone
    stream_->guard.emplace(stream_->stream);
  }
#endif
  if (get_backend_class("CudaBackend")) {
    BackendOptions<3> options;
    // Methods' libraries have one cache, and their weights once: buffers of one name are one.
    options.set_option("weight_sharing_across_methods", module_.num_methods().get() > 1);
    if (!cuda_graph.empty()) {
      options.set_option("enable_cuda_graph_for_method", cuda_graph.c_str());
      options.set_option("use_shared_cuda_stream", true);
    }
    check(set_option("CudaBackend", options.view()), "CudaBackend's options");
  } else if (!cuda_graph.empty()) {
    throw std::runtime_error("CUDA graphs are CudaBackend's, which is not linked into this host");
  }
}

LoadedProgram::~LoadedProgram() = default;

Bound LoadedProgram::load(const std::string& name) {
  const auto meta = module_.method_meta(name);
  check(meta.error(), name);
  check_host(*meta);
  check(memory_.load(module_, name), "loading " + name); // allocates the arenas on all devices
  Bound bound{std::vector<EValue>(meta->num_inputs()), *module_.method(name)};
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
      outputs_.push_back(placed(empty({info->sizes().begin(), info->sizes().end()}, info->scalar_type()), output));
      check(method->set_output_data_ptr(outputs_.back()->mutable_data_ptr(), info->nbytes(), i), "binding an output");
    }
  }
  return bound;
}
