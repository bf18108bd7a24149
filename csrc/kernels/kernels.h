// What a kernel is given, and the table of kernels that each instruction set fills.
//
// A kernel computes one block of its output, the caller cuts the whole into blocks. No element's
// value depends on the block it falls into: blocks are cut by size and thread count only.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dtype.h"

namespace kernels {

constexpr int kMaxLeaves = 128;
constexpr int kMaxTreeDepth = 8;  // partial sums that wait at once in a tree of kMaxLeaves leaves

// Where K is cut, and how many waiting partial sums join after each leaf (see leaves.cc).
struct Leaves {
  int count = 1;
  int64_t border[kMaxLeaves + 1] = {};
  uint8_t joins[kMaxLeaves] = {};
};

// y [m, n] = x [m, k] · w [n, k]ᵀ (+ bias [n]). Rows are contiguous and `stride` elements apart
// (for int4, bytes).
struct Linear {
  const float* x;
  int64_t x_stride;
  const void* w;
  int64_t w_stride;
  DType w_type;
  const void* bias;  // or null
  DType bias_type;
  float* y;
  int64_t y_stride;
  int64_t m, n, k;
  Leaves leaves;
  // Integer weights only. One scale to a row of W (group 0): leaves' sums are multiplied by it. Or
  // one to each group of features: every weight is, before it is used, and rounded to fp32.
  const float* scales;
  int64_t scale_stride, group;
  bool add;  // to what y holds, instead of overwriting it
};

// Where each leaf of a row of int8 activations begins: padded with zeros to whole vectors.
constexpr int64_t kInt8Padding = 64;
struct LeafOffsets {
  int64_t at[kMaxLeaves + 1];
  int64_t operator[](int leaf) const { return at[leaf]; }
};

// Leaves of x [rows, k] → integers times a scale of their own, and the sums of the integers.
struct RowQuantize {
  const float* x;
  int64_t x_stride;
  Leaves leaves;
  LeafOffsets offsets;
  int8_t* to;
  int64_t to_stride;
  float* scales;  // [rows, leaves]
  int32_t* sums;  // [rows, leaves]
};

// y = x Wᵀ · scales (+ bias), x and W of eight bits, products added in int32 leaf by leaf.
struct Int8Linear {
  const int8_t* x;
  int64_t x_stride;
  const float* x_scales;
  const int32_t* x_sums;
  LeafOffsets offsets;
  const int8_t* w;
  int64_t w_stride;
  const float* scales;  // of the rows of W
  int64_t scale_stride;
  const float* bias;  // or null
  float* y;
  int64_t y_stride;
  int64_t m;
  Leaves leaves;
  bool vnni;
};

// y [rows, width] = x / sqrt(mean(x²) + eps) · weight
struct RmsNorm {
  const float* x;
  int64_t x_stride;
  const void* weight;
  DType weight_type;
  float* y;
  int64_t rows, width;
  float eps;
};

// In place on [rows, heads, size]: (a, b) → (a·cos - b·sin, b·cos + a·sin) for halves a, b of a
// head.
struct Rope {
  float* heads;
  int64_t row_stride, head_stride;
  const int64_t* positions;
  const float* cos_sin;  // [max, size]: size/2 cosines, then size/2 sines
  int64_t rows, num_heads, size;
};

// y [rows, width]: row t is the sum of scales[r] · x[r] over r from starts[t] to starts[t+1], in
// order, where r runs through `order`.
struct Combine {
  const float* x;
  int64_t x_stride;
  const float* scales;
  const int64_t* starts;
  const int64_t* order;
  float* y;
  int64_t rows, width;
};

// y [rows, width] = silu(x[:, :width]) · x[:, width:]
struct Swiglu {
  const float* x;
  int64_t x_stride;
  float* y;
  int64_t rows, width;
};

// y [rows, width] = weight[ids - first_id], zeros for ids outside [first_id, first_id + count)
struct Embedding {
  const int64_t* ids;
  const void* weight;
  int64_t weight_stride;
  DType type;
  float* y;
  int64_t rows, width, first_id, count;
};

// cache[slots[t]] = x[t] for x [rows, heads, size], rounded to the cache's type.
struct CacheWrite {
  const float* x;
  int64_t row_stride, head_stride;
  void* cache;  // [slots, heads, size] contiguous
  DType type;
  const int32_t* slots;
  int64_t rows, num_heads, size;
};

// Row t of sequence s stands at position context_lens[s] - (query_starts[s+1] - t) and sees
// positions 0 to its own. heads / kv_heads neighbouring query heads share a KV head.
struct Attention {
  const float* q;
  int64_t q_row_stride, q_head_stride;
  const void* k_cache;  // [blocks, block_size, kv_heads, size] contiguous
  const void* v_cache;
  DType type;
  const int32_t* block_tables;
  int64_t table_stride;
  const int32_t* query_starts;
  const int32_t* context_lens;
  float* out;  // [rows, heads, size] contiguous
  int64_t sequences, heads, kv_heads, size, block_size;
  float scale;
};

// Rows [begin, end) of one sequence, for the query heads of KV heads [kv_begin, kv_end).
struct AttentionBlock {
  int64_t sequence, begin, end, kv_begin, kv_end;
};

// Rows [begin, end) of the output, or the block of rows and columns given.
struct Kernels {
  const char* name;
  void (*linear)(const Linear&, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
  void (*quantize_rows)(const RowQuantize&, int64_t begin, int64_t end);
  void (*int8_linear)(const Int8Linear&, int64_t n0, int64_t n1);
  void (*rms_norm)(const RmsNorm&, int64_t begin, int64_t end);
  void (*rope)(const Rope&, int64_t begin, int64_t end);
  void (*combine)(const Combine&, int64_t begin, int64_t end);
  void (*swiglu)(const Swiglu&, int64_t begin, int64_t end);
  void (*embedding)(const Embedding&, int64_t begin, int64_t end);
  void (*cache_write)(const CacheWrite&, int64_t begin, int64_t end);
  void (*attention)(const Attention&, const AttentionBlock&);
};

// One table for each instruction set that was compiled in. It is read only after a check of the
// CPU.
namespace portable {
const Kernels& table();
}
namespace avx2 {
const Kernels& table();
}
namespace avx512 {
const Kernels& table();
}

// The table in use: the best this CPU runs, unless ATB_DIST_SIMD names a lower one. Throws
// std::invalid_argument when that names one this CPU or build does not have.
const Kernels& active();
// Whether the instructions for int8 beside AVX-512 are there.
bool has_vnni();

// Memory of the calling thread that stays until it asks again for the same use; 64-byte aligned,
// contents undefined. A kernel may run on the thread that holds memory for the call around it.
enum class Use { call, kernel };
float* scratch(Use use, size_t floats);

// Borders of the leaves of k input features, checked; empty means one leaf.
Leaves plan_leaves(const int64_t* borders, size_t count, int64_t k);

}  // namespace kernels
