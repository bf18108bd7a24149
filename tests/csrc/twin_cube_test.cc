// The matrix unit against a plain product: layouts, transposed loads, odd sizes, output modes.
#include <random>

#include "twin_check.h"

using namespace AscendC;

namespace {

uint32_t up(uint32_t value, uint32_t unit) { return (value + unit - 1) / unit * unit; }

struct Shape {
  uint32_t m, k, n;
  bool transposed;  // B is stored [n, k]
};

// One tile: C [m, n] = A [m, k] · B.
template <class T, class C, class U>
void multiply(const Shape& s, GM_ADDR a_, GM_ADDR b_, GM_ADDR c_, QuantMode_t mode,
              uint64_t scale) {
  constexpr uint32_t c0 = 32 / sizeof(T);
  const uint32_t m = up(s.m, 16), n = up(s.n, 16), k = up(s.k, c0);
  const uint32_t b_rows = s.transposed ? n : up(s.k, 16),
                 b_columns = s.transposed ? k : up(s.n, c0);
  GlobalTensor<T> a, b;
  GlobalTensor<U> c;
  a.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(a_), s.m * s.k);
  b.SetGlobalBuffer(reinterpret_cast<__gm__ T*>(b_), s.k * s.n);
  c.SetGlobalBuffer(reinterpret_cast<__gm__ U*>(c_), s.m * n);
  LocalTensor<T> a1(TPosition::A1, 0, m * k),
      b1(TPosition::B1, m * k * sizeof(T), b_rows * b_columns);
  LocalTensor<T> a2(TPosition::A2, 0, m * k), b2(TPosition::B2, 0, up(s.k, 16) * up(s.n, 16) * 2);
  LocalTensor<C> c0c(TPosition::CO1, 0, m * n);
  const auto rows = [](uint32_t count, uint32_t columns, uint32_t padded) {
    return Nd2NzParams{1,
                       static_cast<uint16_t>(count),
                       static_cast<uint16_t>(columns),
                       0,
                       static_cast<uint16_t>(columns),
                       static_cast<uint16_t>(padded),
                       1,
                       0};
  };
  DataCopy(a1, a, rows(s.m, s.k, m));
  DataCopy(b1, b, s.transposed ? rows(s.n, s.k, n) : rows(s.k, s.n, up(s.k, 16)));
  SetFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
  WaitFlag<HardEvent::MTE2_MTE1>(EVENT_ID0);
  const auto fractals = [](uint32_t start, uint32_t count, uint32_t stride, bool transpose) {
    LoadData2DParams p;
    p.startIndex = static_cast<uint16_t>(start);
    p.repeatTimes = static_cast<uint8_t>(count);
    p.srcStride = static_cast<uint16_t>(stride);
    p.ifTranspose = transpose;
    return p;
  };
  for (uint32_t i = 0; i < m / 16; ++i) {
    LoadData(a2[i * 16 * k], a1, fractals(i, k / c0, m / 16, false));
  }
  if (s.transposed) {
    LoadData(b2, b1, fractals(0, k / c0 * (n / 16), 1, false));
  } else {
    for (uint32_t i = 0; i < up(s.k, 16) / 16; ++i) {
      LoadData(b2[i * 16 * n], b1, fractals(i, n / 16, b_rows / 16, true));
    }
  }
  SetFlag<HardEvent::MTE1_M>(EVENT_ID0);
  WaitFlag<HardEvent::MTE1_M>(EVENT_ID0);
  MmadParams p;
  p.m = static_cast<uint16_t>(m);
  p.n = static_cast<uint16_t>(s.n);
  p.k = static_cast<uint16_t>(s.k);
  Mmad(c0c, a2, b2, p);
  SetFlag<HardEvent::M_FIX>(EVENT_ID0);
  WaitFlag<HardEvent::M_FIX>(EVENT_ID0);
  FixpipeParamsV220 out;
  out.nSize = static_cast<uint16_t>(n);
  out.mSize = static_cast<uint16_t>(s.m);
  out.srcStride = static_cast<uint16_t>(m);
  out.dstStride = n;
  out.quantPre = mode;
  out.deqScalar = scale;
  Fixpipe<U, C, CFG_ROW_MAJOR>(c, c0c, out);
}

