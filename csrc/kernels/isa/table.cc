#include "tables.h"

#define ATB_NAME_OF(isa) #isa
#define ATB_NAME(isa) ATB_NAME_OF(isa)

namespace kernels::ATB_ISA {

const Kernels& table() {
  static const Kernels kernels = {ATB_NAME(ATB_ISA), linear,      quantize_rows, int8_linear,
                                  rms_norm,          rope,        combine,       swiglu,
                                  embedding,         cache_write, attention};
  return kernels;
}

}  // namespace kernels::ATB_ISA
