// Attention over a paged cache, for rows of one sequence and the query heads of one KV head.
//
// Everything about a row and head is a function of its own q and of positions 0 to p: scores (lanes
// over the head, as in linear), their exact maximum, exponentials, their sum (lanes over absolute
// position), and the weighted sum of V in order of position. So neither the batch, nor how a prompt
// was cut into chunks, nor the block table changes a bit.
#include "simd.h"
#include "tables.h"

namespace kernels::ATB_ISA {

// Positions scored together.
constexpr int64_t kTile = 16;

// Finds the cached row of a position.
template <class T>
struct Pages {
  const T* cache;
  const int32_t* table;
  int64_t block_size, position_stride, head_offset;
};

template <class T>
ATB_INLINE const T* row_at(const Pages<T>& pages, int64_t position) {
  const int64_t block = pages.table[position / pages.block_size];
  const int64_t slot = block * pages.block_size + position % pages.block_size;
  return pages.cache + slot * pages.position_stride + pages.head_offset;
}

template <class T>
static void find_rows(const Pages<T>& pages, int64_t first, int64_t count, const T** rows) {
  for (int64_t i = 0; i < count; ++i) rows[i] = row_at(pages, first + i);
}

// scores[head][position] for all positions up to `visible`; each cached key is loaded once a tile.
template <class T>
static void score(const Attention& a, const Pages<T>& keys, const float* q, int64_t visible,
                  float* scores, int64_t stride) {
  const int64_t group = a.heads / a.kv_heads;
  const T* rows[kTile];
  for (int64_t first = 0; first < visible; first += kTile) {
    const int64_t count = min_of(kTile, visible - first);
    find_rows(keys, first, count, rows);
    for (int64_t head = 0; head < group; ++head) {
      const float* query = q + head * a.q_head_stride;
      float* to = scores + head * stride + first;
      for (int64_t i = 0; i < count; ++i) {
        Vec products = zero();
        for (int64_t e = 0; e < a.size; e += kLanes) {
          const int64_t n = a.size - e;
          products = fma(load_upto(query + e, n), load_upto(rows[i] + e, n), products);
        }
        to[i] = sum(products) * a.scale;
      }
    }
  }
}

// Turn scores into exponentials of their distance to the largest; return their sum.
static float exponentiate(float* scores, int64_t visible) {
  Vec best = set1(scores[0]);
  int64_t i = 0;
  for (; i + kLanes <= visible; i += kLanes) best = max(best, load(scores + i));
  float largest = max_lane(best);
  for (; i < visible; ++i) largest = scores[i] > largest ? scores[i] : largest;
  const Vec shift = set1(largest);
  Vec total = zero();
  for (i = 0; i < visible; i += kLanes) {
    const int64_t n = visible - i;
    store_upto(scores + i, n, exp(sub(load_upto(scores + i, n), shift)));
    total = add(total, load_upto(scores + i, n));
  }
  return sum(total);
}

// out[head] = Σ weights[head][position] · v[position] / total[head]
template <class T>
static void blend(const Attention& a, const Pages<T>& values, const float* weights, int64_t stride,
                  int64_t visible, const float* totals, float* out) {
  constexpr int kVectors = kRegisters >= 32 ? 8 : 4;
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t head = 0; head < group; ++head) {
    for (int64_t e = 0; e < a.size; e += kVectors * kLanes) {
      const int64_t width = min_of(kVectors * kLanes, a.size - e);
      Vec sums[kVectors];
      for (Vec& s : sums) s = zero();
      for (int64_t j = 0; j < visible; ++j) {
        const T* v = row_at(values, j) + e;
        const Vec weight = set1(weights[head * stride + j]);
        for (int64_t i = 0; i * kLanes < width; ++i) {
          sums[i] = fma(weight, load_upto(v + i * kLanes, width - i * kLanes), sums[i]);
        }
      }
      const Vec total = set1(totals[head]);
      for (int64_t i = 0; i * kLanes < width; ++i) {
        float* to = out + head * a.size + e + i * kLanes;
        store_upto(to, width - i * kLanes, div(sums[i], total));
      }
    }
  }
}

template <class T>
static void attend(const Attention& a, int64_t sequence, int64_t kv_head, int64_t begin,
                   int64_t end) {
  const int64_t group = a.heads / a.kv_heads;
  const Pages<T> keys = {static_cast<const T*>(a.k_cache),
                         a.block_tables + sequence * a.table_stride, a.block_size,
                         a.kv_heads * a.size, kv_head * a.size};
  Pages<T> values = keys;
  values.cache = static_cast<const T*>(a.v_cache);
  const int64_t last = a.context_lens[sequence] - a.query_starts[sequence + 1];
  const int64_t stride = (last + end + kLanes - 1) / kLanes * kLanes;
  float* scores = scratch(Use::kernel, static_cast<size_t>(group * (stride + 1)));
  float* totals = scores + group * stride;
  for (int64_t row = begin; row < end; ++row) {
    const int64_t visible = last + row + 1;
    const float* q = a.q + row * a.q_row_stride + kv_head * group * a.q_head_stride;
    score(a, keys, q, visible, scores, stride);
    for (int64_t head = 0; head < group; ++head) {
      totals[head] = exponentiate(scores + head * stride, visible);
    }
    float* out = a.out + (row * a.heads + kv_head * group) * a.size;
    blend(a, values, scores, stride, visible, totals, out);
  }
}

void attention(const Attention& a, int64_t sequence, int64_t kv_head, int64_t begin, int64_t end) {
  if (a.type == DType::fp32) return attend<float>(a, sequence, kv_head, begin, end);
  if (a.type == DType::bf16) return attend<bf16>(a, sequence, kv_head, begin, end);
  return attend<fp16>(a, sequence, kv_head, begin, end);
}

}  // namespace kernels::ATB_ISA
