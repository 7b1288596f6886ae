// fuzz TARGET CORPUS --executions N --seed S    runs N inputs; new ones that reach new code go to the folder CORPUS
// fuzz TARGET FILE ...                         runs these inputs once
// fuzz TARGET CORPUS --reduce FOLDER           copies those inputs, the short ones first, that reach what others did not
//
// The product is compiled with -fsanitize-coverage=trace-pc: an input that takes a branch to where none has come from
// there before is kept, and later inputs are changes of kept ones. What a sanitizer finds ends the program; the input is
// then in the file crash-TARGET.
#include <sanitizer/common_interface_defs.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "tests/native/fuzz/fuzz.h"

namespace {

constexpr size_t kMaxInput = 256;
constexpr uint64_t kReportEvery = uint64_t{1} << 24;

std::array<uint8_t, 1 << 16> seen_edges;
uint32_t new_edges, all_edges;
uintptr_t last_place;
const std::vector<uint8_t>* current;
std::string crash_file;

void keep_crash() {
  if (!current) return;
  std::ofstream(crash_file, std::ios::binary).write(reinterpret_cast<const char*>(current->data()), static_cast<std::streamsize>(current->size()));
  std::fprintf(stderr, "the input is in %s\n", crash_file.c_str());
}

void run(const fuzz::Target& target, const std::vector<uint8_t>& bytes) {
  current = &bytes;
  last_place = 0;
  const fuzz::Target* const which = &target;
  fuzz::Input input(bytes.data(), bytes.size());
  which->run(input);
  current = nullptr;
}

using Random = std::mt19937_64;

uint8_t interesting(Random& random) {
  constexpr uint8_t values[] = {0, 1, 2, 3, 4, 7, 8, 15, 16, 17, 31, 32, 63, 64, 127, 128, 192, 240, 254, 255};
  return values[random() % std::size(values)];
}

void change(std::vector<uint8_t>& bytes, const std::vector<std::vector<uint8_t>>& corpus, Random& random) {
  for (uint64_t steps = 1 + random() % 6; steps > 0; --steps) {
    const size_t at = bytes.empty() ? 0 : random() % bytes.size();
    switch (random() % 8) {
      case 0:
        if (!bytes.empty()) bytes[at] ^= static_cast<uint8_t>(1 << (random() % 8));
        break;
      case 1:
        if (!bytes.empty()) bytes[at] = static_cast<uint8_t>(random());
        break;
      case 2:
        if (!bytes.empty()) bytes[at] = interesting(random);
        break;
      case 3: {  // bytes put in
        std::vector<uint8_t> more(1 + random() % 32);
        for (uint8_t& byte : more) byte = random() % 2 ? static_cast<uint8_t>(random()) : interesting(random);
        bytes.insert(bytes.begin() + static_cast<std::ptrdiff_t>(at), more.begin(), more.end());
        break;
      }
      case 4: {  // bytes taken out
        const size_t count = std::min<size_t>(bytes.size() - at, 1 + random() % 16);
        bytes.erase(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
        break;
      }
      case 5: {  // a part repeated
        const size_t count = std::min<size_t>(bytes.size() - at, 1 + random() % 64);
        const std::vector<uint8_t> part(bytes.begin() + static_cast<std::ptrdiff_t>(at), bytes.begin() + static_cast<std::ptrdiff_t>(at + count));
        bytes.insert(bytes.end(), part.begin(), part.end());
        break;
      }
      case 6: {  // the end of another
        const std::vector<uint8_t>& other = corpus[random() % corpus.size()];
        if (other.empty()) break;
        const size_t from = random() % other.size();
        bytes.resize(at);
        bytes.insert(bytes.end(), other.begin() + static_cast<std::ptrdiff_t>(from), other.end());
        break;
      }
      default:
        for (size_t i = at; i < std::min(bytes.size(), at + 4); ++i) bytes[i] = static_cast<uint8_t>(random());
    }
  }
  if (bytes.size() > kMaxInput) bytes.resize(kMaxInput);
}

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

void save(const std::filesystem::path& folder, const std::vector<uint8_t>& bytes) {
  uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
  for (const uint8_t byte : bytes) hash = (hash ^ byte) * 0x100000001b3;
  char name[17];
  std::snprintf(name, sizeof name, "%016llx", static_cast<unsigned long long>(hash));
  std::ofstream(folder / name, std::ios::binary).write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

}  // namespace

extern "C" void __sanitizer_cov_trace_pc() {
  const auto place = reinterpret_cast<uintptr_t>(__builtin_return_address(0));
  uint8_t& edge = seen_edges[(place ^ last_place) & (seen_edges.size() - 1)];
  last_place = place >> 1;
  if (edge) return;
  edge = 1;
  ++new_edges;
}

extern "C" const char* __asan_default_options() { return "handle_abort=1:detect_stack_use_after_return=0:allocator_may_return_null=1"; }
extern "C" const char* __ubsan_default_options() { return "print_stacktrace=1"; }

int main(int argc, char** argv) {
  const fuzz::Target* target = nullptr;
  for (const fuzz::Target* each : {&fuzz::kSlots, &fuzz::kFrames, &fuzz::kHub, &fuzz::kLink, &fuzz::kEngine})
    if (argc > 2 && each->name == std::string(argv[1])) target = each;
  if (!target) {
    std::fprintf(stderr, "usage: fuzz slots|frames|hub|link|engine CORPUS --executions N --seed S, or FILE ...\n");
    return 2;
  }
  crash_file = std::string("crash-") + target->name;
  __sanitizer_set_death_callback(keep_crash);
  uint64_t executions = 0, seed = 0;
  std::vector<std::string> paths;
  std::string reduced;
  for (int i = 2; i < argc; ++i) {
    const std::string word = argv[i];
    if (word == "--reduce" && i + 1 < argc) reduced = argv[++i];
    else if (word == "--executions" && i + 1 < argc) executions = std::stoull(argv[++i]);
    else if (word == "--seed" && i + 1 < argc) seed = std::stoull(argv[++i]);
    else paths.push_back(word);
  }
  if (executions == 0 && reduced.empty()) {
    for (const std::string& path : paths) run(*target, read_file(path));
    return 0;
  }
  const std::filesystem::path folder = paths.at(0);
  std::filesystem::create_directories(folder);
  std::vector<std::vector<uint8_t>> corpus;
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  for (const auto& file : files) corpus.push_back(read_file(file));
  if (!reduced.empty()) {
    std::filesystem::create_directories(reduced);
    std::stable_sort(corpus.begin(), corpus.end(), [](const auto& a, const auto& b) { return a.size() < b.size(); });
    for (const auto& bytes : corpus) {
      new_edges = 0;
      run(*target, bytes);
      if (new_edges > 0) save(reduced, bytes);
    }
    return 0;
  }
  if (corpus.empty()) corpus.emplace_back();
  for (const auto& bytes : corpus) run(*target, bytes);
  all_edges = new_edges;
  Random random(seed);
  const auto begun = std::chrono::steady_clock::now();
  std::vector<uint8_t> bytes;
  for (uint64_t number = 1; number <= executions; ++number) {
    // Half of the time one of the last that were new.
    const size_t from = random() % 2 ? 0 : corpus.size() - std::min<size_t>(corpus.size(), 16);
    bytes = corpus[from + random() % (corpus.size() - from)];
    change(bytes, corpus, random);
    new_edges = 0;
    run(*target, bytes);
    if (new_edges > 0) {
      all_edges += new_edges;
      corpus.push_back(bytes);
      save(folder, bytes);
    }
    if (number % kReportEvery == 0 || number == executions) {
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
      std::printf("%s: %llu executions, %u edges, %zu inputs kept, %.0f a second\n", target->name,
                  static_cast<unsigned long long>(number), all_edges, corpus.size(), static_cast<double>(number) / took.count());
      std::fflush(stdout);
    }
  }
  return 0;
}
