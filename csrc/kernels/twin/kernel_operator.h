// The host twin of the AscendC header of this name: kernels include it, the include path decides.
#pragma once

#include "world.h"

#define __global__
#define __aicore__
#define GM_ADDR uint8_t*

// The first statement of a kernel.
#define KERNEL_TASK_TYPE_DEFAULT(type) twin::say_type(type)

constexpr twin::KernelType KERNEL_TYPE_AIV_ONLY{false, 1, false};
constexpr twin::KernelType KERNEL_TYPE_AIC_ONLY{true, 0, false};
constexpr twin::KernelType KERNEL_TYPE_MIX_AIV_1_0{false, 1, true};
constexpr twin::KernelType KERNEL_TYPE_MIX_AIC_1_0{true, 0, true};
constexpr twin::KernelType KERNEL_TYPE_MIX_AIC_1_1{true, 1, true};
constexpr twin::KernelType KERNEL_TYPE_MIX_AIC_1_2{true, 2, true};
