// A .pte in ExecuTorch's Module, with what a host gives to its methods: memory, bound outputs, and one stream.
#pragma once

#include "shared_memory.h"

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <memory>
#include <string>
#include <vector>

// Throws std::runtime_error if this is one.
void check(executorch::runtime::Error error, const std::string& what);

// The tensor where `like` is labelled to be.
executorch::extension::TensorPtr placed(
    const executorch::extension::TensorPtr& tensor, const executorch::aten::Tensor& like);

// The tensor in memory of the host's, which waits for whatever computes it.
executorch::extension::TensorPtr on_host(const executorch::aten::Tensor& tensor);

// A loaded method, with its outputs bound.
struct Bound {
  std::vector<executorch::runtime::EValue> inputs;
  executorch::runtime::Method* method;
};

class LoadedProgram {
 public:
  // Throws std::runtime_error, as all that follows, with a sentence for the user. With `cuda_graph` CudaBackend
  // replays that method as a CUDA graph.
  LoadedProgram(const std::string& file, const std::vector<std::string>& weights, const std::string& cuda_graph = "");
  ~LoadedProgram();

  executorch::extension::Module& module() { return module_; }

  // All methods are loaded before one is run: state gets its first value then.
  Bound load(const std::string& name);

 private:
  struct Stream;

  SharedMemory memory_; // outlives the module
  std::vector<executorch::extension::TensorPtr> outputs_;
  executorch::extension::Module module_;
  std::unique_ptr<Stream> stream_;
};
