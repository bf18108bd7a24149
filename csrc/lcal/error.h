// What this library throws. The binding turns each into the Python error of the same meaning.
#pragma once

#include <stdexcept>
#include <string>

namespace lcal {

// A peer died, aborted, stayed away, or issued another collective.
struct PeerFailure : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The environment can't hold the communicator: shared memory, session names, duplicate ranks.
struct SetupError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// The caller passed what cannot work.
struct UsageError : std::invalid_argument {
  using std::invalid_argument::invalid_argument;
};

}  // namespace lcal
