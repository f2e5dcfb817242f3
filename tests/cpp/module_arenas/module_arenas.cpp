// Generates with prefill and decode in a Module of ExecuTorch, with share_memory_arenas or without:
//   module_arenas FILE.pte 0|1 CHUNK COUNT TOKEN...
// prints the likeliest tokens.
#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <vector>

using executorch::extension::make_tensor_ptr;
using executorch::extension::Module;

namespace {

int64_t step(Module& module, const char* method, std::vector<int64_t> tokens, int64_t at) {
  std::vector<int64_t> positions(tokens.size());
  for (size_t i = 0; i < positions.size(); i++) {
    positions[i] = at + static_cast<int64_t>(i);
  }
  const int count = static_cast<int>(tokens.size());
  const auto given = make_tensor_ptr({1, count}, std::move(tokens));
  const auto places = make_tensor_ptr({count}, std::move(positions));
  const auto outputs = module.execute(method, {given, places});
  if (!outputs.ok()) {
    std::fprintf(stderr, "%s: error %d\n", method, static_cast<int>(outputs.error()));
    std::exit(1);
  }
  const auto logits = outputs->at(0).toTensor();
  const auto vocabulary = logits.size(2);
  const float* last = logits.const_data_ptr<float>() + (logits.size(1) - 1) * vocabulary;
  return std::max_element(last, last + vocabulary) - last;
}

} // namespace

int main(int count, char** arguments) {
  if (count < 6) {
    return 2;
  }
  const bool share = std::atoi(arguments[2]) != 0;
  const size_t chunk = std::strtoul(arguments[3], nullptr, 10);
  std::vector<int64_t> prompt;
  for (int i = 5; i < count; i++) {
    prompt.push_back(std::atoll(arguments[i]));
  }
  Module module(arguments[1], Module::LoadMode::File, nullptr, nullptr, nullptr, share);
  for (const auto* method : {"prefill", "decode"}) { // each gives buffers their first values
    if (module.load_method(method) != executorch::runtime::Error::Ok) {
      return 1;
    }
  }
  int64_t token = 0;
  for (size_t i = 0; i < prompt.size(); i += chunk) {
    const auto end = std::min(i + chunk, prompt.size());
    token = step(module, "prefill", {prompt.begin() + i, prompt.begin() + end}, static_cast<int64_t>(i));
  }
  for (int left = std::atoi(arguments[4]); left > 0; left--) {
    std::printf("%lld ", static_cast<long long>(token));
    if (left > 1) {
      token = step(module, "decode", {token}, static_cast<int64_t>(prompt.size()));
      prompt.push_back(0);
    }
  }
}
