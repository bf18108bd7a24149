// What the collectives share: entry and exit (no second thread, the number of the call), copying.
#pragma once

#include <cstring>

#include "comm.h"

namespace lcal {

// memcpy for sizes that may be 0, where the pointers may be null.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

class Comm::Running {
 public:
  Running(Comm& comm, Call call);  // throws when the communicator is closed, busy or broken
  ~Running();
  Running(const Running&) = delete;
  Running& operator=(const Running&) = delete;
  const Call& call() const { return call_; }

 private:
  Comm& comm_;
  Call call_;
};

}  // namespace lcal
