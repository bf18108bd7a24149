// Collectives that move bytes without combining them. Steps and bytes of each: README.md.
#include <algorithm>
#include <numeric>

#include "comm.h"
#include "error.h"
#include "running.h"

namespace lcal {
namespace {

uint64_t total(const std::vector<uint64_t>& bytes) {
  return std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
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

void Comm::barriers(int count) {
  for (int i = 0; i < count; ++i) barrier();
}

void Comm::all_gather(const void* x, void* out, const std::vector<uint64_t>& bytes) {
  Running running(*this, Call{Kind::all_gather, Op::none, DType::u8, 0, total(bytes)});
  join(x, out, bytes, true, running.call());
}

void Comm::gather(const void* x, void* out, const std::vector<uint64_t>& bytes, int dst) {
  Running running(*this, Call{Kind::gather, Op::none, DType::u8, dst, total(bytes)});
  join(x, out, bytes, rank_ == dst, running.call());
}

void Comm::join(const void* x, void* out, const std::vector<uint64_t>& bytes, bool keep,
                const Call& call) {
  const unsigned char* in = static_cast<const unsigned char*>(x);
  size_t first = 0;
  do {
    const size_t mine = std::min<uint64_t>(first, bytes[rank_]);
    begin_round();
    phase(call, offer(in + mine, std::min<uint64_t>(half_bytes(), bytes[rank_] - mine)));
    uint64_t before = 0;
    for (int r = 0; r < size_ && keep; ++r) {
      const size_t begin = std::min<uint64_t>(first, bytes[r]);
      copy_part(static_cast<unsigned char*>(out) + before + begin,
                r == rank_ ? in + begin : offered(r),
                std::min<uint64_t>(half_bytes(), bytes[r] - begin), call.bytes);
      before += bytes[r];
    }
    first += half_bytes();
  } while (first < longest(bytes));
  finish_reading(call);
}

void Comm::broadcast(void* x, size_t bytes, int src) {
  Running running(*this, Call{Kind::broadcast, Op::none, DType::u8, src, bytes});
  size_t first = 0;
  do {
    unsigned char* at = static_cast<unsigned char*>(x) + first;
    const size_t part = std::min(half_bytes(), bytes - first);
    begin_round();
    phase(running.call(), rank_ == src ? offer(at, part) : 0);
    if (rank_ != src) copy_part(at, offered(src), part, bytes);
    first += part;
  } while (first < bytes);
  finish_reading(running.call());
}

void Comm::scatter(const void* x, void* out, size_t bytes, int src) {
  Running running(*this, Call{Kind::scatter, Op::none, DType::u8, src, bytes});
  const unsigned char* in = static_cast<const unsigned char*>(x);
  const uint64_t place = rank_ == src && bytes > 0 ? arena_.place(x, bytes * size_) : 0;
  const size_t step = half_bytes() / size_;  // bytes a rank and round
  size_t first = 0;
  do {
    const size_t part = std::min(step, bytes - first);
    begin_round();
    for (int r = 0; r < size_ && rank_ == src && place == 0; ++r) {
      copy_bytes(half(src) + r * step, in + r * bytes + first, part);
    }
    phase(running.call(), place);
    copy_bytes(static_cast<unsigned char*>(out) + first,
               places_[src] != 0 ? offered(src) + rank_ * bytes + first : half(src) + rank_ * step,
               part);
    first += part;
  } while (first < bytes);
  finish_reading(running.call());
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
  const unsigned char* in = static_cast<const unsigned char*>(x);
  const uint64_t place = total(send) > 0 ? arena_.place(x, total(send)) : 0;
  const size_t step = half_bytes() / size_;  // bytes a pair and round
  for (size_t first = 0; first < longest(all); first += step) {
    begin_round();
    uint64_t before = 0;
    for (int r = 0; r < size_ && place == 0; ++r) {
      const size_t begin = std::min<uint64_t>(first, send[r]);
      copy_bytes(half(rank_) + r * step, in + before + begin,
                 std::min<uint64_t>(step, send[r] - begin));
      before += send[r];
    }
    phase(running.call(), place);
    before = 0;
    for (int r = 0; r < size_; ++r) {
      const size_t begin = std::min<uint64_t>(first, recv[r]);
      const uint64_t* theirs = &all[static_cast<size_t>(r) * size_];
      const size_t at = std::accumulate(theirs, theirs + rank_, size_t{0});
      copy_bytes(static_cast<unsigned char*>(out) + before + begin,
                 places_[r] != 0 ? offered(r) + at + begin : half(r) + rank_ * step,
                 std::min<uint64_t>(step, recv[r] - begin));
      before += recv[r];
    }
  }
  finish_reading(running.call());
}

}  // namespace lcal
