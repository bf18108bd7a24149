// all_reduce. Steps and bytes of each algorithm: README.md.
#include <algorithm>

#include "comm.h"
#include "reduce.h"
#include "running.h"

namespace lcal {
namespace {

// What is combined before it is copied on: it stays in the first-level cache.
constexpr size_t kPushBytes = 16 << 10;

// Elements low to high of `count` that rank r of `ranks` combines, cut at whole cache lines.
std::pair<size_t, size_t> share(size_t count, size_t item, int rank, int ranks) {
  const size_t line = kLine / item;
  const size_t lines = (count + line - 1) / line;
  const size_t low = lines * rank / ranks * line;
  const size_t high = lines * (rank + 1) / ranks * line;
  return {std::min(low, count), std::min(high, count)};
}

}  // namespace

void Comm::all_reduce(void* x, size_t count, DType dtype, Op op, const Tail& tail) {
  const size_t bytes = count * item_bytes(dtype);
  Running running(*this, Call{Kind::all_reduce, op, dtype, 0, bytes});
  const Call& call = running.call();
  unsigned char* at = static_cast<unsigned char*>(x);
  if (bytes <= choice_.one_shot_bytes) return all_reduce_one_shot(at, count, call, tail);
  const uint64_t place = arena_.place(x, bytes);
  if (all_reduce_two_shot(at, count, call, tail, place)) return;
  if (std::find(places_, places_ + size_, 0) == places_ + size_) {
    return all_reduce_in_place(at, count, call, tail);
  }
  lent_ = false;  // some ranks' tensors lie outside the segment: all copy
  all_reduce_two_shot(at, count, call, tail, 0);
}

void Comm::all_reduce_one_shot(unsigned char* x, size_t count, const Call& call, const Tail& tail) {
  begin_round();
  copy_bytes(half(rank_), x, call.bytes);
  phase(call);
  const void* sources[kMaxRanks];
  for (int r = 0; r < size_; ++r) sources[r] = r == rank_ ? x : half(r);
  reduce_ranks(x, sources, size_, count, call.dtype, call.op);
  if (tail) tail(0, count);
}

// Step k copies piece k in, combines this rank's share of piece k - 1, and, once all have done so,
// takes the other shares of piece k - 1: one phase a step. Pieces lie in four slots in turn, two in
// each half: a slot is written again when all have published two steps after reading it.
bool Comm::all_reduce_two_shot(unsigned char* x, size_t count, const Call& call, const Tail& tail,
                               uint64_t place) {
  const size_t item = item_bytes(call.dtype);
  const size_t step = choice_.piece_bytes / item;
  const size_t pieces = (count + step - 1) / step;
  begin_round();
  const uint32_t begin = round_;
  const auto slot = [&](int rank, size_t piece) {
    return segment_.half(rank, (begin + (piece >> 1)) & 1) + (piece & 1) * choice_.piece_bytes;
  };
  const auto size_of = [&](size_t piece) { return std::min(step, count - piece * step); };
  for (size_t k = 0; k <= pieces; ++k) {
    if (k < pieces && place == 0) {
      const auto [low, high] = share(size_of(k), item, rank_, size_);
      const unsigned char* from = x + k * step * item;
      unsigned char* to = slot(rank_, k);
      // This rank's own share never leaves x until it is combined.
      copy_bytes(to, from, low * item);
      copy_bytes(to + high * item, from + high * item, (size_of(k) - high) * item);
    }
    if (k > 0) {
      const auto [low, high] = share(size_of(k - 1), item, rank_, size_);
      unsigned char* mine = x + ((k - 1) * step + low) * item;
      const void* sources[kMaxRanks];
      for (int r = 0; r < size_; ++r) {
        sources[r] = r == rank_ ? mine : slot(r, k - 1) + low * item;
      }
      reduce_ranks(mine, sources, size_, high - low, call.dtype, call.op);
      copy_bytes(slot(rank_, k - 1) + low * item, mine, (high - low) * item);
    }
    phase(call, k == 0 ? place : 0);
    if (lent_) return false;
    if (k == 0) continue;
    unsigned char* to = x + (k - 1) * step * item;
    for (int i = 1; i < size_; ++i) {
      const int r = (rank_ + i) % size_;
      const auto [low, high] = share(size_of(k - 1), item, r, size_);
      copy_bytes(to + low * item, slot(r, k - 1) + low * item, (high - low) * item);
    }
    if (tail) tail((k - 1) * step, size_of(k - 1));
  }
  round_ = begin + static_cast<uint32_t>((pieces - 1) >> 1);  // where the last piece is still read
  return true;
}

// All tensors lie in the segment: combine this rank's share of all of them, and write it to all.
// Nobody reads a share but the rank that combines it, so there is nothing to copy in or to fetch.
void Comm::all_reduce_in_place(unsigned char* x, size_t count, const Call& call, const Tail& tail) {
  const size_t item = item_bytes(call.dtype);
  const auto [low, high] = share(count, item, rank_, size_);
  unsigned char* ranks[kMaxRanks];
  for (int r = 0; r < size_; ++r) ranks[r] = arena_.at(places_[r]);
  const size_t step = kPushBytes / item;
  for (size_t first = low; first < high; first += step) {
    const size_t part = std::min(step, high - first);
    const void* sources[kMaxRanks];
    for (int r = 0; r < size_; ++r) sources[r] = ranks[r] + first * item;
    reduce_ranks(x + first * item, sources, size_, part, call.dtype, call.op);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) copy_bytes(ranks[r] + first * item, x + first * item, part * item);
    }
  }
  phase(call);
  if (tail) tail(0, count);
}

}  // namespace lcal
