// Checks for lcal's tests, and ranks as threads.
#pragma once

#include <unistd.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "check.h"
#include "comm.h"

// A name that no other test process uses.
inline std::string fresh_session() {
  static int count = 0;
  return "ctest-" + std::to_string(getpid()) + "-" + std::to_string(++count);
}

inline lcal::Options options_of(const std::string& session, int rank, int size) {
  lcal::Options options;
  options.session = session;
  options.rank = rank;
  options.size = size;
  options.half_bytes = 1 << 16;  // small: long messages take many rounds
  options.timeout_s = 60;
  return options;
}

// Runs body(comm) on each of `size` threads.
inline void on_ranks(int size, const std::function<void(lcal::Comm&)>& body) {
  const std::string session = fresh_session();
  std::vector<std::thread> ranks;
  for (int r = 0; r < size; ++r) {
    ranks.emplace_back([&, r] {
      lcal::Comm comm(options_of(session, r, size));
      body(comm);
    });
  }
  for (std::thread& rank : ranks) rank.join();
}
