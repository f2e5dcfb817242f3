// Generates text with a language model's .pte, as it comes.
//
//   llm MODEL.pte [WEIGHTS.ptd ...] --prompt TEXT --tokenizer FILE
//   llm MODEL.pte [WEIGHTS.ptd ...] --tokens 1,15,8
//
// Options are --count N (64 tokens at most), --temperature T (0, the likeliest), --top-p P, --seed N, --bos (the
// prompt begins with the file's get_bos_id), and --cuda-graph (decode is replayed as a CUDA graph).
//
// A token of the file's get_eos_ids ends the text. The exit status is 1 if the cache is full before, and 2 on errors.
#include "language_model.h"
#include "tokenizer.h"

#include <chrono>
#include <cstdio>
#include <sstream>
#include <stdexcept>

namespace {

using Clock = std::chrono::steady_clock;

constexpr int FULL = 1, FAILED = 2;
constexpr const char* USAGE =
    "llm MODEL.pte [WEIGHTS.ptd ...] (--prompt TEXT --tokenizer FILE | --tokens 1,15,8) [--count N] [--temperature T] "
    "[--top-p P] [--seed N] [--bos] [--cuda-graph]";

struct Options {
  std::string file, prompt, tokenizer;
  std::vector<std::string> weights;
  std::vector<int64_t> tokens;
  int64_t count = 64;
  Sampling sampling;
  bool bos = false, cuda_graph = false;
};

// A number, all of the text, no less than `least`.
template <typename T>
T number(const std::string& text, const std::string& name, T least) {
  std::istringstream stream(text);
  T value{};
  if (!(stream >> value) || !stream.eof() || value < least) {
    std::ostringstream said;
    said << name << " is " << text << "; a number from " << least << " on is due";
    throw std::runtime_error(said.str());
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  options.sampling.seed = std::random_device{}() >> 1;
  std::optional<float> temperature;
  const std::vector<std::string> words(argv + 1, argv + argc);
  for (size_t i = 0; i < words.size(); i++) {
    const std::string& name = words[i];
    if (name == "--bos" || name == "--cuda-graph") {
      (name == "--bos" ? options.bos : options.cuda_graph) = true;
      continue;
    }
    if (name.rfind("--", 0) != 0) {
      if (options.file.empty()) {
        options.file = name;
      } else {
        options.weights.push_back(name);
      }
      continue;
    }
    if (++i == words.size()) {
      throw std::runtime_error(name + " needs a value: " + USAGE);
    }
    const std::string& value = words[i];
    if (name == "--prompt") {
      options.prompt = value;
    } else if (name == "--tokenizer") {
      options.tokenizer = value;
    } else if (name == "--tokens") {
      std::istringstream list(value);
      for (std::string each; std::getline(list, each, ',');) {
        options.tokens.push_back(number<int64_t>(each, name, 0));
      }
    } else if (name == "--count") {
      options.count = number<int64_t>(value, name, 1);
    } else if (name == "--temperature") {
      temperature = number<float>(value, name, 0);
    } else if (name == "--top-p") {
      options.sampling.top_p = number<float>(value, name, 0);
      if (!(options.sampling.top_p > 0 && options.sampling.top_p <= 1)) {
        throw std::runtime_error("--top-p is " + value + "; a probability above 0 is due");
      }
    } else if (name == "--seed") {
      options.sampling.seed = number<int64_t>(value, name, 0);
    } else {
      throw std::runtime_error("there is no option " + name + ": " + USAGE);
    }
  }
  if (options.file.empty() || options.tokens.empty() == options.tokenizer.empty()) {
    throw std::runtime_error(USAGE);
  }
  options.sampling.temperature = temperature.value_or(options.sampling.top_p < 1 ? 1 : 0);
  return options;
}

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

int generate(const Options& options) {
  std::optional<TextTokenizer> tokenizer;
  std::vector<int64_t> prompt = options.tokens;
  if (!options.tokenizer.empty()) {
    prompt = tokenizer.emplace(options.tokenizer).encode(options.prompt);
  }
  LoadedProgram program(options.file, options.weights, options.cuda_graph ? "decode" : "");
  LanguageModel model(program, options.sampling);
  if (options.bos) {
    if (!model.bos()) {
      throw std::runtime_error("--bos: the file has no get_bos_id");
    }
    prompt.insert(prompt.begin(), *model.bos());
  }
  const auto print = [&](int64_t before, int64_t token) {
    if (tokenizer) {
      std::fputs(model.is_end(token) ? "" : tokenizer->decode(before, token).c_str(), stdout);
    } else {
      std::printf("%lld ", static_cast<long long>(token));
    }
    std::fflush(stdout);
  };
  const auto began = Clock::now();
  int64_t token = model.prefill(prompt), made = 1;
  const auto first = Clock::now();
  print(prompt.back(), token);
  bool full = false;
  while (!model.is_end(token) && made < options.count && !(full = model.full())) {
    const int64_t before = token;
    token = model.decode(before);
    made++;
    print(before, token);
  }
  const auto ended = Clock::now();
  std::printf("\n");
  std::fprintf(
      stderr, "prefill: %zu tokens, %.1f tokens/s; decode: %lld tokens, %.1f tokens/s\n", prompt.size(),
      prompt.size() / seconds(began, first), static_cast<long long>(made - 1),
      made > 1 ? (made - 1) / seconds(first, ended) : 0.0);
  if (full) {
    std::fprintf(
        stderr, "the cache is full: it has room for %zu tokens, and the text may go on; export the program with a "
        "longer one\n", model.room());
  }
  return full ? FULL : 0;
}

} // namespace

int main(int argc, char** argv) {
  try {
    return generate(parse(argc, argv));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return FAILED;
  }
}
