#include "linear.h"

#include "tables.h"

namespace kernels::ATB_ISA {

void linear(const Linear& a, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  switch (a.w_type) {
    case DType::fp32:
      return linear_block<float>(a, m0, m1, n0, n1);
    case DType::bf16:
      return linear_block<bf16>(a, m0, m1, n0, n1);
    case DType::fp16:
      return linear_block<fp16>(a, m0, m1, n0, n1);
  }
}

}  // namespace kernels::ATB_ISA
