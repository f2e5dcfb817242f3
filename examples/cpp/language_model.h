// A language model's program: a prompt, then a token at a time, over one KV cache.
//
// It has a method `forward`, or `prefill` for prompts and `decode` for what follows. They take tokens (1, n) and
// positions (n,), and return logits (1, n or 1, vocabulary); or they take temperature, seed and maybe top_p (1,) as
// well and return tokens, as `torchtrt-executorch export --sample` makes them.
#pragma once

#include "loaded_program.h"
#include "sampler.h"

#include <optional>

class LanguageModel {
 public:
  // Throws std::runtime_error, as all that follows, with a sentence for the user.
  LanguageModel(LoadedProgram& program, const Sampling& sampling);

  // How many tokens the cache has room for; SIZE_MAX if the file doesn't say.
  size_t room() const { return room_; }
  bool full() const { return position_ >= room_; }
  // The token that a text begins with.
  std::optional<int64_t> bos() const { return bos_; }
  // Whether a text ends with this token.
  bool is_end(int64_t token) const;

  // Begins a text with these tokens, and returns the next one.
  int64_t prefill(const std::vector<int64_t>& tokens);
  // Appends the token, and returns the next one.
  int64_t decode(int64_t token);

 private:
  struct Step {
    Bound bound;
    size_t most; // tokens at once
    bool dynamic; // or fewer
  };

  Step load(const std::string& name);
  int64_t next(const Step& step, const std::vector<int64_t>& tokens);

  LoadedProgram& program_;
  Sampling sampling_;
  Sampler sampler_;
  std::optional<Step> prefill_, decode_; // without decode, prefill takes single tokens, too
  bool sampled_; // by the methods
  size_t room_, vocabulary_;
  std::optional<int64_t> bos_;
  std::vector<int64_t> ends_;
  size_t position_ = 0;
};
