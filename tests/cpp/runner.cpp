// Runs a .pte in ExecuTorch's C++ runtime and writes what came out.
//
//   runner PROGRAM.pte FOLDER RUNS [WEIGHTS.ptd]
//
// FOLDER has in_RUN_INDEX.bin, the inputs' bytes; out_RUN_INDEX.bin is written there. One line of
// JSON goes to standard output: copies per run, and the planned buffers. From the environment:
//   DEVICE_INPUTS, BIND_OUTPUTS  a letter for each input or output, h (host) or d (device)
//   STREAM                       own (default), shared (the backend's option), caller (a guard)
#include <executorch/extension/kernel_util/make_boxed_from_unboxed_functor.h>
#include <executorch/extension/module/module.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/backend/options.h>
#include <executorch/runtime/core/device_allocator.h>
#include <executorch/runtime/executor/method.h>
#include <executorch/runtime/platform/runtime.h>

#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#ifdef WITH_CUDA
#include <cuda_runtime.h>
#include <executorch/extension/cuda/caller_stream.h>
#else
void standin_begin();
void standin_register();
void standin_synchronize();
#endif

using namespace executorch::runtime;
using etensor::DeviceType;
using executorch::aten::ArrayRef;
using executorch::aten::OptionalArrayRef;
using executorch::aten::Scalar;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;
using Context = KernelRuntimeContext;

namespace torch::executor::native {
Tensor& add_out(Context&, const Tensor&, const Tensor&, const Scalar&, Tensor&);
Tensor& sub_out(Context&, const Tensor&, const Tensor&, const Scalar&, Tensor&);
Tensor& mul_out(Context&, const Tensor&, const Tensor&, Tensor&);
Tensor& mm_out(Context&, const Tensor&, const Tensor&, Tensor&);
Tensor& sigmoid_out(Context&, const Tensor&, Tensor&);
Tensor& relu_out(Context&, const Tensor&, Tensor&);
Tensor& neg_out(Context&, const Tensor&, Tensor&);
Tensor& view_copy_out(Context&, const Tensor&, ArrayRef<int64_t>, Tensor&);
Tensor& copy_out(Context&, const Tensor&, const Tensor&, bool, Tensor&);
Tensor& _h2d_copy_out(Context&, const Tensor&, Tensor&);
Tensor& _d2h_copy_out(Context&, const Tensor&, Tensor&);
Tensor& _clone_dim_order_out(Context&, const Tensor&, bool, OptionalArrayRef<int64_t>, Tensor&);
} // namespace torch::executor::native

namespace {
namespace native = torch::executor::native;

int to_device = 0, to_host = 0;
Tensor& h2d(Context& context, const Tensor& from, Tensor& to) {
  to_device++;
  return native::_h2d_copy_out(context, from, to);
}
Tensor& d2h(Context& context, const Tensor& from, Tensor& to) {
  to_host++;
  return native::_d2h_copy_out(context, from, to);
}

EXECUTORCH_LIBRARY(aten, "add.out", native::add_out);
EXECUTORCH_LIBRARY(aten, "sub.out", native::sub_out);
EXECUTORCH_LIBRARY(aten, "mul.out", native::mul_out);
EXECUTORCH_LIBRARY(aten, "mm.out", native::mm_out);
EXECUTORCH_LIBRARY(aten, "sigmoid.out", native::sigmoid_out);
EXECUTORCH_LIBRARY(aten, "relu.out", native::relu_out);
EXECUTORCH_LIBRARY(aten, "neg.out", native::neg_out);
EXECUTORCH_LIBRARY(aten, "view_copy.out", native::view_copy_out);
EXECUTORCH_LIBRARY(aten, "copy.out", native::copy_out);
// Written in place: the last argument is not what is written, as EXECUTORCH_LIBRARY wants it.
const auto copy_in_place = register_kernel(Kernel("aten::copy_", [](Context& context, Span<EValue*> stack) {
  Tensor& to = stack[0]->toTensor();
  native::copy_out(context, to, stack[1]->toTensor(), stack[2]->toBool(), to);
}));
EXECUTORCH_LIBRARY(dim_order_ops, "_clone_dim_order.out", native::_clone_dim_order_out);
EXECUTORCH_LIBRARY(et_copy, "_h2d_copy.out", h2d);
EXECUTORCH_LIBRARY(et_copy, "_d2h_copy.out", d2h);

[[noreturn]] void fail(const std::string& what, Error error) {
  fprintf(stderr, "%s: error 0x%x\n", what.c_str(), static_cast<unsigned>(error));
  _exit(1);
}

std::string option(const char* name) {
  const char* value = getenv(name);
  return value ? value : "";
}

std::vector<char> read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    fprintf(stderr, "no file %s\n", path.c_str());
    _exit(1);
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

void write(const std::string& path, const std::vector<char>& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), bytes.size());
}

