// The Python module atb_dist._kernels. Arrays come as addresses, with sizes and strides in
// elements; atb_dist/ops/cpu.py is the only caller and has checked shapes and types.
#include <pybind11/pybind11.h>

#include "all_reduce_rms_norm.h"
#include "api.h"
#include "thread_pool.h"

namespace py = pybind11;
namespace k = kernels;

namespace {

using Address = uintptr_t;

template <class T>
T* at(Address address) {
  return reinterpret_cast<T*>(address);
}

// leaves: address of the borders, or 0 for one leaf.
k::Linear linear_call(Address x, int64_t x_stride, Address w, int64_t w_stride, int w_type,
                      Address bias, int bias_type, Address y, int64_t m, int64_t n,
                      int64_t features, Address leaves, size_t borders) {
  k::Linear call = {};
  call.x = at<float>(x);
  call.x_stride = x_stride;
  call.w = at<void>(w);
  call.w_stride = w_stride;
  call.w_type = k::DType{w_type};
  call.bias = at<void>(bias);
  call.bias_type = k::DType{bias_type};
  call.y = at<float>(y);
  call.y_stride = n;
  call.m = m;
  call.n = n;
  call.k = features;
  call.leaves = k::plan_leaves(at<int64_t>(leaves), borders, features);
  return call;
}

void linear(Address x, int64_t x_stride, Address w, int64_t w_stride, int w_type, Address bias,
            int bias_type, Address y, int64_t m, int64_t n, int64_t features, Address leaves,
            size_t borders) {
  const k::Linear call = linear_call(x, x_stride, w, w_stride, w_type, bias, bias_type, y, m, n,
                                     features, leaves, borders);
  const py::gil_scoped_release release;
  k::linear(call);
}

void linear_quant(Address x, int64_t x_stride, Address w, int64_t w_stride, int w_type,
                  Address bias, int bias_type, Address y, int64_t m, int64_t n, int64_t features,
                  Address leaves, size_t borders, Address scales, int64_t scale_stride,
                  int64_t group) {
  k::Linear call = linear_call(x, x_stride, w, w_stride, w_type, bias, bias_type, y, m, n, features,
                               leaves, borders);
  call.scales = at<float>(scales);
  call.scale_stride = scale_stride;
  call.group = group;
  const py::gil_scoped_release release;
  k::linear(call);
}

void linear_w8a8(Address x, int64_t x_stride, Address w, int64_t w_stride, Address bias, Address y,
                 int64_t m, int64_t n, int64_t features, Address leaves, size_t borders,
                 Address scales, int64_t scale_stride) {
  k::Linear call =
      linear_call(x, x_stride, w, w_stride, 3, bias, 0, y, m, n, features, leaves, borders);
  call.scales = at<float>(scales);
  call.scale_stride = scale_stride;
  const py::gil_scoped_release release;
  k::linear_w8a8(call);
}

void grouped_matmul(Address x, int64_t x_stride, int64_t x_rows, Address weights, int64_t w_stride,
                    int w_type, Address scales, int64_t scale_stride, int64_t group, Address starts,
                    int64_t count, Address gather, Address y, int64_t n, int64_t features, bool add,
                    Address leaves, size_t borders) {
  k::Linear call =
      linear_call(x, x_stride, 0, w_stride, w_type, 0, 0, y, x_rows, n, features, leaves, borders);
  call.scale_stride = scale_stride;
  call.group = group;
  call.add = add;
  const k::Groups groups = {at<int64_t>(starts), at<int64_t>(weights), at<int64_t>(scales), count,
                            at<int64_t>(gather)};
  const py::gil_scoped_release release;
  k::grouped_linear(call, groups);
}

void combine(Address x, int64_t x_stride, Address scales, Address starts, Address order, Address y,
             int64_t rows, int64_t width) {
  const k::Combine call = {at<float>(x),
                           x_stride,
                           at<float>(scales),
                           at<int64_t>(starts),
                           at<int64_t>(order),
                           at<float>(y),
                           rows,
                           width};
  const py::gil_scoped_release release;
  k::combine(call);
}

void rms_norm(Address x, int64_t x_stride, Address weight, int weight_type, Address y, int64_t rows,
              int64_t width, float eps) {
  const k::RmsNorm call = {
      at<float>(x), x_stride, at<void>(weight), k::DType{weight_type}, at<float>(y), rows,
      width,        eps};
  const py::gil_scoped_release release;
  k::rms_norm(call);
}

void all_reduce_rms_norm(lcal::Comm& comm, Address x, Address residual, Address weight,
                         int weight_type, Address normed, int64_t rows, int64_t width, float eps) {
  const k::AllReduceRmsNorm call = {at<float>(x),
                                    at<float>(residual),
                                    at<void>(weight),
                                    k::DType{weight_type},
                                    at<float>(normed),
                                    rows,
                                    width,
                                    eps};
  const py::gil_scoped_release release;
  k::all_reduce_rms_norm(comm, call);
}

void rope(Address heads, int64_t row_stride, int64_t head_stride, Address positions,
          Address cos_sin, int64_t max_position, int64_t rows, int64_t num_heads, int64_t size) {
  const k::Rope call = {at<float>(heads),   row_stride, head_stride, at<int64_t>(positions),
                        at<float>(cos_sin), rows,       num_heads,   size};
  const py::gil_scoped_release release;
  k::rope(call, max_position);
}

void swiglu(Address x, int64_t x_stride, Address y, int64_t rows, int64_t width) {
  const k::Swiglu call = {at<float>(x), x_stride, at<float>(y), rows, width};
  const py::gil_scoped_release release;
  k::swiglu(call);
}

void embedding(Address ids, Address weight, int64_t weight_stride, int type, Address y,
               int64_t rows, int64_t width, int64_t first_id, int64_t count) {
  const k::Embedding call = {at<int64_t>(ids),
                             at<void>(weight),
                             weight_stride,
                             k::DType{type},
                             at<float>(y),
                             rows,
                             width,
                             first_id,
                             count};
  const py::gil_scoped_release release;
  k::embedding(call);
}

void cache_write(Address x, int64_t row_stride, int64_t head_stride, Address cache, int type,
                 int64_t num_slots, Address slots, int64_t rows, int64_t num_heads, int64_t size) {
  const k::CacheWrite call = {
      at<float>(x), row_stride, head_stride, at<void>(cache), k::DType{type}, at<int32_t>(slots),
      rows,         num_heads,  size};
  const py::gil_scoped_release release;
  k::cache_write(call, num_slots);
}

void paged_attention(Address q, int64_t q_row_stride, int64_t q_head_stride, Address k_cache,
                     Address v_cache, int type, int64_t num_blocks, int64_t block_size,
                     int64_t kv_heads, Address block_tables, int64_t table_stride,
                     int64_t table_width, Address query_starts, Address context_lens, Address out,
                     int64_t rows, int64_t sequences, int64_t heads, int64_t size, float scale) {
  const k::Attention call = {at<float>(q),
                             q_row_stride,
                             q_head_stride,
                             at<void>(k_cache),
                             at<void>(v_cache),
                             k::DType{type},
                             at<int32_t>(block_tables),
                             table_stride,
                             at<int32_t>(query_starts),
                             at<int32_t>(context_lens),
                             at<float>(out),
                             sequences,
                             heads,
                             kv_heads,
                             size,
                             block_size,
                             scale};
  const py::gil_scoped_release release;
  k::paged_attention(call, rows, table_width, num_blocks);
}

}  // namespace

PYBIND11_MODULE(_kernels, m) {
  m.doc() = "Kernels for CPU hosts";
  py::module_::import("atb_dist._lcal");  // brings the type Comm and its errors
  m.def("simd_level", [] { return k::active().name; });
  m.def("num_threads", [] { return k::ThreadPool::instance().num_threads(); });
  m.def(
      "set_num_threads", [](int count) { k::ThreadPool::instance().set_num_threads(count); },
      py::arg("count"), py::call_guard<py::gil_scoped_release>());
  m.def("linear", linear);
  m.def("linear_quant", linear_quant);
  m.def("linear_w8a8", linear_w8a8);
  m.def("grouped_matmul", grouped_matmul);
  m.def("combine", combine);
  m.def("rms_norm", rms_norm);
  m.def("all_reduce_rms_norm", all_reduce_rms_norm);
  m.def("rope", rope);
  m.def("swiglu", swiglu);
  m.def("embedding", embedding);
  m.def("cache_write", cache_write);
  m.def("paged_attention", paged_attention);
}
