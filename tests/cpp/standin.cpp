// A GPU's memory, streams and delegates, as far as order goes, on a machine without one.
//
// Device memory is host memory that only copies and delegates may touch. What a delegate or a copy
// does is enqueued on a stream, starts after a while, and goes on after the call. Later delegates wait
// less, and engines that are waited for not at all, so that whatever nobody has ordered comes in the
// wrong order. STREAM says what the host has
// asked for, and with that which streams there are (ExecuTorch 1.4 and 1.5, Torch-TensorRT 2.13, and 2.14 if
// TENSORRT says so):
//
//   own     nothing: a stream for each CUDA delegate, one for TensorRT, which waits for it
//   shared  the CUDA backend's option: one stream for all CUDA delegates
//   caller  ExecuTorch's guard: CUDA delegates and copies are on the host's stream, and Torch-TensorRT 2.14's engines
//   guard   Torch-TensorRT 2.13's: engines are on the host's stream, and not waited for
//   both    both
//
// CUDA delegates with state of their own share it if the host has set weight_sharing_across_methods.
//
// Linked into a host, they register themselves, as the real ones do.
#include "../../examples/cpp/shared_memory.h"

#include <executorch/extension/data_loader/buffer_data_loader.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/runtime/backend/interface.h>
#include <executorch/runtime/core/device_allocator.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
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
  // Returns what to wait for.
  size_t enqueue(std::function<void()> job) {
    std::lock_guard<std::mutex> guard(mutex_);
    jobs_.push_back(std::move(job));
    changed_.notify_all();
    return ++enqueued_;
  }
  size_t enqueued() {
    std::lock_guard<std::mutex> guard(mutex_);
    return enqueued_;
  }
  void wait(size_t count) {
    std::unique_lock<std::mutex> guard(mutex_);
    changed_.wait(guard, [&] { return done_ >= count; });
  }

 private:
  void work() {
    for (;;) {
      std::function<void()> job;
      {
        std::unique_lock<std::mutex> guard(mutex_);
        changed_.wait(guard, [this] { return !jobs_.empty(); });
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();
      std::lock_guard<std::mutex> guard(mutex_);
      done_++;
      changed_.notify_all();
    }
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  size_t enqueued_ = 0, done_ = 0;
  std::thread worker_;
};

bool host_is(std::initializer_list<std::string> these) {
  const char* stream = std::getenv("STREAM");
  return std::count(these.begin(), these.end(), stream ? stream : "own");
}

// A GPU's streams by name; never destroyed, since their threads outlive main.
std::map<std::string, Stream*>& streams() {
  static auto* all = new std::map<std::string, Stream*>();
  return *all;
}
Stream* stream(const std::string& name) {
  Stream*& found = streams()[name];
  return found ? found : found = new Stream();
}

class Memory final : public DeviceAllocator {
 public:
  Result<void*> allocate(size_t nbytes, DeviceIndex, size_t) override {
    void* memory = std::malloc(nbytes);
    std::memset(memory, 0xff, nbytes); // as good as anything that cudaMalloc may give: NaN
    fresh_[memory] = nbytes;
    return memory;
  }
  void deallocate(void* memory, DeviceIndex) override { // waits, as cudaFree does
    for (auto& [name, each] : streams()) {
      each->wait(each->enqueued());
    }
    std::free(memory);
  }
  // From memory that isn't pinned a copy returns once it has read it.
  Error copy_host_to_device(void* to, const void* from, size_t nbytes, DeviceIndex) override {
    const auto* bytes = static_cast<const char*>(from);
    const auto whole = fresh_.find(to); // the host's own tensor, which it waits for
    const bool waits = whole != fresh_.end() && whole->second == nbytes && fresh_.erase(to);
    const std::chrono::milliseconds late(!waits && host_is({"caller"}) ? 20 : 0);
    return copy(nbytes, waits, [to, late, read = std::vector<char>(bytes, bytes + nbytes)] {
      std::this_thread::sleep_for(late);
      std::memcpy(to, read.data(), read.size());
    });
  }
  Error copy_device_to_host(void* to, const void* from, size_t nbytes, DeviceIndex) override {
    return copy(nbytes, true, [=] { std::memcpy(to, from, nbytes); });
  }
  DeviceType device_type() const override { return DeviceType::CUDA; }

 private:
  static Error copy(size_t nbytes, bool waits, std::function<void()> job) {
    if (nbytes == 0) {
      return Error::Ok; // upstream's returns before it waits for anything
    }
    Stream* const on = stream(host_is({"caller", "both"}) ? "host's" : "default");
    std::vector<std::pair<Stream*, size_t>> earlier;
    if (!host_is({"caller", "both"})) { // between what came before and what comes after, on any stream
      for (auto& [name, each] : streams()) {
        earlier.emplace_back(each, each->enqueued());
      }
    }
    const size_t done = on->enqueue([=] {
      for (auto& [each, count] : earlier) {
        each->wait(count);
      }
      job();
    });
    for (auto& [each, count] : earlier) {
      if (each != on) {
        each->enqueue([=] { on->wait(done); });
      }
    }
    if (waits) {
      on->wait(done);
    }
    return Error::Ok;
  }
  std::map<void*, size_t> fresh_;
};

struct Operation {
  std::string name;
  std::vector<size_t> operands;
};

// What a delegate is called with, as it was then.
struct Argument {
  std::vector<executorch::aten::SizesType> sizes;
  executorch::aten::ScalarType type;
  void* data;
  size_t nbytes;
};

struct Payload {
  Stream* stream = nullptr;
  std::chrono::milliseconds delay{};
  virtual ~Payload() = default;
  // Reads inputs when the work begins, not before.
  virtual void run(const std::vector<Argument>& arguments) = 0;
};

// What standin.py wrote. Values are square float matrices or, element by element, anything.
struct Operations final : Payload {
  size_t inputs = 0, outputs = 0;
  std::vector<Operation> operations;
  std::vector<size_t> results;

  explicit Operations(const std::string& text) {
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

  void run(const std::vector<Argument>& arguments) override {
    const auto& sizes = arguments[0].sizes;
    const size_t columns = sizes.empty() ? 1 : sizes.back();
    const size_t count = arguments[0].nbytes / sizeof(float), rows = count / columns;
    std::vector<std::vector<float>> values;
    for (size_t i = 0; i < inputs; i++) {
      const auto* data = static_cast<const float*>(arguments[i].data);
      values.emplace_back(data, data + count);
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
    for (size_t i = 0; i < outputs; i++) {
      std::memcpy(arguments[inputs + i].data, values[results[i]].data(), count * sizeof(float));
    }
  }
};

// What emulated.py wrote: a method of a program of CPU kernels.
struct Emulated final : Payload {
  struct Program {
    explicit Program(std::string bytes)
        : bytes(std::move(bytes)),
          module(std::make_unique<executorch::extension::BufferDataLoader>(this->bytes.data(), this->bytes.size())) {}
    std::string bytes;
    SharedMemory memory; // outlives the module
    executorch::extension::Module module;
  };
  std::string method;
  std::shared_ptr<Program> program;

  Emulated(std::string method, const std::string& bytes, bool shared) : method(std::move(method)) {
    static std::map<std::string, std::weak_ptr<Program>> all;
    if (shared) {
      program = all[bytes].lock();
    }
    if (!program) {
      program = std::make_shared<Program>(bytes);
      all[bytes] = program;
    }
    ET_CHECK(program->module.load() == Error::Ok);
    ET_CHECK(program->memory.load(program->module, this->method) == Error::Ok);
  }

  void run(const std::vector<Argument>& arguments) override {
    const size_t inputs = program->module.method_meta(method)->num_inputs();
    std::vector<executorch::extension::TensorPtr> kept;
    std::vector<EValue> given;
    for (size_t i = 0; i < inputs; i++) {
      kept.push_back(executorch::extension::from_blob(arguments[i].data, arguments[i].sizes, arguments[i].type));
      given.emplace_back(kept.back());
    }
    const auto results = program->module.execute(method, given);
    ET_CHECK(results.ok());
    for (size_t i = inputs; i < arguments.size(); i++) {
      const Tensor& result = (*results)[i - inputs].toTensor();
      ET_CHECK(result.nbytes() == arguments[i].nbytes);
      std::memcpy(arguments[i].data, result.const_data_ptr(), arguments[i].nbytes);
    }
  }
};

class StandIn final : public BackendInterface {
 public:
  explicit StandIn(bool is_tensorrt) : is_tensorrt_(is_tensorrt) {}
  bool is_available() const override { return true; }
  Result<DelegateHandle*> init(BackendInitContext&, FreeableBuffer* processed, ArrayRef<CompileSpec>) const override {
    const std::string text(static_cast<const char*>(processed->data()), processed->size());
    Payload* payload = nullptr;
    if (const std::string kind = "program "; text.compare(0, kind.size(), kind) == 0) {
      const size_t end = text.find('\n');
      payload = new Emulated(text.substr(kind.size(), end - kind.size()), text.substr(end + 1), shares_state_);
    } else {
      payload = new Operations(text);
    }
    static int earlier = 0;
    payload->delay = std::chrono::milliseconds(60 / ++earlier * !waits_for_itself());
    payload->stream = stream(
        host_is({"both", is_tensorrt_ ? engines_guard() : "caller"}) ? "host's"
            : is_tensorrt_                                   ? "TensorRT's"
            : host_is({"shared"})                            ? "CudaBackend's"
                                                             : std::to_string(earlier));
    return payload;
  }
  Error execute(BackendExecutionContext&, DelegateHandle* handle, Span<EValue*> args) const override {
    auto* payload = static_cast<Payload*>(handle);
    std::vector<Argument> arguments;
    for (size_t i = 0; i < args.size(); i++) {
      Tensor& tensor = args[i]->toTensor();
      ET_CHECK_OR_RETURN_ERROR(
          tensor.unsafeGetTensorImpl()->device_type() == DeviceType::CUDA,
          InvalidArgument,
          "argument %zu is not labelled with the device",
          i);
      const auto sizes = tensor.sizes();
      arguments.push_back(
          {{sizes.begin(), sizes.end()}, tensor.scalar_type(), tensor.mutable_data_ptr(), tensor.nbytes()});
    }
    const size_t done = payload->stream->enqueue([payload, arguments = std::move(arguments)] {
      std::this_thread::sleep_for(payload->delay);
      payload->run(arguments);
    });
    if (waits_for_itself()) {
      payload->stream->wait(done);
    }
    return Error::Ok;
  }
  Error set_option(BackendOptionContext&, const Span<BackendOption>& options) override {
    for (const BackendOption& option : options) {
      if (!std::strcmp(option.key, "weight_sharing_across_methods")) {
        shares_state_ = std::get<bool>(option.value);
      }
    }
    return Error::Ok;
  }

 private:
  bool waits_for_itself() const {
    return is_tensorrt_ && !host_is({engines_guard(), "both"});
  }
  static const char* engines_guard() {
    const char* release = std::getenv("TENSORRT");
    return release && !std::strcmp(release, "2.14") ? "caller" : "guard";
  }
  bool is_tensorrt_;
  bool shares_state_ = false;
};

const auto registered = [] {
  static Memory memory;
  static StandIn cuda(false), tensorrt(true);
  register_device_allocator(&memory);
  return std::pair(register_backend({"CudaBackend", &cuda}), register_backend({"TensorRTBackend", &tensorrt}));
}();

} // namespace
