// The kernels of one instruction set, each defined in a source of its own.
#pragma once

#include "../kernels.h"

namespace kernels::ATB_ISA {

void linear(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1);
void quantize_rows(const RowQuantize& a, int64_t begin, int64_t end);
void int8_linear(const Int8Linear& a, int64_t n0, int64_t n1);
void rms_norm(const RmsNorm& a, int64_t begin, int64_t end);
void rope(const Rope& a, int64_t begin, int64_t end);
void combine(const Combine& a, int64_t begin, int64_t end);
void swiglu(const Swiglu& a, int64_t begin, int64_t end);
void embedding(const Embedding& a, int64_t begin, int64_t end);
void cache_write(const CacheWrite& a, int64_t begin, int64_t end);
void attention(const Attention& a, const AttentionBlock& block);

}  // namespace kernels::ATB_ISA
