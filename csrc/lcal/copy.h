// Copying: memcpy, but past the caches where the result is too long to be found there.
#pragma once

#include <cstddef>
#include <cstring>

namespace lcal {

// From here on a result leaves the caches before anybody can read it there; not loading its lines
// first saves a third of the time (NOTES.md).
constexpr size_t kPastCacheBytes = 8 << 20;

// For sizes that may be 0, where the pointers may be null.
inline void copy_bytes(void* to, const void* from, size_t bytes) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

void copy_past_cache(void* to, const void* from, size_t bytes);

// A part of a result that is `total` bytes long in all.
inline void copy_part(void* to, const void* from, size_t bytes, size_t total) {
  if (total < kPastCacheBytes) return copy_bytes(to, from, bytes);
  copy_past_cache(to, from, bytes);
}

}  // namespace lcal
