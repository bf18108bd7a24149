// Compiled once for each instruction set, in a namespace of its name (LCAL_ISA).
#include <cstdint>
#include <cstring>

#include "reduce_isa.h"

#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace lcal {
namespace LCAL_ISA {
namespace {

constexpr size_t kLineBytes = 64;  // one cache line

// Bytes up to the next whole line of `to`.
size_t until_line(const void* to, size_t bytes) {
  const size_t head = -reinterpret_cast<uintptr_t>(to) % kLineBytes;
  return head < bytes ? head : bytes;
}

void stream_line(unsigned char* to, const unsigned char* from) {
#if defined(__AVX512F__)
  _mm512_stream_si512(reinterpret_cast<__m512i*>(to),
                      _mm512_loadu_si512(reinterpret_cast<const void*>(from)));
#elif defined(__AVX2__)
  const __m256i low = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  const __m256i high = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + 32));
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to), low);
  _mm256_stream_si256(reinterpret_cast<__m256i*>(to + 32), high);
#else
  std::memcpy(to, from, kLineBytes);
#endif
}

}  // namespace

void copy_past_cache(void* to, const void* from, size_t bytes) {
  unsigned char* out = static_cast<unsigned char*>(to);
  const unsigned char* in = static_cast<const unsigned char*>(from);
  size_t i = until_line(out, bytes);
  if (i > 0) std::memcpy(out, in, i);
  for (; i + kLineBytes <= bytes; i += kLineBytes) stream_line(out + i, in + i);
  if (i < bytes) std::memcpy(out + i, in + i, bytes - i);
#if defined(__AVX2__)
  _mm_sfence();  // what is published next may be read by others
#endif
}

}  // namespace LCAL_ISA
}  // namespace lcal
