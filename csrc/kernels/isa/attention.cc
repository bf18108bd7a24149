// Attention over a paged cache, for neighbouring rows and KV heads of one sequence.
#include "attention.h"

#include "tables.h"

namespace kernels::ATB_ISA {

// Finds the cached rows of positions.
template <class T>
struct Pages {
  const T* cache;
  const int32_t* table;
  int64_t block_size, position_stride, head_offset;
};

// The rows of positions first to first + count; a tile's remaining pointers repeat the last one.
template <class T>
static void find_rows(const Pages<T>& pages, int64_t first, int64_t count, const T** rows) {
  int64_t page = first / pages.block_size, offset = first % pages.block_size;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t slot = pages.table[page] * pages.block_size + offset;
    rows[i] = pages.cache + slot * pages.position_stride + pages.head_offset;
    if (++offset == pages.block_size) {
      offset = 0;
      ++page;
    }
  }
  for (int64_t i = count; i < kTile; ++i) rows[i] = rows[count - 1];
}

// Rows are fetched into the second-level cache this far ahead, see linear_direct.h.
constexpr int64_t kFetchBytes = 32 << 10;

template <class T>
ATB_INLINE void fetch_rows(const Pages<T>& pages, int64_t first, int64_t visible, int64_t size) {
  constexpr int64_t kLine = 64 / sizeof(T);
  if (first >= visible) return;
  const T* rows[kTile];
  find_rows(pages, first, min_of(kTile, visible - first), rows);
  for (int64_t i = 0; i < kTile; ++i) {
    for (int64_t e = 0; e < size; e += kLine) __builtin_prefetch(rows[i] + e, 0, 2);
  }
}

// Call run(rows, first) for each tile of positions up to `visible`.
template <class T, class F>
ATB_INLINE void each_tile(const Pages<T>& pages, int64_t visible, int64_t size, const F& run) {
  const int64_t tile_bytes = kTile * size * static_cast<int64_t>(sizeof(T));
  const int64_t ahead = (kFetchBytes + tile_bytes - 1) / tile_bytes * kTile;
  const T* rows[kTile];
  for (int64_t first = 0; first < ahead; first += kTile) fetch_rows(pages, first, visible, size);
  for (int64_t first = 0; first < visible; first += kTile) {
    fetch_rows(pages, first + ahead, visible, size);
    find_rows(pages, first, min_of(kTile, visible - first), rows);
    run(rows, first);
  }
}

// Call run(queries of one KV head, their rows of the cache) for each KV head of a tile.
template <class T, class F>
ATB_INLINE void each_kv_head(Query* queries, int64_t per_head, int64_t heads, const T* const* rows,
                             int64_t size, const F& run) {
  const T* mine[kTile];
  for (int64_t i = 0; i < kTile; ++i) mine[i] = rows[i];
  for (int64_t head = 0; head < heads; ++head) {
    run(queries + head * per_head, mine);
    for (int64_t i = 0; i < kTile; ++i) mine[i] += size;
  }
}

// Queries by KV head, then by row.
static void place_queries(const Attention& a, const AttentionBlock& b, int64_t position,
                          int64_t scores_size, Query* queries, float* scores) {
  const int64_t group = a.heads / a.kv_heads;
  Query* query = queries;
  for (int64_t kv_head = b.kv_begin; kv_head < b.kv_end; ++kv_head) {
    for (int64_t row = b.begin; row < b.end; ++row) {
      for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head, ++query) {
        query->q = a.q + row * a.q_row_stride + head * a.q_head_stride;
        query->scores = scores + (query - queries) * scores_size;
        query->out = a.out + (row * a.heads + head) * a.size;
        query->visible = position + row + 1;
        for (int64_t e = 0; e < a.size; ++e) query->out[e] = 0.0f;
      }
    }
  }
}

template <class T>
static void attend(const Attention& a, const AttentionBlock& b) {
  const int64_t kv_heads = b.kv_end - b.kv_begin;
  const int64_t per_head = a.heads / a.kv_heads * (b.end - b.begin), count = kv_heads * per_head;
  // Row r stands at position + r.
  const int64_t position = a.context_lens[b.sequence] - a.query_starts[b.sequence + 1];
  const int64_t visible = position + b.end;  // by the last row
  const int64_t scores_size = (visible + kTile - 1) / kTile * kTile;
  const int64_t queries_size = (count * static_cast<int64_t>(sizeof(Query)) + 63) / 64 * 16;
  float* memory = scratch(Use::kernel, static_cast<size_t>(queries_size + count * scores_size));
  Query* queries = reinterpret_cast<Query*>(memory);
  place_queries(a, b, position, scores_size, queries, memory + queries_size);

  const int32_t* table = a.block_tables + b.sequence * a.table_stride;
  const Pages<T> keys = {static_cast<const T*>(a.k_cache), table, a.block_size, a.kv_heads * a.size,
                         b.kv_begin * a.size};
  Pages<T> values = keys;
  values.cache = static_cast<const T*>(a.v_cache);
  each_tile(keys, visible, kv_heads * a.size, [&](const T* const* rows, int64_t first) {
    each_kv_head(queries, per_head, kv_heads, rows, a.size, [&](Query* some, const T* const* mine) {
      score_queries(some, per_head, mine, first, a.size, a.scale);
    });
  });
  for (int64_t i = 0; i < count; ++i) exponentiate(queries[i]);
  each_tile(values, visible, kv_heads * a.size, [&](const T* const* rows, int64_t first) {
    each_kv_head(queries, per_head, kv_heads, rows, a.size, [&](Query* some, const T* const* mine) {
      blend_queries(some, per_head, mine, first, a.size);
    });
  });
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t e = 0; e < a.size; e += kLanes) {
      float* out = queries[i].out + e;
      store_upto(out, a.size - e, div(load_upto(out, a.size - e), set1(queries[i].total)));
    }
  }
}

void attention(const Attention& a, const AttentionBlock& block) {
  if (a.type == DType::fp32) return attend<float>(a, block);
  if (a.type == DType::bf16) return attend<bf16>(a, block);
  return attend<fp16>(a, block);
}

}  // namespace kernels::ATB_ISA
