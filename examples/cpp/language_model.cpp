#include "language_model.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <stdexcept>

using namespace executorch::extension;
using namespace executorch::runtime;
using executorch::aten::ScalarType;
using executorch::aten::Tensor;

namespace {

// What a constant method returns; nothing if there is none.
std::vector<int64_t> constants(Module& module, const std::string& name) {
  const auto names = module.method_names();
  check(names.error(), "the file's methods");
  std::vector<int64_t> found;
  if (names->count(name)) {
    const auto values = module.execute(name);
    check(values.error(), name);
    for (const EValue& value : *values) {
      found.push_back(value.toInt());
    }
  }
  return found;
}

std::optional<int64_t> constant(Module& module, const std::string& name) {
  const auto found = constants(module, name);
  return found.empty() ? std::nullopt : std::optional(found[0]);
}

template <typename T>
std::vector<float> last_row(const Tensor& logits) {
  const T* end = logits.const_data_ptr<T>() + logits.numel();
  return {end - logits.size(logits.dim() - 1), end};
}

std::vector<float> last_logits(const Tensor& logits) {
  switch (logits.scalar_type()) {
    case ScalarType::Float:
      return last_row<float>(logits);
    case ScalarType::BFloat16:
      return last_row<executorch::aten::BFloat16>(logits);
    case ScalarType::Half:
      return last_row<executorch::aten::Half>(logits);
    default:
      throw std::runtime_error("logits are of a type that this host doesn't read");
  }
}

} // namespace

LanguageModel::LanguageModel(LoadedProgram& program, const Sampling& sampling)
    : program_(program), sampling_(sampling), sampler_(sampling) {
  Module& module = program.module();
  const auto names = module.method_names();
  check(names.error(), "the file's methods");
  const bool two = names->count("prefill") && names->count("decode");
  if (!two && !names->count("forward")) {
    throw std::runtime_error("a language model has a method forward, or prefill and decode, and this file has neither");
  }
  prefill_ = load(two ? "prefill" : "forward");
  if (two) {
    decode_ = load("decode");
  }
  const Step& step = decode_ ? *decode_ : *prefill_;
  if (step.most > 1 && !step.dynamic) {
    throw std::runtime_error("no method takes a single token: export one, or give forward a dynamic length");
  }
  const size_t inputs = step.bound.inputs.size();
  const ScalarType returned = step.bound.method->get_output(0).toTensor().scalar_type();
  sampled_ = returned == ScalarType::Long || returned == ScalarType::Int;
  if (sampled_ ? inputs != 4 && inputs != 5 : inputs != 2) {
    throw std::runtime_error(
        "methods take " + std::to_string(inputs) + " inputs; tokens and positions are due, and temperature, seed and "
        "maybe top_p where tokens are returned");
  }
  if (sampled_ && inputs == 4 && sampling.top_p < 1) {
    throw std::runtime_error("the file's methods sample by themselves, and have no input for top_p: leave --top-p out");
  }
  const auto chunk = constant(module, "get_max_seq_len");
  const auto room = constant(module, "get_max_context_len");
  room_ = room ? *room : chunk ? *chunk : SIZE_MAX;
  vocabulary_ = constant(module, "get_vocab_size").value_or(INT64_MAX);
  bos_ = constant(module, "get_bos_id");
  ends_ = constants(module, "get_eos_ids");
  if (chunk && prefill_->dynamic) {
    prefill_->most = std::min<size_t>(prefill_->most, *chunk);
  }
}

LanguageModel::Step LanguageModel::load(const std::string& name) {
  Step step{program_.load(name), 0, false};
  if (step.bound.inputs.empty() || !step.bound.inputs[0].isTensor() || step.bound.inputs[0].toTensor().dim() != 2) {
    throw std::runtime_error(name + " takes no tokens (1, n)");
  }
  const Tensor& tokens = step.bound.inputs[0].toTensor();
  step.most = tokens.size(1); // as large as it may be, before the first call
  step.dynamic = tokens.shape_dynamism() != executorch::aten::TensorShapeDynamism::STATIC;
  return step;
}

bool LanguageModel::is_end(int64_t token) const {
  return std::find(ends_.begin(), ends_.end(), token) != ends_.end();
}

int64_t LanguageModel::prefill(const std::vector<int64_t>& tokens) {
  if (tokens.empty()) {
    throw std::runtime_error("a prompt has at least one token");
  }
  if (tokens.size() > room_) {
    throw std::runtime_error(
        "the prompt has " + std::to_string(tokens.size()) + " tokens, and the program has room for " +
        std::to_string(room_));
  }
  for (const int64_t token : tokens) {
    if (token < 0 || static_cast<size_t>(token) >= vocabulary_) {
      throw std::runtime_error(
          "token " + std::to_string(token) + " of the prompt is outside of the vocabulary of " +
          std::to_string(vocabulary_) + " tokens");
    }
  }
  int64_t found = 0;
  for (position_ = 0; position_ < tokens.size();) {
    const size_t rest = tokens.size() - position_;
    size_t count = std::min(rest, prefill_->most);
    if (decode_ && (count == 1 || (!prefill_->dynamic && count < prefill_->most))) {
      count = 1; // what is left of a prompt, where prefill takes so many tokens and no fewer
    }
    const auto begin = tokens.begin() + static_cast<std::ptrdiff_t>(position_);
    found = next(decode_ && count == 1 ? *decode_ : *prefill_, {begin, begin + static_cast<std::ptrdiff_t>(count)});
  }
  return found;
}

int64_t LanguageModel::decode(int64_t token) {
  return next(decode_ ? *decode_ : *prefill_, {token});
}

int64_t LanguageModel::next(const Step& step, const std::vector<int64_t>& tokens) {
  const auto count = static_cast<executorch::aten::SizesType>(tokens.size());
  std::vector<int64_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), static_cast<int64_t>(position_));
  const auto& inputs = step.bound.inputs;
  const auto type = [&](size_t i) { return inputs[i].toTensor().scalar_type(); };
  std::vector<TensorPtr> given{
      make_tensor_ptr({1, count}, tokens, {}, {}, type(0)), make_tensor_ptr({count}, positions, {}, {}, type(1))};
  if (sampled_) {
    given.push_back(make_tensor_ptr({1}, std::vector<float>{sampling_.temperature}));
    given.push_back(make_tensor_ptr({1}, std::vector<int64_t>{sampling_.seed}));
    given.push_back(make_tensor_ptr({1}, std::vector<float>{sampling_.top_p}));
  }
  for (size_t i = 0; i < inputs.size(); i++) {
    given[i] = placed(given[i], inputs[i].toTensor());
    check(step.bound.method->set_input(*given[i], i), "an input");
  }
  check(step.bound.method->execute(), "a step");
  const TensorPtr output = on_host(step.bound.method->get_output(0).toTensor()); // which all inputs have been read for
  position_ += tokens.size();
  if (!sampled_) {
    return sampler_(last_logits(*output));
  }
  const ssize_t last = output->numel() - 1;
  return output->scalar_type() == ScalarType::Int ? output->const_data_ptr<int32_t>()[last]
                                                  : output->const_data_ptr<int64_t>()[last];
}