template <class T, class C, class U>
void check(const Shape& s, QuantMode_t mode, float scale = 1.0f) {
  std::mt19937 random(s.m * 31 + s.k * 7 + s.n);
  std::vector<T> a(s.m * s.k), b(s.k * s.n);
  for (auto* each : {&a, &b}) {
    for (T& value : *each) value = static_cast<T>(static_cast<float>(random() % 17) - 8.0f);
  }
  twin::World world(1);
  twin::Buffer<T> A(world, 0, "a", a), B(world, 0, "b", b);
  const uint32_t pitch = up(s.n, 16);
  twin::Buffer<U> out(world, 0, "c", s.m * pitch);
  twin::enqueue(world.stream(0), 1, [&] {
    KERNEL_TASK_TYPE_DEFAULT(KERNEL_TYPE_AIC_ONLY);
    multiply<T, C, U>(s, A.address(), B.address(), out.address(), mode, twin::bits_of(scale));
  });
  world.run();
  for (uint32_t i = 0; i < s.m; ++i) {
    for (uint32_t j = 0; j < s.n; ++j) {
      double sum = 0;
      for (uint32_t k = 0; k < s.k; ++k) {
        sum += double(a[i * s.k + k]) * double(b[s.transposed ? j * s.k + k : k * s.n + j]);
      }
      const U* row = reinterpret_cast<const U*>(out.address()) + i * pitch;
      CHECK(float(row[j]) == float(U(float(sum) * scale)));
    }
  }
  if (s.n % 16) {  // columns that pad n are nobody's
    bool refused = false;
    try {
      out.read();
    } catch (const twin::Fault&) {
      refused = true;
    }
    CHECK(refused);
  }
}

void limits() {
  expect_fault(
      "m = 1 reads A as a plain row",
      [] {
        MmadParams p;
        p.m = 1;
        p.n = p.k = 16;
        Mmad(LocalTensor<float>(TPosition::CO1, 0, 256), LocalTensor<half>(TPosition::A2, 0, 256),
             LocalTensor<half>(TPosition::B2, 0, 256), p);
      },
      KERNEL_TYPE_AIC_ONLY);
  expect_fault(
      "no multiple of 512",
      [] {
        LoadData2DParams p;
        p.repeatTimes = 1;
        LoadData(LocalTensor<half>(TPosition::A2, 256, 256),
                 LocalTensor<half>(TPosition::A1, 0, 256), p);
      },
      KERNEL_TYPE_AIC_ONLY);
  expect_fault(
      "16-bit types",
      [] {
        LoadData2DParams p;
        p.repeatTimes = 1;
        p.ifTranspose = true;
        LoadData(LocalTensor<int8_t>(TPosition::B2, 0, 512),
                 LocalTensor<int8_t>(TPosition::B1, 0, 512), p);
      },
      KERNEL_TYPE_AIC_ONLY);
  expect_fault(
      "nSize 17",
      [] {
        GlobalTensor<float> out;
        FixpipeParamsV220 p;
        p.nSize = 17;
        p.mSize = p.srcStride = 16;
        Fixpipe<float, float>(out, LocalTensor<float>(TPosition::CO1, 0, 512), p);
      },
      KERNEL_TYPE_AIC_ONLY);
}

}  // namespace

int main() {
  for (const bool transposed : {false, true}) {
    for (const Shape& s : {Shape{16, 16, 16, transposed}, Shape{5, 33, 40, transposed},
                           Shape{48, 64, 17, transposed}, Shape{2, 1, 1, transposed}}) {
      check<half, float, float>(s, NoQuant);
      check<half, float, half>(s, F322F16);
      check<bfloat16_t, float, bfloat16_t>(s, F322BF16);
      if (!transposed) continue;
      check<int8_t, int32_t, int32_t>(s, NoQuant);
      check<int8_t, int32_t, half>(s, DEQF16, 0.25f);
    }
  }
  limits();
}
