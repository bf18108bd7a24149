// all_reduce_int8: one shot for each piece, whatever the size: a quarter of the bytes of fp32.
#include <algorithm>

#include "comm.h"
#include "error.h"
#include "running.h"
#include "wire.h"

namespace lcal {
namespace {

// Codes and scales of a piece stay in the second-level caches.
constexpr size_t kPieceElements = 128 << 10;

// The most elements, whole blocks, whose codes and scales fit into that many bytes.
size_t fitting(size_t bytes) {
  return std::min(kPieceElements, bytes / (kWireBlock + sizeof(float)) * kWireBlock);
}

}  // namespace

void Comm::all_reduce_int8(void* x, size_t count, DType dtype) {
  if (dtype != DType::f32 && dtype != DType::f16 && dtype != DType::bf16) {
    throw UsageError(std::string("elements of type ") + name(dtype) +
                     " can't travel as int8; use float32, float16 or bfloat16");
  }
  const size_t item = item_bytes(dtype);
  Running running(*this, Call{Kind::all_reduce_int8, Op::sum, dtype, 0, count * item});
  const size_t step = fitting(half_bytes());
  const auto piece = [&](int rank) {
    const float* scales = reinterpret_cast<const float*>(half(rank));
    return WirePiece{reinterpret_cast<const int8_t*>(scales + wire_blocks(step)), scales};
  };
  size_t first = 0;
  do {
    const size_t part = std::min(step, count - first);
    unsigned char* at = static_cast<unsigned char*>(x) + first * item;
    begin_round();
    float* scales = reinterpret_cast<float*>(half(rank_));
    quantize(at, part, dtype, reinterpret_cast<int8_t*>(scales + wire_blocks(step)), scales);
    phase(running.call());
    WirePiece pieces[kMaxRanks];
    for (int r = 0; r < size_; ++r) pieces[r] = piece(r);
    sum_quantized(at, pieces, size_, part, dtype);
    first += part;
  } while (first < count);
}

}  // namespace lcal
