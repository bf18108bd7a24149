// Collectives that move bytes without changing them. Steps and bytes of each: README.md.
#include <algorithm>

#include "comm.h"
#include "error.h"
#include "running.h"

namespace lcal {
namespace {

uint64_t total(const std::vector<uint64_t>& bytes) {
  uint64_t sum = 0;
  for (uint64_t each : bytes) sum += each;
  return sum;
}

uint64_t longest(const std::vector<uint64_t>& bytes) {
  return *std::max_element(bytes.begin(), bytes.end());
}

}  // namespace

void Comm::barrier() {
  Running running(*this, Call{Kind::barrier});
  begin_round();
  phase(running.call());
}

void Comm::all_gather(const void* x, void* out, const std::vector<uint64_t>& bytes) {
  Running running(*this, Call{Kind::all_gather, Op::none, DType::u8, 0, total(bytes)});
  size_t first = 0;
  do {
    const size_t mine = std::min<uint64_t>(first, bytes[rank_]);
    begin_round();
    copy_bytes(half(rank_), static_cast<const unsigned char*>(x) + mine,
               std::min<uint64_t>(half_bytes(), bytes[rank_] - mine));
    phase(running.call());
    uint64_t before = 0;
    for (int r = 0; r < size_; ++r) {
      const size_t begin = std::min<uint64_t>(first, bytes[r]);
      copy_bytes(static_cast<unsigned char*>(out) + before + begin, half(r),
                 std::min<uint64_t>(half_bytes(), bytes[r] - begin));
      before += bytes[r];
    }
    first += half_bytes();
  } while (first < longest(bytes));
}

void Comm::gather(const void* x, void* out, const std::vector<uint64_t>& bytes, int dst) {
  Running running(*this, Call{Kind::gather, Op::none, DType::u8, dst, total(bytes)});
  size_t first = 0;
  do {
    const size_t mine = std::min<uint64_t>(first, bytes[rank_]);
    begin_round();
    copy_bytes(half(rank_), static_cast<const unsigned char*>(x) + mine,
               std::min<uint64_t>(half_bytes(), bytes[rank_] - mine));
    phase(running.call());
    uint64_t before = 0;
    for (int r = 0; r < size_ && rank_ == dst; ++r) {
      const size_t begin = std::min<uint64_t>(first, bytes[r]);
      copy_bytes(static_cast<unsigned char*>(out) + before + begin, half(r),
                 std::min<uint64_t>(half_bytes(), bytes[r] - begin));
      before += bytes[r];
    }
    first += half_bytes();
  } while (first < longest(bytes));
}

void Comm::broadcast(void* x, size_t bytes, int src) {
  Running running(*this, Call{Kind::broadcast, Op::none, DType::u8, src, bytes});
  size_t first = 0;
  do {
    unsigned char* at = static_cast<unsigned char*>(x) + first;
    const size_t part = std::min(half_bytes(), bytes - first);
    begin_round();
    if (rank_ == src) copy_bytes(half(src), at, part);
    phase(running.call());
    if (rank_ != src) copy_bytes(at, half(src), part);
    first += part;
  } while (first < bytes);
}

void Comm::scatter(const void* x, void* out, size_t bytes, int src) {
  Running running(*this, Call{Kind::scatter, Op::none, DType::u8, src, bytes});
  const size_t step = half_bytes() / size_;  // bytes a rank and round
  size_t first = 0;
  do {
    const size_t part = std::min(step, bytes - first);
    begin_round();
    for (int r = 0; r < size_ && rank_ == src; ++r) {
      copy_bytes(half(src) + r * step, static_cast<const unsigned char*>(x) + r * bytes + first,
                 part);
    }
    phase(running.call());
    copy_bytes(static_cast<unsigned char*>(out) + first, half(src) + rank_ * step, part);
    first += part;
  } while (first < bytes);
}

void Comm::exchange_counts(const std::vector<uint64_t>& send, const std::vector<uint64_t>& recv,
                           const Call& call) {
  begin_round();
  copy_bytes(half(rank_), send.data(), size_ * sizeof(uint64_t));
  phase(call);
  for (int r = 0; r < size_; ++r) {
    uint64_t theirs;
    copy_bytes(&theirs, half(r) + rank_ * sizeof(uint64_t), sizeof(theirs));
    if (theirs == recv[r]) continue;
    fail("all_to_all: " + who(r) + " sends " + std::to_string(theirs) + " bytes to " + who(rank_) +
         ", which expects " + std::to_string(recv[r]));
  }
}

void Comm::all_to_all(const void* x, void* out, const std::vector<uint64_t>& send,
                      const std::vector<uint64_t>& recv) {
  Running running(*this, Call{Kind::all_to_all});
  exchange_counts(send, recv, running.call());
  std::vector<uint64_t> all(static_cast<size_t>(size_) * size_);
  for (int r = 0; r < size_; ++r) {
    copy_bytes(&all[static_cast<size_t>(r) * size_], half(r), size_ * sizeof(uint64_t));
  }
  const size_t step = half_bytes() / size_;  // bytes a pair and round
  for (size_t first = 0; first < longest(all); first += step) {
    begin_round();
    uint64_t before = 0;
    for (int r = 0; r < size_; ++r) {
      const size_t begin = std::min<uint64_t>(first, send[r]);
      copy_bytes(half(rank_) + r * step, static_cast<const unsigned char*>(x) + before + begin,
                 std::min<uint64_t>(step, send[r] - begin));
      before += send[r];
    }
    phase(running.call());
    before = 0;
    for (int r = 0; r < size_; ++r) {
      const size_t begin = std::min<uint64_t>(first, recv[r]);
      copy_bytes(static_cast<unsigned char*>(out) + before + begin, half(r) + rank_ * step,
                 std::min<uint64_t>(step, recv[r] - begin));
      before += recv[r];
    }
  }
}

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
