// What the twin remembers of every byte: is it written, and who touched it last.
//
// Each core has one clock for each of its pipes; an access is stamped with its pipe's time. It is
// in order with an earlier one if the clock that its pipe holds of the other pipe has reached that
// time: clocks travel with flags, barriers and queues only, so an access that no synchronisation
// orders is found on every run, not just when the machine happens to run it too early.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "report.h"

namespace twin {

using Clock = std::vector<uint32_t>;  // by actor: core × pipe

inline void join(Clock& into, const Clock& from) {
  if (into.size() < from.size()) into.resize(from.size());
  for (size_t i = 0; i < from.size(); ++i) into[i] = into[i] < from[i] ? from[i] : into[i];
}

enum class Kind : uint8_t { read, write, add };  // add: atomic, in any order with other adds

inline const char* name(Kind kind) {
  return kind == Kind::read ? "reads" : kind == Kind::write ? "writes" : "adds to";
}

struct Access {
  uint32_t actor, time;
  int line;
  uint8_t low, high;  // bytes of the 32-byte block
  Kind kind;
  const char* file;
};

// The stamps and the written bytes of one memory.
class Shadow {
 public:
  static constexpr size_t kBlock = 32;

  explicit Shadow(size_t bytes = 0) : written_(bytes), blocks_((bytes + kBlock - 1) / kBlock) {}

  // Returns the earlier access that `clock` does not order before this one, or null; stamps.
  const Access* stamp(size_t begin, size_t end, Access access, const Clock& clock) {
    for (size_t block = begin / kBlock; block * kBlock < end; ++block) {
      const size_t base = block * kBlock;
      access.low = static_cast<uint8_t>(begin > base ? begin - base : 0);
      access.high = static_cast<uint8_t>(end < base + kBlock ? end - base : kBlock);
      if (const Access* earlier = stamp_block(blocks_[block], access, clock)) return earlier;
    }
    return nullptr;
  }

  void set_written(size_t begin, size_t end, bool value) {
    std::fill(written_.begin() + begin, written_.begin() + end, value);
  }
  bool is_written(size_t at) const { return written_[at]; }
  const uint8_t* written() const { return written_.data(); }
  uint8_t* written() { return written_.data(); }

  // The first byte of the range that nobody has written, or `end`.
  size_t first_unwritten(size_t begin, size_t end) const {
    const void* found = std::memchr(written_.data() + begin, 0, end - begin);
    return found ? static_cast<const uint8_t*>(found) - written_.data() : end;
  }

 private:
  static bool conflict(Kind a, Kind b) { return a == Kind::write || b == Kind::write || a != b; }

  const Access* stamp_block(std::vector<Access>& block, const Access& access, const Clock& clock) {
    size_t kept = 0;
    for (size_t i = 0; i < block.size(); ++i) {
      Access& old = block[i];
      const bool overlap = old.low < access.high && access.low < old.high;
      const bool same_call = old.actor == access.actor && old.time == access.time;
      const bool ordered = same_call || (old.actor < clock.size() && old.time <= clock[old.actor]);
      if (overlap && conflict(old.kind, access.kind) && !ordered) return &(found_ = old);
      const bool covered = access.low <= old.low && old.high <= access.high;
      const bool replaced = access.kind == Kind::write || (old.kind == access.kind && ordered) ||
                            (old.kind == access.kind && old.actor == access.actor);
      if (!(covered && replaced)) block[kept++] = old;
    }
    block.resize(kept);
    block.push_back(access);
    return nullptr;
  }

  std::vector<uint8_t> written_;
  std::vector<std::vector<Access>> blocks_;
  Access found_;
};

}  // namespace twin
