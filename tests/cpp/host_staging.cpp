// Torch-TensorRT's ExecuTorch delegate, asked when it logs that it stages host I/O (pytorch/TensorRT#4328).
//
//   host_staging OUT ENGINE_A ENGINE_B
//
// Both are blobs of the delegate, of engines from one float tensor (4, 64) to another. Prints, for each
// placement of inputs and outputs, how many lines the delegate logged in two calls; writes what they
// returned to OUT/PLACEMENT.bin. The same program linked with the delegate without the patch gives the
// same files. Needs a GPU and TensorRT; built from this file and the delegate's sources.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/exec_aten/exec_aten.h>
#include <executorch/runtime/platform/platform.h>
#include <executorch/runtime/platform/runtime.h>

#include <cuda_runtime.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <thread>
#include <vector>

using namespace executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;
using executorch::aten::TensorImpl;

namespace {
constexpr size_t kCount = 4 * 64;
constexpr int kCalls = 2;

std::atomic<int> logged{0};
void emit(et_timestamp_t, et_pal_log_level_t level, const char*, const char*, size_t, const char* text, size_t) {
  const std::string line(text);
  const bool staging = line.find("host I/O is staged") != std::string::npos;
  logged += staging;
  if (staging || level == et_pal_log_level_t::kError) {
    fprintf(stderr, "%c %s\n", static_cast<char>(level), text);
  }
}

void check(bool ok, const char* what) {
  if (!ok) {
    fprintf(stderr, "failed: %s\n", what);
    _Exit(1);
  }
}
void check(cudaError_t error) {
  check(error == cudaSuccess, cudaGetErrorString(error));
}

enum class Memory { kHost, kPinned, kDevice };

// A tensor (4, 64) in one kind of memory, which is left to the process's end.
struct Operand {
  TensorImpl::SizesType sizes[2] = {4, 64};
  TensorImpl::DimOrderType order[2] = {0, 1};
  TensorImpl::StridesType strides[2] = {64, 1};
  void* data = nullptr;
  std::unique_ptr<TensorImpl> impl;
  EValue value;

  explicit Operand(Memory memory) {
    const size_t bytes = kCount * sizeof(float);
    switch (memory) {
      case Memory::kHost:
        data = malloc(bytes);
        break;
      case Memory::kPinned:
        check(cudaMallocHost(&data, bytes));
        break;
      case Memory::kDevice:
        check(cudaMalloc(&data, bytes));
        break;
    }
    impl = std::make_unique<TensorImpl>(ScalarType::Float, 2, sizes, data, order, strides);
    value = EValue(Tensor(impl.get()));
  }
  void set(int call) {
    std::vector<float> x(kCount);
    for (size_t i = 0; i < kCount; i++) {
      x[i] = static_cast<float>((i * 37 + call * 11) % 101) / 50 - 1;
    }
    check(cudaMemcpy(data, x.data(), kCount * sizeof(float), cudaMemcpyDefault));
  }
  std::vector<float> get() const {
    std::vector<float> y(kCount);
    check(cudaMemcpy(y.data(), data, kCount * sizeof(float), cudaMemcpyDefault));
    return y;
  }
};

// One engine's delegate.
class Engine {
 public:
  explicit Engine(const std::string& path) : arena_(1 << 16), allocator_(arena_.size(), arena_.data()) {
    std::ifstream file(path, std::ios::binary);
    blob_.assign(std::istreambuf_iterator<char>(file), {});
    backend_ = get_backend_class("TensorRTBackend");
    check(backend_ != nullptr && backend_->is_available(), "TensorRTBackend isn't available");
    FreeableBuffer processed(blob_.data(), blob_.size(), nullptr);
    BackendInitContext context(&allocator_);
    auto handle = backend_->init(context, &processed, {});
    check(handle.ok(), "init");
    handle_ = handle.get();
  }
  ~Engine() {
    backend_->destroy(handle_);
  }
  void execute(Operand& in, Operand& out) {
    EValue* args[] = {&in.value, &out.value};
    BackendExecutionContext context;
    check(backend_->execute(context, handle_, {args, 2}) == Error::Ok, "execute");
  }

 private:
  std::vector<char> blob_;
  std::vector<uint8_t> arena_;
  MemoryAllocator allocator_;
  BackendInterface* backend_ = nullptr;
  DelegateHandle* handle_ = nullptr;
};

void call(Engine& engine, Memory in, Memory out, std::ostream& results) {
  Operand x(in), y(out);
  for (int i = 0; i < kCalls; i++) {
    x.set(i);
    engine.execute(x, y);
    results.write(reinterpret_cast<const char*>(y.get().data()), kCount * sizeof(float));
  }
}
} // namespace

int main(int argc, char** argv) {
  check(argc == 4, "host_staging OUT ENGINE_A ENGINE_B");
  runtime_init();
  register_pal(PalImpl::create(emit, __FILE__));
  const std::string folder = argv[1], a = argv[2], b = argv[3];
  const auto with = [&](const char* name, auto&& body) {
    logged = 0;
    std::ofstream results(folder + "/" + name + ".bin", std::ios::binary);
    body(results);
    printf("%s %d\n", name, logged.load());
  };
  const auto one = [&](const char* name, Memory in, Memory out) {
    with(name, [&](std::ostream& results) {
      Engine engine(a);
      call(engine, in, out, results);
    });
  };
  one("device", Memory::kDevice, Memory::kDevice);
  one("host", Memory::kHost, Memory::kHost);
  one("pinned", Memory::kPinned, Memory::kPinned);
  one("host_input", Memory::kHost, Memory::kDevice);
  one("host_output", Memory::kDevice, Memory::kHost);
  with("device_then_host", [&](std::ostream& results) {
    Engine engine(a);
    call(engine, Memory::kDevice, Memory::kDevice, results);
    check(logged == 0, "logged for device-resident I/O");
    call(engine, Memory::kHost, Memory::kDevice, results);
    call(engine, Memory::kHost, Memory::kHost, results);
  });
  with("two_engines", [&](std::ostream& results) {
    Engine first(a), second(b);
    call(first, Memory::kHost, Memory::kHost, results);
    call(second, Memory::kHost, Memory::kHost, results);
    call(first, Memory::kHost, Memory::kHost, results);
  });
  with("two_threads", [&](std::ostream& results) {
    Engine engine(a);
    const auto calls = [&] {
      Operand x(Memory::kHost), y(Memory::kHost);
      x.set(0);
      for (int i = 0; i < 50; i++) {
        engine.execute(x, y);
      }
    };
    std::thread other(calls);
    calls();
    other.join();
    call(engine, Memory::kHost, Memory::kHost, results);
  });
  return 0;
}
