// Gives the methods of a program the memory that they share, prefill and decode's KV cache mostly.
//
// A file that was made with MemoryPlanningPass(share_mutable_buffers=True) says which of its arenas are one for
// all methods. Module allocates all of them anew for each method, and can share none on a device.
#include <executorch/extension/module/module.h>
#include <executorch/runtime/core/device_memory_buffer.h>

#include <algorithm>
#include <map>

class SharedMemory {
 public:
  using Module = executorch::extension::Module;
  using Bytes = executorch::runtime::Span<uint8_t>;
  using Device = executorch::runtime::etensor::Device;

  // Loads a method of a module that this outlives. All methods are loaded before the first is run: with each,
  // ExecuTorch gives buffers in host memory their first values.
  executorch::runtime::Error load(Module& module, const std::string& name) {
    const auto meta = module.method_meta(name);
    if (!meta.ok()) {
      return meta.error();
    }
    const auto table = named_data(module, "executorch.common_state");
    const auto older = named_data(module, "torchtrt_executorch.common_state"); // as programs of before have it
    Planned& own = methods_[name];
    for (size_t i = 0; i < meta->num_memory_planned_buffers(); i++) {
      const bool shared = is_shared(table.ok() ? table : older, i + 1);
      auto& memory = (shared ? shared_ : own.memory)[i];
      const auto size = static_cast<size_t>(*meta->memory_planned_buffer_size(i));
      own.devices.push_back(*meta->memory_planned_buffer_device(i));
      if (memory.bytes.empty()) {
        const auto error = memory.allocate(size, own.devices.back());
        if (error != executorch::runtime::Error::Ok) {
          return error;
        }
      } else if (memory.bytes.size() != size || memory.device.as_span().empty() != own.devices.back().is_cpu()) {
        return executorch::runtime::Error::InvalidProgram; // no arena that methods have in common
      }
      own.spans.push_back(memory.bytes);
    }
    own.all = std::make_unique<executorch::runtime::HierarchicalAllocator>(
        executorch::runtime::Span<Bytes>(own.spans.data(), own.spans.size()),
        executorch::runtime::Span<const Device>(own.devices.data(), own.devices.size()));
    return module.load_method(name, own.all.get());
  }

 private:
  struct Memory {
    executorch::runtime::Error allocate(size_t size, Device where) {
      if (where.is_cpu()) {
        host.resize(size); // with zeros
        bytes = {host.data(), size};
      } else if (size) {
        auto made = executorch::runtime::DeviceMemoryBuffer::create(size, where.type(), where.index());
        if (!made.ok()) {
          return made.error();
        }
        device = std::move(made.get());
        bytes = device.as_span();
      }
      return executorch::runtime::Error::Ok;
    }
    Bytes bytes;
    std::vector<uint8_t> host;
    executorch::runtime::DeviceMemoryBuffer device;
  };
  struct Planned {
    std::map<size_t, Memory> memory; // by arena
    std::vector<Bytes> spans;
    std::vector<Device> devices;
    std::unique_ptr<executorch::runtime::HierarchicalAllocator> all;
  };

  using Table = executorch::runtime::Result<executorch::runtime::FreeableBuffer>;

  static Table named_data(Module& module, const char* key) {
    const auto data = module.program()->get_named_data_map();
    return data.ok() ? (*data)->get_data(key) : Table(data.error());
  }

  // The table is JSON, and begins with {"arenas": [3, 4], ...
  static bool is_shared(const Table& table, size_t arena) {
    if (!table.ok()) {
      return false;
    }
    const char* json = static_cast<const char*>(table->data());
    std::string text(json, std::find(json, json + table->size(), ']'));
    std::replace_if(text.begin(), text.end(), [](char c) { return c < '0' || c > '9'; }, ' ');
    return (text + " ").find(" " + std::to_string(arena) + " ") != text.npos;
  }

  std::map<size_t, Memory> shared_;
  std::map<std::string, Planned> methods_;
};
