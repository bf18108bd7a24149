#include "linear_quant.h"
#include "tables.h"

namespace kernels::ATB_ISA {

void linear(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  if (a.w_type == DType::fp32) return linear_direct<float>(a, m0, m1, n0, n1);
  if (a.w_type == DType::bf16) return linear_direct<bf16>(a, m0, m1, n0, n1);
  if (a.w_type == DType::fp16) return linear_direct<fp16>(a, m0, m1, n0, n1);
  if (a.w_type == DType::int8) return linear_quant<DType::int8>(a, m0, m1, n0, n1);
  return linear_quant<DType::int4>(a, m0, m1, n0, n1);
}

}  // namespace kernels::ATB_ISA
