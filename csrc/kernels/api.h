// The kernels as calls on whole arrays: arguments checked, work cut into blocks for the pool.
// Every function throws std::invalid_argument, in one line, before it writes anything.
#pragma once

#include "kernels.h"

namespace kernels {

void linear(const Linear& call);
// x is quantized first, leaf by leaf. call.w is int8 with one scale to a row; its bias is fp32.
void linear_w8a8(const Linear& call);
// One linear to each group of rows: group g multiplies rows starts[g] to starts[g+1] of y by its
// own weights. x row i is row gather[i] of call.x, or row i where gather is null.
struct Groups {
  const int64_t* starts;
  const int64_t* weights;  // addresses
  const int64_t* scales;   // addresses, or null
  int64_t count;
  const int64_t* gather;
};
void grouped_linear(const Linear& call, const Groups& groups);
void combine(const Combine& call);
void rms_norm(const RmsNorm& call);
// max_position: rows of the cosine and sine table.
void rope(const Rope& call, int64_t max_position);
void swiglu(const Swiglu& call);
void embedding(const Embedding& call);
void cache_write(const CacheWrite& call, int64_t num_slots);
// rows: of q. table_width: block ids each sequence may have. num_blocks: of the cache.
void paged_attention(const Attention& call, int64_t rows, int64_t table_width, int64_t num_blocks);

}  // namespace kernels
