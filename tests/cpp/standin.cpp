// A GPU's memory, streams and delegates, as far as order goes, on a machine without one.
//
// Device memory is host memory that only copies and delegates may touch. Each delegate has a stream
// of its own, as CudaBackend's have: work is enqueued, starts after a while, and goes on after the
// call; nothing waits for it but a copy, as a cudaMemcpy does, and a call of TensorRT's for its own.
// Later delegates wait less, so that whatever nobody has ordered comes in the wrong order.
//
// Linked into a host, they register themselves, as the real ones do.
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/device_allocator.h>

#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <sstream>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using namespace executorch::runtime;
using etensor::DeviceIndex;
using etensor::DeviceType;
using executorch::aten::Tensor;

namespace {

class Stream {
 public:
  Stream() : worker_([this] { work(); }) {}
  void enqueue(std::function<void()> job) {
    std::lock_guard<std::mutex> guard(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
  }
  void synchronize() {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [this] { return jobs_.empty(); });
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> guard(mutex_);
        changed_.wait(guard, [this] { return !jobs_.empty(); });
        job = jobs_.front();
      }
      job();
      std::lock_guard<std::mutex> guard(mutex_);
      jobs_.pop_front();
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  std::thread worker_;
};

// One GPU's streams; never destroyed, since their threads outlive main.
std::vector<Stream*>& streams() {
  static auto* all = new std::vector<Stream*>();
  return *all;
}
Stream* new_stream() {
  if (getenv("STANDIN_SHARED_STREAM") && !streams().empty()) {
    return streams().front();
  }
  streams().push_back(new Stream());
  return streams().back();
}

class Memory final : public DeviceAllocator {
 public:
  Result<void*> allocate(size_t nbytes, DeviceIndex, size_t) override {
    void* memory = std::malloc(nbytes);
    std::memset(memory, 0xff, nbytes); // as good as anything that cudaMalloc may give: NaN
    return memory;
  }
  void deallocate(void* memory, DeviceIndex) override { // waits, as cudaFree does
    synchronize();
    std::free(memory);
  }
  Error copy_host_to_device(void* to, const void* from, size_t nbytes, DeviceIndex) override {
    return copy(to, from, nbytes);
  }
  Error copy_device_to_host(void* to, const void* from, size_t nbytes, DeviceIndex) override {
    return copy(to, from, nbytes);
  }
  DeviceType device_type() const override { return DeviceType::CUDA; }

 private:
  static Error copy(void* to, const void* from, size_t nbytes) {
    if (nbytes == 0) {
      return Error::Ok; // upstream's returns before it waits for anything
    }
    synchronize();
    std::memcpy(to, from, nbytes);
    return Error::Ok;
  }
  static void synchronize() {
    for (Stream* stream : streams()) {
      stream->synchronize();
    }
  }
};

struct Operation {
  std::string name;
  std::vector<size_t> operands;
};

// What standin.py wrote. Values are square float matrices or, element by element, anything.
struct Payload {
  size_t inputs = 0, outputs = 0;
  std::vector<Operation> operations;
  std::vector<size_t> results;
  Stream* stream = nullptr;
  std::chrono::milliseconds delay{};

  explicit Payload(const std::string& text) {
    std::istringstream lines(text);
    std::string line;
    std::getline(lines, line);
    std::istringstream(line) >> inputs >> outputs;
    while (std::getline(lines, line)) {
      std::istringstream words(line);
      Operation operation;
      words >> operation.name;
      for (size_t operand; words >> operand;) {
        operation.operands.push_back(operand);
      }
      if (operation.name == "out") {
        results = operation.operands;
      } else {
        operations.push_back(operation);
      }
    }
  }

  // `in` is read when the work begins, not before.
  void run(const std::vector<const float*>& in, const std::vector<float*>& out, size_t rows, size_t columns) const {
    const size_t count = rows * columns;
    std::vector<std::vector<float>> values;
    for (const float* each : in) {
      values.emplace_back(each, each + count);
    }
    for (const Operation& operation : operations) {
      const auto& a = values[operation.operands[0]];
      const auto& b = values[operation.operands.back()];
      std::vector<float> result(count);
      if (operation.name == "mm") {
        for (size_t i = 0; i < rows; i++) {
          for (size_t k = 0; k < columns; k++) {
            for (size_t j = 0; j < columns; j++) {
              result[i * columns + j] += a[i * columns + k] * b[k * columns + j];
            }
          }
        }
      } else {
        for (size_t i = 0; i < count; i++) {
          result[i] = operation.name == "add" ? a[i] + b[i]
              : operation.name == "sub"       ? a[i] - b[i]
              : operation.name == "mul"       ? a[i] * b[i]
              : operation.name == "neg"       ? -a[i]
                                              : (a[i] > 0 ? a[i] : 0);
        }
      }
      values.push_back(std::move(result));
    }
    for (size_t i = 0; i < out.size(); i++) {
      std::memcpy(out[i], values[results[i]].data(), count * sizeof(float));
    }
  }
};

class StandIn final : public BackendInterface {
 public:
  explicit StandIn(bool synchronizes) : synchronizes_(synchronizes) {}
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* processed, ArrayRef<CompileSpec>) const override {
    auto* payload = new Payload(std::string(static_cast<const char*>(processed->data()), processed->size()));
    payload->stream = new_stream();
    static int earlier = 0;
    payload->delay = std::chrono::milliseconds(60 / ++earlier);
    return payload;
  }
  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    const auto* payload = static_cast<const Payload*>(handle);
    std::vector<const float*> in;
    std::vector<float*> out;
    for (size_t i = 0; i < args.size(); i++) {
      Tensor& tensor = args[i]->toTensor();
      ET_CHECK_OR_RETURN_ERROR(
          tensor.unsafeGetTensorImpl()->device_type() == DeviceType::CUDA,
          InvalidArgument,
          "argument %zu is not labelled with the device",
          i);
      if (i < payload->inputs) {
        in.push_back(tensor.const_data_ptr<float>());
      } else {
        out.push_back(tensor.mutable_data_ptr<float>());
      }
    }
    const Tensor& first = args[0]->toTensor();
    const size_t columns = first.dim() ? first.size(first.dim() - 1) : 1;
    const size_t rows = first.numel() / columns;
    payload->stream->enqueue([=] {
      std::this_thread::sleep_for(payload->delay);
      payload->run(in, out, rows, columns);
    });
    if (synchronizes_) {
      payload->stream->synchronize();
    }
    return Error::Ok;
  }

 private:
  bool synchronizes_;
};

const auto registered = [] {
  static Memory memory;
  static StandIn cuda(false), tensorrt(true);
  register_device_allocator(&memory);
  return std::pair(register_backend({"CudaBackend", &cuda}), register_backend({"TensorRTBackend", &tensorrt}));
}();

} // namespace
