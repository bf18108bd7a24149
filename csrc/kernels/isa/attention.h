// Tiles of attention: some queries against sixteen neighbouring positions of the cache.
//
// A query is one head of one row. What it computes is a function of its own q and of positions 0 to
// its own: scores (lanes over the head, as in linear), their exact maximum, exponentials, their sum
// (lanes over absolute position), and the sum of V weighted by them, in order of position. Which
// queries share a tile only decides what is loaded together.
#pragma once

#include "../kernels.h"
#include "simd.h"

namespace kernels::ATB_ISA {

// Positions of a tile; tiles begin at multiples of it.
constexpr int64_t kTile = kLanes;

struct Query {
  const float* q;
  float* scores;  // one for each position, then exponentials; room for whole tiles
  float* out;     // [size]
  int64_t visible;
  float total;
};

// Scores of eight positions for H queries.
template <int H, class T>
ATB_INLINE void score_eight(const Query* queries, const T* const* rows, int64_t size,
                            float (&sums)[H][kTile], int half) {
  Vec acc[H * 8];
#pragma GCC unroll 32
  for (int i = 0; i < H * 8; ++i) acc[i] = zero();
  int64_t e = 0;
  for (; e + kLanes <= size; e += kLanes) {
    Vec q[H];
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) q[h] = load(queries[h].q + e);
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      const Vec k = load(rows[half * 8 + i] + e);
#pragma GCC unroll 4
      for (int h = 0; h < H; ++h) acc[h * 8 + i] = fma(q[h], k, acc[h * 8 + i]);
    }
  }
  for (int i = 0; i < 8 && e < size; ++i) {
    const Vec k = load_n(rows[half * 8 + i] + e, size - e);
    for (int h = 0; h < H; ++h) {
      acc[h * 8 + i] = fma(load_n(queries[h].q + e, size - e), k, acc[h * 8 + i]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) sum8(acc + h * 8, sums[h] + half * 8);
}

// Scores of one tile. Rows that a query does not see give scores that nobody reads.
template <int H, class T>
static void score_tile(const Query* queries, const T* const* rows, int64_t first, int64_t size,
                       float scale) {
  float sums[H][kTile];
  for (int half = 0; half < 2; ++half) score_eight<H>(queries, rows, size, sums, half);
  for (int h = 0; h < H; ++h) {
    if (queries[h].visible <= first) continue;
    store(queries[h].scores + first, mul(load(sums[h]), set1(scale)));
  }
}

template <class T>
ATB_INLINE void score_queries(const Query* queries, int64_t count, const T* const* rows,
                              int64_t first, int64_t size, float scale) {
  constexpr int kTogether = kRegisters >= 32 ? 2 : 1;
  int64_t i = 0;
  for (; i + kTogether <= count; i += kTogether) {
    score_tile<kTogether>(queries + i, rows, first, size, scale);
  }
  for (; i < count; ++i) score_tile<1>(queries + i, rows, first, size, scale);
}

// Turn scores into exponentials of their distance to the largest, and add those up.
static void exponentiate(Query& query) {
  float* scores = query.scores;
  const int64_t visible = query.visible;
  int64_t i = 0;
  Vec best = set1(scores[0]);
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
  query.total = sum(total);
}

// Add `count` weighted rows of V to N vectors, from element e on, of H queries.
template <int H, int N, class T>
ATB_INLINE void blend_vectors(const Query* queries, const T* const* rows, int64_t first,
                              int64_t count, int64_t e) {
  Vec acc[H * N];
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) acc[h * N + i] = load(queries[h].out + e + i * kLanes);
  }
  for (int64_t j = 0; j < count; ++j) {
    Vec v[N];
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) v[i] = load(rows[j] + e + i * kLanes);
#pragma GCC unroll 4
    for (int h = 0; h < H; ++h) {
      const Vec weight = set1(queries[h].scores[first + j]);
#pragma GCC unroll 4
      for (int i = 0; i < N; ++i) acc[h * N + i] = fma(weight, v[i], acc[h * N + i]);
    }
  }
#pragma GCC unroll 4
  for (int h = 0; h < H; ++h) {
#pragma GCC unroll 4
    for (int i = 0; i < N; ++i) store(queries[h].out + e + i * kLanes, acc[h * N + i]);
  }
}

// H queries that see the same `count` rows of a tile.
template <int H, class T>
static void blend_tile(const Query* queries, const T* const* rows, int64_t first, int64_t count,
                       int64_t size) {
  constexpr int kVectors = kRegisters >= 32 ? 4 : 2;
  int64_t e = 0;
  for (; e + kVectors * kLanes <= size; e += kVectors * kLanes) {
    blend_vectors<H, kVectors>(queries, rows, first, count, e);
  }
  for (; e + kLanes <= size; e += kLanes) blend_vectors<H, 1>(queries, rows, first, count, e);
  for (int h = 0; h < H && e < size; ++h) {
    Vec acc = load_n(queries[h].out + e, size - e);
    for (int64_t j = 0; j < count; ++j) {
      acc = fma(set1(queries[h].scores[first + j]), load_n(rows[j] + e, size - e), acc);
    }
    store_n(queries[h].out + e, size - e, acc);
  }
}

template <class T>
ATB_INLINE void blend_queries(const Query* queries, int64_t count, const T* const* rows,
                              int64_t first, int64_t size) {
  constexpr int kTogether = kRegisters >= 32 ? 4 : 2;
  int64_t i = 0;
  while (i < count) {
    const int64_t seen = max_of(min_of(queries[i].visible - first, kTile), 0);
    int64_t same = 1;
    while (same < kTogether && i + same < count &&
           max_of(min_of(queries[i + same].visible - first, kTile), 0) == seen) {
      ++same;
    }
    if (same == kTogether) {
      blend_tile<kTogether>(queries + i, rows, first, seen, size);
      i += same;
    } else {
      blend_tile<1>(queries + i, rows, first, seen, size);
      ++i;
    }
  }
}

}  // namespace kernels::ATB_ISA
