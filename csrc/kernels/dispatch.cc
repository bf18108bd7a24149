// Which instruction set serves this process, and the scratch memory of its threads.
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <string>

#include "kernels.h"

namespace kernels {
namespace {

struct Level {
  const char* name;
  bool present;
  const Kernels& (*table)();
};

const Kernels& choose() {
#if defined(ATB_HAVE_X86)
  __builtin_cpu_init();
  const bool has_avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                        __builtin_cpu_supports("f16c");
  const bool has_avx512 = has_avx2 && __builtin_cpu_supports("avx512f") &&
                          __builtin_cpu_supports("avx512bw") &&
                          __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const Level levels[] = {{"avx512", has_avx512, avx512::table},
                          {"avx2", has_avx2, avx2::table},
                          {"portable", true, portable::table}};
#else
  const Level levels[] = {{"portable", true, portable::table}};
#endif
  const char* asked = std::getenv("ATB_DIST_SIMD");
  std::string present;
  for (const Level& level : levels) {
    if (!level.present) continue;
    if (asked == nullptr || *asked == 0 || std::strcmp(asked, level.name) == 0) {
      return level.table();
    }
    present += std::string(present.empty() ? "" : ", ") + level.name;
  }
  throw std::invalid_argument("ATB_DIST_SIMD=" + std::string(asked) +
                              " is not available; this CPU and build have: " + present);
}

struct Scratch {
  std::unique_ptr<float[]> memory;
  float* aligned = nullptr;
  size_t size = 0;
};

}  // namespace

const Kernels& active() {
  static const Kernels& table = choose();
  return table;
}

bool has_vnni() {
#if defined(ATB_HAVE_X86)
  static const bool has = __builtin_cpu_supports("avx512vnni");
  return has;
#else
  return false;
#endif
}

float* scratch(Use use, size_t floats) {
  thread_local Scratch both[2];
  Scratch& mine = both[static_cast<int>(use)];
  if (mine.size < floats) {
    mine.size = 0;
    mine.memory.reset(new float[floats + 16]);
    const auto address = reinterpret_cast<uintptr_t>(mine.memory.get());
    mine.aligned = mine.memory.get() + (64 - address % 64) % 64 / sizeof(float);
    mine.size = floats;
  }
  return mine.aligned;
}

}  // namespace kernels
