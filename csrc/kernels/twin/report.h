// What the twin says when a kernel breaks a rule: one line that names core, pipe, buffer and line.
#pragma once

#include <cstring>
#include <sstream>
#include <stdexcept>
#include <string>

namespace twin {

// Where in the kernel's source a call stands; the default argument of every call of the API.
struct Site {
  Site(const char* file = __builtin_FILE(), int line = __builtin_LINE()) : file(file), line(line) {}

  std::string text() const {
    const char* name = std::strrchr(file, '/');
    return std::string(name ? name + 1 : file) + ":" + std::to_string(line);
  }

  const char* file;
  int line;
};

// A broken rule. what() is one line.
struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Thrown into the other cores when one has failed; never leaves the scheduler.
struct Stop {};

template <class... Parts>
std::string concat(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

}  // namespace twin
