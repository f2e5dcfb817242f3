// Memory on GPUs, for hosts without CudaBackend, which brings it: TensorRT's delegate allocates none.
//
// Copies are on the default stream, which waits for the streams of delegates and they for it.
#include <executorch/runtime/core/device_allocator.h>

#include <cuda_runtime.h>

namespace {

using namespace executorch::runtime;
using etensor::DeviceIndex;

Error result_of(cudaError_t status) {
  return status == cudaSuccess ? Error::Ok : Error::Internal;
}

class CudaMemory final : public DeviceAllocator {
 public:
  Result<void*> allocate(size_t nbytes, DeviceIndex index, size_t) override { // cudaMalloc aligns to 256 bytes
    void* memory = nullptr;
    if (cudaSetDevice(index) != cudaSuccess || cudaMalloc(&memory, nbytes) != cudaSuccess) {
      return Error::MemoryAllocationFailed;
    }
    return memory;
  }
  void deallocate(void* memory, DeviceIndex index) override {
    cudaSetDevice(index);
    cudaFree(memory);
  }
  Error copy_host_to_device(void* to, const void* from, size_t nbytes, DeviceIndex index) override {
    return copy(to, from, nbytes, index, cudaMemcpyHostToDevice);
  }
  Error copy_device_to_host(void* to, const void* from, size_t nbytes, DeviceIndex index) override {
    return copy(to, from, nbytes, index, cudaMemcpyDeviceToHost);
  }
  etensor::DeviceType device_type() const override { return etensor::DeviceType::CUDA; }

 private:
  static Error copy(void* to, const void* from, size_t nbytes, DeviceIndex index, cudaMemcpyKind kind) {
    const Error chosen = result_of(cudaSetDevice(index));
    return chosen == Error::Ok ? result_of(cudaMemcpy(to, from, nbytes, kind)) : chosen;
  }
};

CudaMemory memory;
[[maybe_unused]] const bool registered = (register_device_allocator(&memory), true);

} // namespace
