// One collective of a communicator: refuses a second thread, numbers the call, says when it ends.
#pragma once

#include "comm.h"

namespace lcal {

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
