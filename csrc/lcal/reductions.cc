// reduce and reduce_scatter. Steps and bytes of each: README.md.
#include <algorithm>
#include <numeric>

#include "comm.h"
#include "reduce.h"
#include "running.h"

namespace lcal {

void Comm::reduce(void* x, size_t count, DType dtype, Op op, int dst) {
  const size_t item = item_bytes(dtype);
  Running running(*this, Call{Kind::reduce, op, dtype, dst, count * item});
  const size_t step = half_bytes() / item;
  size_t first = 0;
  do {  // at least one round, so that ranks meet even over nothing
    const size_t part = std::min(step, count - first);
    unsigned char* at = static_cast<unsigned char*>(x) + first * item;
    begin_round();
    phase(running.call(), offer(at, part * item));
    if (rank_ == dst) {
      const void* sources[kMaxRanks];
      for (int r = 0; r < size_; ++r) sources[r] = r == rank_ ? at : offered(r);
      reduce_ranks(at, sources, size_, part, dtype, op);
    }
    first += part;
  } while (first < count);
  finish_reading(running.call());
}

void Comm::reduce_scatter(const void* x, void* out, const std::vector<uint64_t>& counts,
                          DType dtype, Op op) {
  const size_t item = item_bytes(dtype);
  const uint64_t total = std::accumulate(counts.begin(), counts.end(), uint64_t{0});
  Running running(*this, Call{Kind::reduce_scatter, op, dtype, 0, total * item});
  const unsigned char* in = static_cast<const unsigned char*>(x);
  const uint64_t place = total > 0 ? arena_.place(x, total * item) : 0;
  const size_t step = half_bytes() / size_ / kLine * kLine / item;  // elements a rank and round
  const uint64_t longest = *std::max_element(counts.begin(), counts.end());
  const uint64_t mine = std::accumulate(counts.begin(), counts.begin() + rank_, uint64_t{0});
  size_t first = 0;
  do {
    begin_round();
    uint64_t before = 0;
    for (int r = 0; r < size_ && place == 0; ++r) {
      const size_t begin = std::min<uint64_t>(first, counts[r]);
      copy_bytes(half(rank_) + r * step * item, in + (before + begin) * item,
                 std::min<uint64_t>(step, counts[r] - begin) * item);
      before += counts[r];
    }
    phase(running.call(), place);
    const size_t begin = std::min<uint64_t>(first, counts[rank_]);
    const void* sources[kMaxRanks];
    for (int r = 0; r < size_; ++r) {
      sources[r] =
          places_[r] != 0 ? offered(r) + (mine + begin) * item : half(r) + rank_ * step * item;
    }
    reduce_ranks(static_cast<unsigned char*>(out) + begin * item, sources, size_,
                 std::min<uint64_t>(step, counts[rank_] - begin), dtype, op);
    first += step;
  } while (first < longest);
  finish_reading(running.call());
}

}  // namespace lcal
