// The one difference between the two builds besides the include path: how a kernel is launched.
#pragma once

#include "world.h"

using AtbStream = twin::Stream*;

// Queues kernel(args...) on `blocks` blocks of a stream; World::run executes it.
#define ATB_LAUNCH(kernel, num_blocks, stream, ...) \
  twin::enqueue(stream, num_blocks, [=] { kernel(__VA_ARGS__); })

namespace twin {

inline void enqueue(AtbStream stream, int blocks, std::function<void()> body) {
  if (blocks < 1 || blocks > 25) throw Fault(concat("a launch of ", blocks, " blocks; 1 to 25"));
  stream->kernels.emplace_back();
  stream->kernels.back().body = std::move(body);
  stream->kernels.back().blocks = blocks;
}

}  // namespace twin
