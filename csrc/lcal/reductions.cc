// all_reduce, reduce and reduce_scatter. Steps and bytes of each: README.md.
#include <algorithm>

#include "comm.h"
#include "reduce.h"
#include "running.h"

namespace lcal {
namespace {

// Up to here every rank reads everything: one phase instead of two.
constexpr size_t kOneShotBytes = 32 << 10;
// What a round of two-shot moves: all ranks' pieces and x's stay in the second-level caches.
constexpr size_t kPieceBytes = 256 << 10;

// Elements low to high of `count` that rank r of `ranks` combines, cut at whole cache lines.
std::pair<size_t, size_t> share(size_t count, size_t item, int rank, int ranks) {
  const size_t line = kLine / item;
  const size_t lines = (count + line - 1) / line;
  const size_t low = lines * rank / ranks * line;
  const size_t high = lines * (rank + 1) / ranks * line;
  return {std::min(low, count), std::min(high, count)};
}

}  // namespace

void Comm::all_reduce(void* x, size_t count, DType dtype, Op op) {
  const size_t bytes = count * item_bytes(dtype);
  Running running(*this, Call{Kind::all_reduce, op, dtype, 0, bytes});
  if (bytes <= kOneShotBytes) {
    reduce_one_shot(static_cast<unsigned char*>(x), count, running.call(), true);
  } else {
    reduce_two_shot(static_cast<unsigned char*>(x), count, running.call());
  }
}

void Comm::reduce(void* x, size_t count, DType dtype, Op op, int dst) {
  Running running(*this, Call{Kind::reduce, op, dtype, dst, count * item_bytes(dtype)});
  reduce_one_shot(static_cast<unsigned char*>(x), count, running.call(), rank_ == dst);
}

void Comm::reduce_one_shot(unsigned char* x, size_t count, const Call& call, bool keep) {
  const size_t item = item_bytes(call.dtype);
  const size_t step = half_bytes() / item;
  size_t first = 0;
  do {  // at least one round, so that ranks meet even over nothing
    const size_t part = std::min(step, count - first);
    unsigned char* at = x + first * item;
    begin_round();
    copy_bytes(half(rank_), at, part * item);
    phase(call);
    if (keep) {
      const void* sources[kMaxRanks];
      for (int r = 0; r < size_; ++r) sources[r] = r == rank_ ? at : half(r);
      reduce_ranks(at, sources, size_, part, call.dtype, call.op);
    }
    first += part;
  } while (first < count);
}

void Comm::reduce_two_shot(unsigned char* x, size_t count, const Call& call) {
  const size_t item = item_bytes(call.dtype);
  const size_t step = std::min(half_bytes(), kPieceBytes) / item;
  for (size_t first = 0; first < count; first += step) {
    const size_t part = std::min(step, count - first);
    unsigned char* at = x + first * item;
    const auto [low, high] = share(part, item, rank_, size_);
    begin_round();
    unsigned char* mine = half(rank_);
    // This rank's own share never leaves x until it is reduced.
    copy_bytes(mine, at, low * item);
    copy_bytes(mine + high * item, at + high * item, (part - high) * item);
    phase(call);
    const void* sources[kMaxRanks];
    for (int r = 0; r < size_; ++r) sources[r] = (r == rank_ ? at : half(r)) + low * item;
    reduce_ranks(at + low * item, sources, size_, high - low, call.dtype, call.op);
    copy_bytes(mine + low * item, at + low * item, (high - low) * item);
    phase(call);
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const auto [from, to] = share(part, item, r, size_);
      copy_bytes(at + from * item, half(r) + from * item, (to - from) * item);
    }
  }
}

void Comm::reduce_scatter(const void* x, void* out, const std::vector<uint64_t>& counts,
                          DType dtype, Op op) {
  const size_t item = item_bytes(dtype);
  uint64_t total = 0;
  for (uint64_t count : counts) total += count;
  Running running(*this, Call{Kind::reduce_scatter, op, dtype, 0, total * item});
  const unsigned char* in = static_cast<const unsigned char*>(x);
  const size_t step = half_bytes() / size_ / kLine * kLine / item;  // elements a rank and round
  const uint64_t longest = *std::max_element(counts.begin(), counts.end());
  size_t first = 0;
  do {
    begin_round();
    uint64_t before = 0;
    for (int r = 0; r < size_; ++r) {
      const size_t begin = std::min<uint64_t>(first, counts[r]);
      const size_t part = std::min<uint64_t>(step, counts[r] - begin);
      copy_bytes(half(rank_) + r * step * item, in + (before + begin) * item, part * item);
      before += counts[r];
    }
    phase(running.call());
    const size_t begin = std::min<uint64_t>(first, counts[rank_]);
    const size_t part = std::min<uint64_t>(step, counts[rank_] - begin);
    const void* sources[kMaxRanks];
    for (int r = 0; r < size_; ++r) sources[r] = half(r) + rank_ * step * item;
    reduce_ranks(static_cast<unsigned char*>(out) + begin * item, sources, size_, part, dtype, op);
    first += step;
  } while (first < longest);
}

}  // namespace lcal
