// Compiled once for each instruction set, in a namespace of its name (LCAL_ISA).
#include "reduce_isa.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "error.h"

namespace lcal {
namespace LCAL_ISA {
namespace {

struct Half {
  uint16_t bits;
};
struct BFloat {
  uint16_t bits;
};

float from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
uint32_t to_bits(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

// Branches are written as selects, so that the compiler can make vectors of them.
float widen(Half half) {
  const uint32_t sign = static_cast<uint32_t>(half.bits & 0x8000u) << 16;
  const uint32_t rest = static_cast<uint32_t>(half.bits & 0x7fffu) << 13;
  const float normal = from_bits(rest + (112u << 23));
  const float special = from_bits(rest | 0x7f800000u);  // infinity, NaN
  const float subnormal =
      from_bits(rest + (113u << 23)) - 0x1p-14f;  // 2^-14 is the smallest normal
  const uint32_t exponent = half.bits & 0x7c00u;
  const float value = exponent == 0x7c00u ? special : exponent == 0 ? subnormal : normal;
  return from_bits(to_bits(value) | sign);
}
float widen(BFloat value) { return from_bits(static_cast<uint32_t>(value.bits) << 16); }
template <class T>
T widen(T value) {
  return value;
}

void narrow(float value, BFloat* out) {
  const uint32_t bits = to_bits(value);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const uint32_t quiet = (bits >> 16) | 0x40u;
  out->bits = static_cast<uint16_t>((bits & 0x7fffffffu) > 0x7f800000u ? quiet : rounded);
}
void narrow(float value, Half* out) {
  const uint32_t bits = to_bits(value);
  const uint32_t sign = (bits >> 16) & 0x8000u;
  const uint32_t magnitude = bits & 0x7fffffffu;
  const uint32_t normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Adding 2^-1 leaves the subnormal's ten bits, rounded, at the low end of the mantissa.
  const uint32_t subnormal = to_bits(from_bits(magnitude) + 0.5f) - 0x3f000000u;
  const uint32_t special =
      magnitude > 0x7f800000u ? 0x7e00u | ((magnitude >> 13) & 0x3ffu) : 0x7c00u;
  const uint32_t finite = magnitude < (113u << 23) ? subnormal : normal;
  out->bits = static_cast<uint16_t>(sign | (magnitude >= 0x477ff000u ? special : finite));
}
template <class T>
void narrow(T value, T* out) {
  *out = value;
}

// Integers wrap around, as torch's do.
struct Sum {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
  static int64_t apply(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
  }
  static int32_t apply(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) + static_cast<uint32_t>(b));
  }
};
struct Prod {
  template <class T>
  static T apply(T a, T b) {
    return static_cast<T>(a * b);
  }
  static int64_t apply(int64_t a, int64_t b) {
    return static_cast<int64_t>(static_cast<uint64_t>(a) * static_cast<uint64_t>(b));
  }
  static int32_t apply(int32_t a, int32_t b) {
    return static_cast<int32_t>(static_cast<uint32_t>(a) * static_cast<uint32_t>(b));
  }
};
// A NaN on either side gives NaN, so that the order of ranks does not decide what is seen.
struct Max {
  template <class T>
  static T apply(T a, T b) {
    return a > b || a != a ? a : b;
  }
};
struct Min {
  template <class T>
  static T apply(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

constexpr size_t kBlock = 512;  // elements: a tree of 64 ranks stays in the first-level cache

template <class T>
using Wide = decltype(widen(T()));

template <class T, class F>
void tree(Wide<T>* result, const T* const* sources, int low, int high, size_t count) {
  if (high - low == 1) {
    for (size_t i = 0; i < count; ++i) result[i] = widen(sources[low][i]);
    return;
  }
  if (high - low == 2) {
    const T* a = sources[low];
    const T* b = sources[low + 1];
    for (size_t i = 0; i < count; ++i) result[i] = F::apply(widen(a[i]), widen(b[i]));
    return;
  }
  const int middle = (low + high) / 2;
  Wide<T> right[kBlock];
  tree<T, F>(result, sources, low, middle, count);
  tree<T, F>(right, sources, middle, high, count);
  for (size_t i = 0; i < count; ++i) result[i] = F::apply(result[i], right[i]);
}

// Two ranks and no widening: one pass.
template <class T, class F>
void reduce_pair(T* out, const T* a, const T* b, size_t count) {
  for (size_t i = 0; i < count; ++i) narrow(F::apply(widen(a[i]), widen(b[i])), &out[i]);
}

template <class T, class F>
void reduce_blocks(T* out, const void* const* sources, int ranks, size_t count) {
  if (ranks == 2) {
    return reduce_pair<T, F>(out, static_cast<const T*>(sources[0]),
                             static_cast<const T*>(sources[1]), count);
  }
  const T* at[64];
  Wide<T> result[kBlock];
  for (size_t first = 0; first < count; first += kBlock) {
    const size_t block = std::min(kBlock, count - first);
    for (int r = 0; r < ranks; ++r) at[r] = static_cast<const T*>(sources[r]) + first;
    tree<T, F>(result, at, 0, ranks, block);
    for (size_t i = 0; i < block; ++i) narrow(result[i], &out[first + i]);
  }
}

template <class T>
void reduce_typed(void* out, const void* const* sources, int ranks, size_t count, Op op) {
  T* result = static_cast<T*>(out);
  switch (op) {
    case Op::sum:
      return reduce_blocks<T, Sum>(result, sources, ranks, count);
    case Op::max:
      return reduce_blocks<T, Max>(result, sources, ranks, count);
    case Op::min:
      return reduce_blocks<T, Min>(result, sources, ranks, count);
    case Op::prod:
      return reduce_blocks<T, Prod>(result, sources, ranks, count);
    case Op::none:
      break;
  }
  throw UsageError("a reduction needs an operation");
}

}  // namespace

void reduce_ranks(void* out, const void* const* sources, int ranks, size_t count, DType dtype,
                  Op op) {
  switch (dtype) {
    case DType::f64:
      return reduce_typed<double>(out, sources, ranks, count, op);
    case DType::f32:
      return reduce_typed<float>(out, sources, ranks, count, op);
    case DType::f16:
      return reduce_typed<Half>(out, sources, ranks, count, op);
    case DType::bf16:
      return reduce_typed<BFloat>(out, sources, ranks, count, op);
    case DType::i64:
      return reduce_typed<int64_t>(out, sources, ranks, count, op);
    case DType::i32:
      return reduce_typed<int32_t>(out, sources, ranks, count, op);
    case DType::i8:
      return reduce_typed<int8_t>(out, sources, ranks, count, op);
    case DType::u8:
      return reduce_typed<uint8_t>(out, sources, ranks, count, op);
    default:
      throw UsageError(std::string("elements of type ") + name(dtype) + " can't be combined");
  }
}

}  // namespace LCAL_ISA
}  // namespace lcal
