// Measures ExecuTorch's own C++ Module, alone or with XNNPACK's weight cache.
//
//   measure_module load none|cache|FILE WARM_UP PROGRAM METHOD...
//   measure_module threads none|cache ROWS COLUMNS SECONDS ROUNDS PROGRAM METHOD
//
// Prints one line of JSON, in the form of benchmarks/worker.py.

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <executorch/extension/module/module.h>
#include <executorch/extension/tensor/tensor.h>
#include <executorch/extension/threadpool/threadpool_guard.h>
#include <executorch/runtime/backend/backend_options_map.h>

using executorch::extension::Module;
using executorch::runtime::BackendOptions;
using executorch::runtime::Error;
using executorch::runtime::LoadBackendOptionsMap;

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::map<std::string, long> memory() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::map<std::string, long> found;
  std::string line;
  while (std::getline(file, line)) {
    std::istringstream words(line);
    std::string name;
    long kibibytes = 0;
    if (words >> name >> kibibytes &&
        (name == "Anonymous:" || name == "Pss:" || name == "Pss_Shmem:")) {
      found[name.substr(0, name.size() - 1)] = kibibytes * 1024;
    }
  }
  return found;
}

void check(Error error, const char* what) {
  if (error != Error::Ok) {
    std::fprintf(stderr, "%s: %s\n", what, to_string(error));
    std::exit(1);
  }
}

/// What XNNPACK is told; must outlive the modules.
class Options {
 public:
  explicit Options(const std::string& cache) {
    if (cache == "none") {
      return;
    }
    check(options_.set_option("weight_cache_enabled", true), "option");
    if (cache != "cache") {
      check(options_.set_option("packed_cache_path", cache.c_str()), "option");
    }
    check(map_.set_options("XnnpackBackend", options_.view()), "options");
  }

  const LoadBackendOptionsMap& map() const {
    return map_;
  }

 private:
  BackendOptions<2> options_;
  LoadBackendOptionsMap map_;
};

std::unique_ptr<Module> open(const char* path, const Options& options) {
  auto module = std::make_unique<Module>(
      path, Module::LoadMode::Mmap, nullptr, nullptr, nullptr,
      /*share_memory_arenas=*/true);
  check(
      module->load(
          options.map(), executorch::runtime::Program::Verification::Minimal),
      path);
  return module;
}

int load(int argc, char** argv) {
  const Options options(argv[2]);
  auto warm_up = open(argv[3], Options("none"));
  for (const auto& name : warm_up->method_names().get()) {
    check(warm_up->load_method(name), "warm-up");
  }
  const auto before = memory();
  const auto start = Clock::now();
  auto module = open(argv[4], options);
  for (int i = 5; i < argc; ++i) {
    check(module->load_method(argv[i]), argv[i]);
  }
  const double seconds = seconds_since(start);
  const auto after = memory();
  std::printf("{\"seconds\": %.9f", seconds);
  for (const auto& [name, value] : after) {
    std::printf(", \"%s\": %ld", name.c_str(), value - before.at(name));
  }
  std::printf("}\n");
  return 0;
}

long calls(Module& module, const char* method, int rows, int columns, double seconds) {
  const executorch::extension::threadpool::NoThreadPoolGuard guard;
  auto input = executorch::extension::ones({rows, columns});
  long count = 0;
  for (const auto start = Clock::now(); seconds_since(start) < seconds; ++count) {
    check(module.execute(method, input).error(), method);
  }
  return count;
}

int threads(char** argv) {
  const Options options(argv[2]);
  const int rows = std::atoi(argv[3]);
  const int columns = std::atoi(argv[4]);
  const double seconds = std::atof(argv[5]);
  const int rounds = std::atoi(argv[6]);
  std::vector<std::unique_ptr<Module>> modules;
  {
    const executorch::extension::threadpool::NoThreadPoolGuard guard;
    for (int i = 0; i < 2; ++i) {
      modules.push_back(open(argv[7], options));
      check(modules.back()->load_method(argv[8]), argv[8]);
    }
  }
  std::string one;
  std::string two;
  for (int round = 0; round < rounds; ++round) {
    const auto run = [&](Module& module) {
      return calls(module, argv[8], rows, columns, seconds);
    };
    const char* separator = round == 0 ? "" : ", ";
    one += separator + std::to_string(run(*modules[0]));
    std::atomic<long> count = 0;
    std::vector<std::thread> running;
    for (auto& module : modules) {
      running.emplace_back([&] { count += run(*module); });
    }
    for (auto& thread : running) {
      thread.join();
    }
    two += separator + std::to_string(count.load());
  }
  std::printf("{\"one\": [%s], \"two\": [%s]}\n", one.c_str(), two.c_str());
  return 0;
}

} // namespace

int main(int argc, char** argv) {
  if (argc > 5 && std::strcmp(argv[1], "load") == 0) {
    return load(argc, argv);
  }
  if (argc == 9 && std::strcmp(argv[1], "threads") == 0) {
    return threads(argv);
  }
  std::fprintf(stderr, "usage: see the comment in measure_module.cpp\n");
  return 2;
}