// A tensor that outlives the call, over memory that is somebody else's.
Tensor tensor_over(const TensorInfo& info, void* memory, DeviceType where) {
  const size_t dims = info.sizes().size();
  auto* sizes = new TensorImpl::SizesType[dims];
  auto* order = new TensorImpl::DimOrderType[dims];
  auto* strides = new TensorImpl::StridesType[dims];
  for (size_t i = 0; i < dims; i++) {
    sizes[i] = info.sizes()[i];
    order[i] = info.dim_order()[i];
  }
  TensorImpl::StridesType step = 1;
  for (size_t i = dims; i-- > 0;) {
    strides[order[i]] = step;
    step *= sizes[order[i]];
  }
  return Tensor(new TensorImpl(
      info.scalar_type(), dims, sizes, memory, order, strides, TensorShapeDynamism::STATIC, where, 0));
}

void* device_memory(const void* bytes, size_t nbytes) {
  DeviceAllocator* device = get_device_allocator(DeviceType::CUDA);
  void* memory = device->allocate(nbytes, 0).get();
  if (bytes) {
    (void)device->copy_host_to_device(memory, bytes, nbytes, 0);
  }
  return memory;
}
} // namespace

int main(int argc, char** argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: runner PROGRAM.pte FOLDER RUNS [WEIGHTS.ptd]\n");
    return 2;
  }
  runtime_init();
#ifndef WITH_CUDA
  standin_register();
#endif
  const std::string folder = argv[2], stream = option("STREAM");
  const int runs = atoi(argv[3]);
  std::vector<std::string> data;
  if (argc > 4) {
    data.push_back(argv[4]);
  }
#ifdef WITH_CUDA
  if (stream == "shared") {
    BackendOptions<1> options;
    (void)options.set_option("use_shared_cuda_stream", true);
    if (Error error = set_option("CudaBackend", options.view()); error != Error::Ok) {
      fail("use_shared_cuda_stream", error);
    }
  }
#endif
  using executorch::extension::Module;
  Module module(argv[1], data, Module::LoadMode::File);
  if (Error error = module.load_method("forward"); error != Error::Ok) {
    fail("load", error);
  }
  auto meta = module.method_meta("forward");
  Method* method = module.method("forward").get();

  const std::string bind = option("BIND_OUTPUTS"), device_inputs = option("DEVICE_INPUTS");
  std::vector<std::vector<char>> bound;
  bound.reserve(bind.size());
  for (size_t i = 0; i < bind.size(); i++) {
    auto info = meta->output_tensor_meta(i);
    if (info->is_memory_planned()) {
      continue;
    }
    bound.emplace_back(info->nbytes());
    void* memory = bind[i] == 'd' ? device_memory(nullptr, info->nbytes()) : bound.back().data();
    if (Error error = method->set_output_data_ptr(memory, info->nbytes(), i); error != Error::Ok) {
      fail("bind output", error);
    }
  }

  for (int run = 0; run < runs; run++) {
    const std::string tag = std::to_string(run) + "_";
    std::vector<EValue> inputs;
    std::vector<std::vector<char>> bytes(meta->num_inputs());
    for (size_t i = 0; i < bytes.size(); i++) {
      auto info = meta->input_tensor_meta(i);
      bytes[i] = read(folder + "/in_" + tag + std::to_string(i) + ".bin");
      const bool on_device = i < device_inputs.size() && device_inputs[i] == 'd';
      void* memory = on_device ? device_memory(bytes[i].data(), bytes[i].size()) : bytes[i].data();
      inputs.emplace_back(tensor_over(*info, memory, on_device ? DeviceType::CUDA : DeviceType::CPU));
    }
    to_device = to_host = 0;
#ifdef WITH_CUDA
    std::unique_ptr<executorch::extension::cuda::CallerStreamGuard> guard;
    static cudaStream_t own = nullptr;
    if (stream == "caller") {
      if (!own) {
        cudaStreamCreate(&own);
      }
      guard = std::make_unique<executorch::extension::cuda::CallerStreamGuard>(own);
    }
#else
    standin_begin();
#endif
    auto result = module.execute("forward", inputs);
    if (!result.ok()) {
      fail("run " + std::to_string(run), result.error());
    }
    for (size_t i = 0; i < result->size(); i++) {
      const Tensor tensor = (*result)[i].toTensor();
      std::vector<char> out(tensor.nbytes());
      // What a caller sees who reads at once: a copy from the device is all that waits.
      if (tensor.unsafeGetTensorImpl()->device_type() == DeviceType::CUDA) {
        (void)get_device_allocator(DeviceType::CUDA)
            ->copy_device_to_host(out.data(), tensor.const_data_ptr(), out.size(), 0);
      } else {
        memcpy(out.data(), tensor.const_data_ptr(), out.size());
      }
      write(folder + "/out_" + tag + std::to_string(i) + ".bin", out);
    }
#ifdef WITH_CUDA
    cudaDeviceSynchronize();
#else
    standin_synchronize();
#endif
  }
  printf("{\"outputs\": %zu, \"to_device\": %d, \"to_host\": %d, \"buffers\": [", meta->num_outputs(), to_device, to_host);
  for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) {
    auto device = meta->memory_planned_buffer_device(i);
    printf(
        "%s[\"%s\", %ld]",
        i ? ", " : "",
        device->is_cpu() ? "cpu" : "cuda",
        static_cast<long>(meta->memory_planned_buffer_size(i).get()));
  }
  printf("]}\n");
  fflush(stdout);
  _exit(0); // AOTInductor's containers are left to the system, as upstream leaves them
}
