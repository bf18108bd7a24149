// Checks for the kernels' tests, and buffers whose ends the sanitizer watches.
#pragma once

#include <cmath>
#include <memory>
#include <stdexcept>
#include <string>

#include "check.h"

// A heap block of exactly count elements, so that one read or write too far is an error.
template <class T>
struct Buffer {
  explicit Buffer(size_t count) : data(new T[count]), count(count) {}
  T& operator[](size_t i) { return data[i]; }
  T* get() { return data.get(); }
  std::unique_ptr<T[]> data;
  size_t count;
};

// Reproducible values in [-1, 1).
struct Noise {
  uint32_t state;
  float next() {
    state = state * 1664525u + 1013904223u;
    return static_cast<float>(static_cast<int32_t>(state)) * 0x1p-31f;
  }
  Buffer<float> floats(size_t count) {
    Buffer<float> values(count);
    for (size_t i = 0; i < count; ++i) values[i] = next();
    return values;
  }
};

template <class F>
std::string refusal_of(const F& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "";
}
