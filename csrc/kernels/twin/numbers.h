// half and bfloat16_t as the device stores them, and its rounding modes.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace twin {

inline uint32_t bits_of(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float float_of(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline float half_to_float(uint16_t h) {
  const uint32_t sign = static_cast<uint32_t>(h & 0x8000) << 16;
  const uint32_t exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
  if (exponent == 31) return float_of(sign | 0x7f800000 | mantissa << 13);
  if (exponent) return float_of(sign | (exponent + 112) << 23 | mantissa << 13);
  const float small = static_cast<float>(mantissa) * 0x1p-24f;
  return sign ? -small : small;
}

// To nearest, ties to even.
inline uint16_t float_to_half(float value) {
  const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffff;
  const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
  if (magnitude > 0x7f800000) return sign | 0x7e00;
  if (magnitude >= 0x477ff000) return sign | 0x7c00;  // 65520 and more: infinity
  if (magnitude < 0x38800000) {                       // subnormal: multiples of 2^-24
    const float scaled = float_of(magnitude) * 0x1p24f;
    return sign | static_cast<uint16_t>(std::nearbyintf(scaled));
  }
  const uint32_t rounded = magnitude + 0xfff + (magnitude >> 13 & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = bits_of(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace twin

struct half {
  half() = default;
  half(float value) : bits(twin::float_to_half(value)) {}
  operator float() const { return twin::half_to_float(bits); }
  uint16_t bits;
};

struct bfloat16_t {
  bfloat16_t() = default;
  bfloat16_t(float value) : bits(twin::float_to_bfloat16(value)) {}
  operator float() const { return twin::float_of(static_cast<uint32_t>(bits) << 16); }
  uint16_t bits;
};

namespace AscendC {

enum class RoundMode {
  CAST_NONE,
  CAST_RINT,
  CAST_FLOOR,
  CAST_CEIL,
  CAST_ROUND,
  CAST_TRUNC,
  CAST_ODD
};

}  // namespace AscendC

namespace twin {

inline double round_whole(double value, AscendC::RoundMode mode) {
  using AscendC::RoundMode;
  switch (mode) {
    case RoundMode::CAST_FLOOR:
      return std::floor(value);
    case RoundMode::CAST_CEIL:
      return std::ceil(value);
    case RoundMode::CAST_ROUND:
      return std::round(value);
    case RoundMode::CAST_TRUNC:
      return std::trunc(value);
    case RoundMode::CAST_ODD: {
      const double down = std::trunc(value);
      const bool odd = std::fmod(down, 2) != 0;
      return down == value || odd ? down : down + std::copysign(1, value);
    }
    default:
      return std::nearbyint(value);
  }
}

// Rounds to a binary format with that many mantissa bits behind the point.
inline float round_to_format(double value, int mantissa, int min_exponent,
                             AscendC::RoundMode mode) {
  if (!std::isfinite(value) || value == 0) return static_cast<float>(value);
  int exponent;
  std::frexp(value, &exponent);
  const int unit = std::max(exponent - 1, min_exponent) - mantissa;
  return static_cast<float>(std::ldexp(round_whole(std::ldexp(value, -unit), mode), unit));
}

template <class To>
To saturate(double whole) {
  if (std::isnan(whole)) return 0;
  const double low = static_cast<double>(std::numeric_limits<To>::min());
  const double high = static_cast<double>(std::numeric_limits<To>::max());
  return static_cast<To>(whole < low ? low : whole > high ? high : whole);
}

// The one conversion of the twin: integers saturate, half and bfloat16 overflow to infinity.
template <class To, class From>
To convert(From from, AscendC::RoundMode mode) {
  using AscendC::RoundMode;
  if constexpr (std::is_integral_v<To>) {
    return saturate<To>(round_whole(static_cast<double>(from), mode));
  } else if constexpr (std::is_same_v<To, float>) {
    return round_to_format(static_cast<double>(from), 23, -126, mode);
  } else {
    const double wide = static_cast<double>(from);
    constexpr bool is_half = std::is_same_v<To, half>;
    if (mode == RoundMode::CAST_NONE || mode == RoundMode::CAST_RINT) {
      return To(static_cast<float>(wide));
    }
    return To(is_half ? round_to_format(wide, 10, -14, mode)
                      : round_to_format(wide, 7, -126, mode));
  }
}

}  // namespace twin
