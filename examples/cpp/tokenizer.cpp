#include "tokenizer.h"

#include <stdexcept>
#ifdef WITH_TOKENIZERS
#include <absl/log/globals.h>
#include <pytorch/tokenizers/hf_tokenizer.h>
#include <pytorch/tokenizers/llama2c_tokenizer.h>
#include <pytorch/tokenizers/sentencepiece.h>
#include <pytorch/tokenizers/tekken.h>
#include <pytorch/tokenizers/tiktoken.h>

namespace {

using namespace tokenizers;

// The first of these that reads the file; null if none does.
template <typename... Types>
std::unique_ptr<Tokenizer> load(const std::string& file) {
  std::unique_ptr<Tokenizer> tokenizer;
  const auto reads = [&](std::unique_ptr<Tokenizer> each) {
    tokenizer = each->load(file) == Error::Ok ? std::move(each) : nullptr;
    return tokenizer != nullptr;
  };
  (reads(std::make_unique<Types>()) || ...);
  return tokenizer;
}

bool ends_with(const std::string& text, const std::string& end) {
  return text.size() >= end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

} // namespace

TextTokenizer::TextTokenizer(const std::string& file) {
  absl::SetMinLogLevel(absl::LogSeverityAtLeast::kFatal); // re2 reports patterns that are PCRE2's then
  tokenizer_ = ends_with(file, ".json") ? load<HFTokenizer, Tekken>(file)
      : ends_with(file, ".bin")         ? load<Llama2cTokenizer>(file)
                                        : load<SPTokenizer, Tiktoken>(file);
  if (!tokenizer_) {
    throw std::runtime_error(
        file + " is no tokenizer's file: tokenizer.json, tekken.json, a .model of sentencepiece or tiktoken, or a .bin "
        "of llama2.c");
  }
}

std::vector<int64_t> TextTokenizer::encode(const std::string& text) const {
  const auto tokens = tokenizer_->encode(text);
  if (!tokens.ok()) {
    throw std::runtime_error("the tokenizer has no tokens for the prompt");
  }
  return {tokens->begin(), tokens->end()};
}

std::string TextTokenizer::decode(int64_t before, int64_t token) const {
  const auto text = tokenizer_->decode(static_cast<uint64_t>(before), static_cast<uint64_t>(token));
  if (!text.ok()) {
    throw std::runtime_error("the tokenizer doesn't know token " + std::to_string(token));
  }
  return *text;
}
#else
namespace tokenizers {
class Tokenizer {};
} // namespace tokenizers

TextTokenizer::TextTokenizer(const std::string&) {
  throw std::runtime_error("this host was built without tokenizers: configure it with -DTOKENIZERS=DIR, or give "
                           "--tokens");
}

std::vector<int64_t> TextTokenizer::encode(const std::string&) const {
  return {};
}

std::string TextTokenizer::decode(int64_t, int64_t) const {
  return {};
}
#endif

TextTokenizer::~TextTokenizer() = default;
