// Chooses the reduction's instruction set, once.
#include "reduce.h"

#include "reduce_isa.h"

namespace lcal {
namespace {

ReduceFunction choose() {
#ifdef LCAL_HAVE_X86
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
    return avx512::reduce_ranks;
  }
  if (__builtin_cpu_supports("avx2")) return avx2::reduce_ranks;
#endif
  return portable::reduce_ranks;
}

}  // namespace

void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op) {
  static const ReduceFunction chosen = choose();
  chosen(out, sources, ranks, count, dtype, op);
}

}  // namespace lcal
