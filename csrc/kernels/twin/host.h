// What the host does with device memory: fill it, read it back.
#pragma once

#include "world.h"

namespace twin {

// An array in the device memory of a rank.
template <class T>
class Buffer {
 public:
  // Poisoned: a kernel has to write it before anyone reads it.
  Buffer(World& world, int rank, const std::string& name, size_t count)
      : count_(count), data_(world.allocate(rank, name, count * sizeof(T))) {
    gm_ = world.memory().find(data_);
  }
  Buffer(World& world, int rank, const std::string& name, const std::vector<T>& values)
      : Buffer(world, rank, name, values.size()) {
    write(values);
  }

  uint8_t* address() const { return data_; }
  size_t count() const { return count_; }

  void write(const std::vector<T>& values) {
    if (values.empty()) return;
    std::memcpy(data_, values.data(), values.size() * sizeof(T));
    gm_->shadow.set_written(0, values.size() * sizeof(T), true);
  }

  // Throws Fault where no kernel has written.
  std::vector<T> read() const {
    const size_t bad = gm_->shadow.first_unwritten(0, count_ * sizeof(T));
    if (bad < count_ * sizeof(T)) {
      throw Fault(concat("element ", bad / sizeof(T), " of GM ", gm_->name, " of rank ", gm_->rank,
                         " was never written"));
    }
    std::vector<T> values(count_);
    if (count_) std::memcpy(values.data(), data_, count_ * sizeof(T));
    return values;
  }

  // Lets other ranks touch it; bytes [begin, end) are flags, which start at zero.
  void share(size_t begin, size_t end) {
    gm_->shared = true;
    gm_->flag_ranges.emplace_back(begin, end);
    std::memset(data_ + begin, 0, end - begin);
    gm_->shadow.set_written(begin, end, true);
  }

 private:
  size_t count_;
  uint8_t* data_;
  Gm* gm_;
};

}  // namespace twin
