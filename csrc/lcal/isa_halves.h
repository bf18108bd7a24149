// fp16 and bf16 to and from fp32, as loops that a compiler makes vectors of. Included by sources
// that are compiled once for each instruction set, each with functions of its own.
#pragma once

#include <cstdint>
#include <cstring>

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

}  // namespace
}  // namespace LCAL_ISA
}  // namespace lcal
