// Runs a .pte with ExecuTorch's Module, and writes what it returns as numpy files.
//
//   host MODEL.pte [WEIGHTS.ptd ...] [METHOD:]FOLDER ...
//
// Each FOLDER is one call: input_0.npy, ... are read there, and output_0.npy, ... written.
#include "numpy.h"
#include "loaded_program.h"

#include <cstdio>

using namespace executorch::extension;
using namespace executorch::runtime;

// Of "METHOD:FOLDER" or "FOLDER".
std::string method_of(const std::string& call) {
  const size_t colon = call.find(':');
  return colon == call.npos ? "forward" : call.substr(0, colon);
}

void run(const std::string& file, const std::vector<std::string>& weights, const std::vector<std::string>& calls) {
  LoadedProgram program(file, weights);
  std::map<std::string, Bound> methods;
  for (const std::string& call : calls) {
    const std::string name = method_of(call);
    if (!methods.count(name)) {
      methods.emplace(name, program.load(name));
    }
  }
  std::vector<TensorPtr> kept; // a delegate may still be reading after a call
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
    const auto outputs = program.module().execute(name, given);
    check(outputs.error(), folder);
    for (size_t i = 0; i < outputs->size(); i++) {
      numpy::write(folder + "/output_" + std::to_string(i) + ".npy", *on_host((*outputs)[i].toTensor()));
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
