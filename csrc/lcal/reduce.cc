// Chooses the instruction set of the loops over elements, once.
#include "reduce.h"

#include "copy.h"
#include "reduce_isa.h"

namespace lcal {
namespace {

struct Loops {
  decltype(&portable::reduce_ranks) reduce_ranks;
  decltype(&portable::quantize) quantize;
  decltype(&portable::sum_quantized) sum_quantized;
  decltype(&portable::copy_past_cache) copy_past_cache;
};

Loops choose() {
#ifdef LCAL_HAVE_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return {avx512::reduce_ranks, avx512::quantize, avx512::sum_quantized, avx512::copy_past_cache};
  }
  if (__builtin_cpu_supports("avx2")) {
    return {avx2::reduce_ranks, avx2::quantize, avx2::sum_quantized, avx2::copy_past_cache};
  }
#endif
  return {portable::reduce_ranks, portable::quantize, portable::sum_quantized,
          portable::copy_past_cache};
}

const Loops& loops() {
  static const Loops chosen = choose();
  return chosen;
}

}  // namespace

void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op) {
  loops().reduce_ranks(out, sources, ranks, count, dtype, op);
}

void quantize(const void* x, size_t count, DType dtype, int8_t* codes, float* scales) {
  loops().quantize(x, count, dtype, codes, scales);
}

void sum_quantized(void* out, const WirePiece* pieces, int ranks, size_t count, DType dtype) {
  loops().sum_quantized(out, pieces, ranks, count, dtype);
}

void copy_past_cache(void* to, const void* from, size_t bytes) {
  loops().copy_past_cache(to, from, bytes);
}

}  // namespace lcal
