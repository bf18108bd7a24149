// Element types, operations and collective kinds: their numbers are part of the Python interface.
#pragma once

#include <cstddef>
#include <cstdint>

namespace lcal {

constexpr int kMaxRanks = 64;

enum class DType : uint8_t { f64, f32, f16, bf16, i64, i32, i8, u8, boolean, object };
enum class Op : uint8_t { sum, max, min, prod, none };
enum class Kind : uint8_t {
  none,
  all_reduce,
  all_gather,
  reduce_scatter,
  all_to_all,
  broadcast,
  broadcast_object,
  all_gather_object,
  reduce,
  gather,
  scatter,
  barrier,
  send,
  recv,
  connect,
  empty,
  all_reduce_int8,
};

inline bool is_message(Kind kind) { return kind == Kind::send || kind == Kind::recv; }

inline size_t item_bytes(DType type) {
  switch (type) {
    case DType::f64:
    case DType::i64:
      return 8;
    case DType::f32:
    case DType::i32:
      return 4;
    case DType::f16:
    case DType::bf16:
      return 2;
    default:
      return 1;
  }
}

inline const char* name(DType type) {
  static const char* const names[] = {"float64", "float32", "float16", "bfloat16", "int64",
                                      "int32",   "int8",    "uint8",   "bool",     "object"};
  return names[static_cast<int>(type)];
}

inline const char* name(Op op) {
  static const char* const names[] = {"sum", "max", "min", "prod", "-"};
  return names[static_cast<int>(op)];
}

inline const char* name(Kind kind) {
  static const char* const names[] = {
      "no collective",  "all_reduce", "all_gather",       "reduce_scatter",
      "all_to_all",     "broadcast",  "broadcast_object", "all_gather_object",
      "reduce",         "gather",     "scatter",          "barrier",
      "send",           "recv",       "connect",          "empty",
      "all_reduce_int8"};
  return names[static_cast<int>(kind)];
}

}  // namespace lcal
