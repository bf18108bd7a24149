// Compiled once for each instruction set, in a namespace of its name (LCAL_ISA).
#include "reduce_isa.h"

#include <algorithm>
#include <string>

#include "error.h"
#include "isa_halves.h"

namespace lcal {
namespace LCAL_ISA {
namespace {

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

// How elements are read. Numbers of 16 bits come two to a word of 32, the even ones and the odd
// ones apart: all vectors then have one width, and nothing has to be moved between their lanes.
struct Each {
  template <class T>
  static Wide<T> read(const T* source, size_t i) {
    return widen(source[i]);
  }
};
template <int kShift>
struct OfWord {
  template <class T>
  static float read(const T* source, size_t i) {
    uint32_t word;
    std::memcpy(&word, source + 2 * i, sizeof(word));
    return widen(T{static_cast<uint16_t>(word >> kShift)});
  }
};
using Even = OfWord<0>;
using Odd = OfWord<16>;

template <class Read, class F, class T>
void tree(Wide<T>* result, const T* const* sources, int low, int high, size_t count) {
  if (high - low == 1) {
    for (size_t i = 0; i < count; ++i) result[i] = Read::read(sources[low], i);
    return;
  }
  if (high - low == 2) {
    const T* a = sources[low];
    const T* b = sources[low + 1];
    for (size_t i = 0; i < count; ++i) result[i] = F::apply(Read::read(a, i), Read::read(b, i));
    return;
  }
  const int middle = (low + high) / 2;
  Wide<T> right[kBlock];
  tree<Read, F>(result, sources, low, middle, count);
  tree<Read, F>(right, sources, middle, high, count);
  for (size_t i = 0; i < count; ++i) result[i] = F::apply(result[i], right[i]);
}

template <class T>
uint32_t narrow_bits(float value) {
  T half;
  narrow(value, &half);
  return half.bits;
}

template <class F, class T>
void reduce_block(T* out, const T* const* sources, int ranks, size_t count) {
  Wide<T> result[kBlock];
  if constexpr (sizeof(T) == 2) {
    const size_t words = count / 2;
    float odd[kBlock / 2];
    tree<Even, F>(result, sources, 0, ranks, words);
    tree<Odd, F>(odd, sources, 0, ranks, words);
    for (size_t i = 0; i < words; ++i) {
      const uint32_t word = narrow_bits<T>(result[i]) | narrow_bits<T>(odd[i]) << 16;
      std::memcpy(out + 2 * i, &word, sizeof(word));
    }
    if (count % 2 == 0) return;
    const T* last[kMaxRanks];
    for (int r = 0; r < ranks; ++r) last[r] = sources[r] + (count - 1);
    tree<Each, F>(result, last, 0, ranks, 1);
    narrow(result[0], &out[count - 1]);
  } else {
    tree<Each, F>(result, sources, 0, ranks, count);
    for (size_t i = 0; i < count; ++i) narrow(result[i], &out[i]);
  }
}

// Two ranks and no widening: one pass.
template <class F, class T>
void reduce_pair(T* out, const T* a, const T* b, size_t count) {
  for (size_t i = 0; i < count; ++i) out[i] = F::apply(a[i], b[i]);
}

template <class T, class F>
void reduce_blocks(T* out, const void* const* sources, int ranks, size_t count) {
  if constexpr (sizeof(T) != 2) {
    if (ranks == 2) {
      return reduce_pair<F>(out, static_cast<const T*>(sources[0]),
                            static_cast<const T*>(sources[1]), count);
    }
  }
  const T* at[kMaxRanks];
  for (size_t first = 0; first < count; first += kBlock) {
    for (int r = 0; r < ranks; ++r) at[r] = static_cast<const T*>(sources[r]) + first;
    reduce_block<F>(out + first, at, ranks, std::min(kBlock, count - first));
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
