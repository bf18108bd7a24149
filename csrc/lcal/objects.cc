// Byte strings whose length only their owner knows: it travels in front of every piece.
#include <algorithm>

#include "comm.h"
#include "running.h"

namespace lcal {

std::string Comm::broadcast_object(const std::string& value, int src, bool idle) {
  Running running(*this, Call{Kind::broadcast_object, Op::none, DType::object, src, 0, idle});
  const size_t room = half_bytes() - sizeof(uint64_t);
  uint64_t bytes = value.size();
  std::string result;
  size_t first = 0;
  do {
    begin_round();
    if (rank_ == src) {
      copy_bytes(half(src), &bytes, sizeof(bytes));
      copy_bytes(half(src) + sizeof(bytes), value.data() + first, std::min(room, bytes - first));
    }
    phase(running.call());
    copy_bytes(&bytes, half(src), sizeof(bytes));
    const size_t part = std::min<size_t>(room, bytes - first);
    if (rank_ != src) result.append(reinterpret_cast<char*>(half(src)) + sizeof(bytes), part);
    first += part;
  } while (first < bytes);
  return rank_ == src ? value : result;
}

std::vector<std::string> Comm::all_gather_object(const std::string& value) {
  Running running(*this, Call{Kind::all_gather_object, Op::none, DType::object});
  const size_t room = half_bytes() - sizeof(uint64_t);
  std::vector<std::string> results(size_);
  uint64_t most = value.size();
  size_t first = 0;
  do {
    begin_round();
    const uint64_t bytes = value.size();
    const size_t mine = std::min<size_t>(first, bytes);
    copy_bytes(half(rank_), &bytes, sizeof(bytes));
    copy_bytes(half(rank_) + sizeof(bytes), value.data() + mine,
               std::min<size_t>(room, bytes - mine));
    phase(running.call());
    for (int r = 0; r < size_; ++r) {
      uint64_t theirs;
      copy_bytes(&theirs, half(r), sizeof(theirs));
      const size_t begin = std::min<size_t>(first, theirs);
      results[r].append(reinterpret_cast<char*>(half(r)) + sizeof(theirs),
                        std::min<size_t>(room, theirs - begin));
      most = std::max(most, theirs);
    }
    first += room;
  } while (first < most);
  return results;
}

}  // namespace lcal
