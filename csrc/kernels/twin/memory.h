// The memories of arch 2201: a core's local ones with their true sizes, and what is in device
// memory.
#pragma once

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "shadow.h"

namespace AscendC {

enum class TPosition : uint8_t {
  GM,
  A1,
  A2,
  B1,
  B2,
  C1,
  C2,
  CO1,
  CO2,
  VECIN,
  VECOUT,
  VECCALC,
  TSCM,
  C2PIPE2GM
};  // clang-format off
using QuePosition = TPosition;
// clang-format on

}  // namespace AscendC

namespace twin {

using AscendC::TPosition;

constexpr size_t kUbBytes = 192 * 1024 - 256 - 8 * 1024;  // less what the system reserves
constexpr size_t kL1Bytes = 512 * 1024 - 256;
constexpr uint8_t kPoison = 0xa5;

struct LocalMemory {
  LocalMemory(const char* name, size_t bytes, size_t alignment)
      : name(name), alignment(alignment), bytes(bytes, kPoison), shadow(bytes) {}

  const char* name;
  size_t alignment;  // of what the pipes address
  std::vector<uint8_t> bytes;
  Shadow shadow;
  size_t used = 0;  // by TPipe::InitBuffer
};

enum Local { kUB, kL1, kL0A, kL0B, kL0C, kBias, kFixpipe, kLocals };

inline std::unique_ptr<LocalMemory> make_local(Local which) {
  switch (which) {
    case kUB:
      return std::make_unique<LocalMemory>("UB", kUbBytes, 32);
    case kL1:
      return std::make_unique<LocalMemory>("L1", kL1Bytes, 32);
    case kL0A:
      return std::make_unique<LocalMemory>("L0A", 64 * 1024, 512);
    case kL0B:
      return std::make_unique<LocalMemory>("L0B", 64 * 1024, 512);
    case kL0C:
      return std::make_unique<LocalMemory>("L0C", 128 * 1024, 1024);
    case kBias:
      return std::make_unique<LocalMemory>("BiasTable", 1024, 64);
    default:
      return std::make_unique<LocalMemory>("Fixpipe buffer", 2048, 128);
  }
}

inline Local local_of(TPosition position) {
  switch (position) {
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
    case TPosition::TSCM:
      return kL1;
    case TPosition::A2:
      return kL0A;
    case TPosition::B2:
      return kL0B;
    case TPosition::CO1:
      return kL0C;
    case TPosition::C2:
      return kBias;
    case TPosition::C2PIPE2GM:
      return kFixpipe;
    default:
      return kUB;
  }
}

// One allocation in the device memory of a rank.
struct Gm {
  Gm(int rank, std::string name, uint8_t* base, size_t size)
      : rank(rank), name(std::move(name)), base(base), size(size), shadow(size) {}

  bool is_flag(size_t at) const {
    for (const auto& [begin, end] : flag_ranges) {
      if (begin <= at && at < end) return true;
    }
    return false;
  }

  int rank;
  std::string name;
  uint8_t* base;
  size_t size;
  Shadow shadow;
  bool shared = false;  // other ranks may touch it
  // Where ranks poll: accesses are meant to race, and carry the clock of the last writers along.
  std::vector<std::pair<size_t, size_t>> flag_ranges;
  std::map<size_t, Clock> released;  // by 32-byte block
};

// All allocations of all ranks, by address.
class DeviceMemory {
 public:
  Gm& add(int rank, std::string name, void* base, size_t size) {
    auto& slot = by_end_[reinterpret_cast<uintptr_t>(base) + size];
    slot = std::make_unique<Gm>(rank, std::move(name), static_cast<uint8_t*>(base), size);
    return *slot;
  }
  void remove(const Gm& gm) { by_end_.erase(reinterpret_cast<uintptr_t>(gm.base) + gm.size); }

  // Null when the address belongs to no allocation; its end counts as belonging to it.
  Gm* find(const void* address) const {
    const uint8_t* p = static_cast<const uint8_t*>(address);
    auto found = by_end_.upper_bound(reinterpret_cast<uintptr_t>(p));
    if (found != by_end_.end() && found->second->base <= p) return found->second.get();
    found = by_end_.find(reinterpret_cast<uintptr_t>(p));
    return found == by_end_.end() ? nullptr : found->second.get();
  }

 private:
  std::map<uintptr_t, std::unique_ptr<Gm>> by_end_;
};

}  // namespace twin
