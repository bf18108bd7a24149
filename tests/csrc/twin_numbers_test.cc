// The twin computes as the device does: roundings, casts, reductions, products, output scales.
#include <cmath>

#include "twin_check.h"

using namespace AscendC;

namespace {

void half_and_bfloat16() {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    half h;
    h.bits = static_cast<uint16_t>(bits);
    const float wide = h;
    if (std::isnan(wide)) continue;
    CHECK(half(wide).bits == bits);
    bfloat16_t b;
    b.bits = static_cast<uint16_t>(bits);
    if (!std::isnan(float(b))) CHECK(bfloat16_t(float(b)).bits == bits);
    // Halfway to the next number: to the even one.
    half next = h;
    ++next.bits;
    if (!std::isinf(float(next)) && !std::isnan(float(next)) && bits != 0x7fff) {
      const float middle = (wide + float(next)) / 2;
      CHECK(half(middle).bits == (bits & 1 ? bits + 1 : bits));
    }
  }
  CHECK(std::isinf(float(half(65520.0f))) && float(half(65519.0f)) == 65504.0f);
  CHECK(float(half(0x1p-25f)) == 0.0f && float(half(0x1.8p-25f)) == 0x1p-24f);
}

void rounding_modes() {
  const double values[] = {2.5, -2.5, 3.5, 2.25, -2.75};
  const struct {
    RoundMode mode;
    int wanted[5];
  } cases[] = {
      {RoundMode::CAST_RINT, {2, -2, 4, 2, -3}},  {RoundMode::CAST_FLOOR, {2, -3, 3, 2, -3}},
      {RoundMode::CAST_CEIL, {3, -2, 4, 3, -2}},  {RoundMode::CAST_ROUND, {3, -3, 4, 2, -3}},
      {RoundMode::CAST_TRUNC, {2, -2, 3, 2, -2}}, {RoundMode::CAST_ODD, {3, -3, 3, 3, -3}}};
  for (const auto& each : cases) {
    for (int i = 0; i < 5; ++i) {
      CHECK(twin::convert<int32_t>(values[i], each.mode) == each.wanted[i]);
    }
  }
  CHECK(twin::convert<int8_t>(300.0f, RoundMode::CAST_RINT) == 127);
  CHECK(float(twin::convert<half>(1.0f + 0x1p-12f, RoundMode::CAST_CEIL)) == 1.0f + 0x1p-10f);
  CHECK(float(twin::convert<half>(1.0f + 0x1.8p-10f, RoundMode::CAST_TRUNC)) == 1.0f + 0x1p-10f);
}

// Arithmetic and a reduction, from device memory and back, with count not a whole block.
void vectors() {
  twin::World world(1);
  std::vector<half> values;
  for (int i = 0; i < 77; ++i) values.push_back(half(0.1f * i));
  twin::Buffer<half> x(world, 0, "x", values);
  twin::Buffer<float> y(world, 0, "y", 2);
  twin::enqueue(world.stream(0), 1, [&] {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIV_ONLY);
    GlobalTensor<half> from;
    GlobalTensor<float> to;
    from.SetGlobalBuffer(reinterpret_cast<__gm__ half*>(x.address()), 77);
    to.SetGlobalBuffer(reinterpret_cast<__gm__ float*>(y.address()), 2);
    LocalTensor<half> narrow(TPosition::VECIN, 0, 80);
    LocalTensor<float> wide(TPosition::VECCALC, 1024, 80), tmp(TPosition::VECCALC, 2048, 64);
    LocalTensor<float> sum(TPosition::VECOUT, 4096, 8);
    DataCopyPad(narrow, from, DataCopyExtParams{1, 154, 0, 0, 0}, DataCopyPadExtParams<half>{});
    PipeBarrier<PIPE_ALL>();
    Cast(wide, narrow, RoundMode::CAST_NONE, 77);
    PipeBarrier<PIPE_V>();
    ReduceSum(sum, wide, tmp, 77);
    PipeBarrier<PIPE_ALL>();
    DataCopyPad(to, sum, DataCopyExtParams{1, 4, 0, 0, 0});
    PipeBarrier<PIPE_ALL>();
    ReduceMax(sum, wide, tmp, 77);
    PipeBarrier<PIPE_ALL>();
    SetAtomicAdd<float>();
    DataCopyPad(to[1], sum, DataCopyExtParams{1, 4, 0, 0, 0});
    SetAtomicNone();
  });
  float sum = 0;
  for (const half& value : values) sum += value;
  y.write({0.0f, 1.0f});
  world.run();
  CHECK(std::fabs(y.read()[0] - sum) < 1e-3f);
  CHECK(y.read()[1] == 1.0f + float(values.back()));
}

// A row added to each row of a matrix by repeats whose second operand stands still.
void repeats() {
  expect_clean([] {
    LocalTensor<float> matrix(TPosition::VECCALC, 0, 128), row(TPosition::VECCALC, 1024, 64);
    Duplicate(matrix, 2.0f, 128);
    Duplicate(row, 3.0f, 64);
    PipeBarrier<PIPE_V>();
    Add(matrix, matrix, row, 64, 2, BinaryRepeatParams{1, 1, 1, 8, 8, 0});
    PipeBarrier<PIPE_ALL>();
    CHECK(matrix.GetValue(0) == 5.0f && matrix.GetValue(127) == 5.0f);
  });
}

void output_scales() {
  // Only 10 mantissa bits of the scale count.
  const uint64_t scale = twin::bits_of(1.0f + 0x1p-11f);
  CHECK(float(twin::quantized<half>(int32_t{3}, DEQF16, scale, false)) == 3.0f);
  const uint64_t exact = twin::bits_of(1.5f);
  CHECK(float(twin::quantized<half>(int32_t{-3}, VDEQF16, exact, false)) == -4.5f);
  CHECK(float(twin::quantized<half>(int32_t{-3}, VDEQF16, exact, true)) == 0.0f);
  const uint64_t offset = exact | uint64_t{511} << 37;                   // -1
  CHECK(twin::quantized<int8_t>(int32_t{3}, REQ8, offset, false) == 3);  // 4.5 to even, less 1
  CHECK(twin::quantized<int8_t>(int32_t{1000}, VREQ8, exact, false) == 127);
  CHECK(float(twin::quantized<bfloat16_t>(1.00390625f, F322BF16, 0, false)) == 1.0f);
}

}  // namespace

int main() {
  half_and_bfloat16();
  rounding_modes();
  vectors();
  repeats();
  output_scales();
}
