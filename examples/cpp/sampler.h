// Chooses a token by its logits.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <random>
#include <vector>

struct Sampling {
  float temperature = 0; // 0 takes the likeliest token
  float top_p = 1; // draws from the likeliest tokens of this probability
  int64_t seed = 0;
};

class Sampler {
 public:
  explicit Sampler(const Sampling& sampling) : sampling_(sampling), random_(static_cast<uint64_t>(sampling.seed)) {}

  // Of logits (vocabulary,), which become probabilities if a token is drawn.
  int64_t operator()(std::vector<float> logits) {
    const auto likeliest = std::max_element(logits.begin(), logits.end());
    if (sampling_.temperature == 0) {
      return likeliest - logits.begin();
    }
    const float largest = *likeliest;
    float sum = 0;
    for (float& each : logits) {
      each = std::exp((each - largest) / sampling_.temperature);
      sum += each;
    }
    std::vector<int64_t> tokens(logits.size());
    std::iota(tokens.begin(), tokens.end(), 0);
    if (sampling_.top_p < 1) {
      // Tokens less probable than this, all together, don't make up what top_p leaves out: few are left to sort.
      const float least = sum * (1 - sampling_.top_p) / static_cast<float>(logits.size());
      const auto rare = [&](int64_t token) { return logits[token] < least; };
      tokens.erase(std::remove_if(tokens.begin(), tokens.end(), rare), tokens.end());
      std::sort(tokens.begin(), tokens.end(), [&](int64_t a, int64_t b) { return logits[a] > logits[b]; });
      const float most = sum * sampling_.top_p;
      sum = 0;
      size_t count = 0;
      do {
        sum += logits[tokens[count++]];
      } while (count < tokens.size() && sum < most);
      tokens.resize(count);
    }
    // Of 53 bits, alike in every standard library.
    double left = static_cast<double>(random_() >> 11) * 0x1p-53 * sum;
    for (const int64_t token : tokens) {
      if ((left -= logits[token]) < 0) {
        return token;
      }
    }
    return tokens.back(); // sums are rounded
  }

 private:
  Sampling sampling_;
  std::mt19937_64 random_;
};
