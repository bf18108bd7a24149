// The kernels as calls on whole arrays: arguments checked, work cut into blocks for the pool.
// Every function throws std::invalid_argument, in one line, before it writes anything.
#pragma once

#include "kernels.h"

namespace kernels {

void linear(const Linear& call);
// x is quantized first, leaf by leaf. call.w is int8 with one scale to a row; its bias is fp32.
void linear_w8a8(const Linear& call);
void rms_norm(const RmsNorm& call);
// max_position: rows of the cosine and sine table.
void rope(const Rope& call, int64_t max_position);
void swiglu(const Swiglu& call);
void embedding(const Embedding& call);
void cache_write(const CacheWrite& call, int64_t num_slots);
// rows: of q. table_width: block ids each sequence may have. num_blocks: of the cache.
void paged_attention(const Attention& call, int64_t rows, int64_t table_width, int64_t num_blocks);

}  // namespace kernels
