// Chooses a token by its logits.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>
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
    const float largest = largest_of(logits);
    if (largest == -std::numeric_limits<float>::infinity()) {
      throw std::runtime_error("no logit is a number: the model computed NaN or infinity alone");
    }
    if (sampling_.temperature == 0) {
      return std::find(logits.begin(), logits.end(), largest) - logits.begin();
    }
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
  // Several maxima side by side, which compilers make vector instructions of: of 151,936 logits 40 us for 130.
  static float largest_of(const std::vector<float>& logits) {
    std::array<float, 16> largest;
    largest.fill(-std::numeric_limits<float>::infinity());
    size_t i = 0;
    for (; i + largest.size() <= logits.size(); i += largest.size()) {
      for (size_t lane = 0; lane < largest.size(); lane++) {
        largest[lane] = std::max(largest[lane], logits[i + lane]);
      }
    }
    for (; i < logits.size(); i++) {
      largest[0] = std::max(largest[0], logits[i]);
    }
    return *std::max_element(largest.begin(), largest.end());
  }

  Sampling sampling_;
  std::mt19937_64 random_;
};
