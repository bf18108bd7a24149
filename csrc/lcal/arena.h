// Memory in the segment that callers keep their data in, so that peers read and write it in place.
//
// A block has one size on all ranks; rank r's part lies at offset + r * stride of the memory file.
// A place is such a file offset: it means the same on every rank, whatever address it is mapped at.
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <vector>

#include "segment.h"

namespace lcal {

class Arena {
 public:
  Arena(const Segment& segment, int rank, int ranks);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  // Where [x, x + bytes) lies, when this rank's part of a block holds it; else 0.
  uint64_t place(const void* x, size_t bytes) const {
    const auto address = reinterpret_cast<uintptr_t>(x);
    return address < low_ || address >= high_ ? 0 : find(address, bytes);
  }
  // The address, in this process, of a place of any rank.
  unsigned char* at(uint64_t place) const;

  // Called from any thread: this rank no longer needs its part.
  void release(uint64_t offset);

  // The steps of a collective allocation; between them ranks meet (Comm::empty).
  // Blocks that this rank has let go of since it last told, at most `limit` of them.
  std::vector<uint64_t> take_released(size_t limit);
  // One rank has let go of the block. What all have let go of can be used again.
  void note_released(uint64_t offset);
  // Choose where the next block of that stride lies: the same on all ranks. True if it is a new
  // one.
  bool choose(size_t stride, uint64_t* offset);
  // Back this rank's part with memory and map the whole block; false when there is none left.
  bool back(size_t stride, uint64_t offset);
  void unback(uint64_t offset);
  // Give memory that is not used again back to the host.
  void trim();
  unsigned char* own(uint64_t offset) const;

 private:
  struct Block {
    uint64_t offset;
    size_t stride;
    unsigned char* base;
    int released_by = 0;
  };
  uint64_t find(uintptr_t address, size_t bytes) const;
  const Block& block(uint64_t place) const;
  void punch(uint64_t begin, size_t bytes);
  void remove(size_t index);
  void update_bounds();

  const Segment& segment_;
  const int rank_;
  const int ranks_;
  uint64_t end_;  // of the memory file
  std::vector<Block> blocks_;
  uintptr_t low_ = ~uintptr_t{0};
  uintptr_t high_ = 0;
  std::mutex lock_;  // of released_
  std::vector<uint64_t> released_;
};

}  // namespace lcal
