// Text to tokens and back, by the C++ library of pytorch_tokenizers.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tokenizers {
class Tokenizer;
}

class TextTokenizer {
 public:
  // Of a tokenizer.json or tekken.json, a .model of sentencepiece or tiktoken, or a .bin of llama2.c. Throws
  // std::runtime_error, as all that follows.
  explicit TextTokenizer(const std::string& file);
  ~TextTokenizer();

  std::vector<int64_t> encode(const std::string& text) const;
  // What a token adds to a text whose last one is `before`: bytes, which may be part of a character.
  std::string decode(int64_t before, int64_t token) const;

 private:
  std::unique_ptr<tokenizers::Tokenizer> tokenizer_;
};
