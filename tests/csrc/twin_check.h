// Checks for the twin's tests: a kernel given as a lambda runs clean, or is refused for a reason.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "check.h"
#include "host.h"
#include "kernel_operator.h"
#include "launch.h"

// Runs body on one block; returns the fault, empty when there was none.
inline std::string fault_of(const twin::KernelType& type, const std::function<void()>& body,
                            int blocks = 1, int ranks = 1) {
  twin::World world(ranks);
  for (int rank = 0; rank < ranks; ++rank) {
    twin::enqueue(world.stream(rank), blocks, [&, type] {
      KERNEL_TASK_TYPE_DEFAULT(type);
      body();
    });
  }
  try {
    world.run();
  } catch (const twin::Fault& fault) {
    CHECK(std::string(fault.what()).find('\n') == std::string::npos);
    return fault.what();
  }
  return {};
}

inline void expect_fault(const std::string& text, const std::function<void()>& body,
                         const twin::KernelType& type = KERNEL_TYPE_AIV_ONLY, int blocks = 1) {
  const std::string found = fault_of(type, body, blocks);
  if (found.find(text) == std::string::npos) {
    std::fprintf(stderr, "wanted \"%s\", found \"%s\"\n", text.c_str(), found.c_str());
    std::exit(1);
  }
}

inline void expect_clean(const std::function<void()>& body,
                         const twin::KernelType& type = KERNEL_TYPE_AIV_ONLY, int blocks = 1) {
  const std::string found = fault_of(type, body, blocks);
  if (!found.empty()) {
    std::fprintf(stderr, "wanted no fault, found \"%s\"\n", found.c_str());
    std::exit(1);
  }
}
