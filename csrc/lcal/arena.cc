#include "arena.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

namespace lcal {
namespace {

// What the host can still give without swapping. A memory file has no limit of its own: asked for
// more than there is, the kernel would end processes before it refuses.
uint64_t available_bytes() {
  std::ifstream file("/proc/meminfo");
  std::string name;
  for (uint64_t kib; file >> name >> kib; file.ignore(64, '\n')) {
    if (name == "MemAvailable:") return kib << 10;
  }
  return std::numeric_limits<uint64_t>::max();
}

constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
constexpr size_t kHugePage = size_t{2} << 20;

// Give the pages memory now, in huge pages where the host allows them: a fault names no rank.
bool populate(void* begin, size_t bytes, int descriptor, uint64_t offset) {
  if (bytes >= kHugePage) (void)madvise(begin, bytes, MADV_HUGEPAGE);  // advice: may be refused
  if (madvise(begin, bytes, kPopulateWrite) == 0) return true;
  if (errno != EINVAL) return false;  // a kernel before 5.14 does not know it
  return fallocate(descriptor, 0, static_cast<off_t>(offset), static_cast<off_t>(bytes)) == 0;
}

}  // namespace

Arena::Arena(const Segment& segment, int rank, int ranks)
    : segment_(segment), rank_(rank), ranks_(ranks), end_(segment.bytes()) {}

Arena::~Arena() {
  for (const Block& each : blocks_) munmap(each.base, each.stride * ranks_);
}

const Arena::Block& Arena::block(uint64_t place) const {
  return *std::find_if(blocks_.begin(), blocks_.end(), [&](const Block& each) {
    return place - each.offset < each.stride * ranks_;  // wraps when place lies before
  });
}

unsigned char* Arena::at(uint64_t place) const {
  const Block& each = block(place);
  return each.base + (place - each.offset);
}

unsigned char* Arena::own(uint64_t offset) const {
  const Block& each = block(offset);
  return each.base + rank_ * each.stride;
}

uint64_t Arena::find(uintptr_t address, size_t bytes) const {
  for (const Block& each : blocks_) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(each.base) + rank_ * each.stride;
    if (address >= begin && address + bytes <= begin + each.stride) {
      return each.offset + rank_ * each.stride + (address - begin);
    }
  }
  return 0;
}

void Arena::release(uint64_t offset) {
  const std::lock_guard<std::mutex> guard(lock_);
  released_.push_back(offset);
}

std::vector<uint64_t> Arena::take_released(size_t limit) {
  const std::lock_guard<std::mutex> guard(lock_);
  const auto end = released_.begin() + static_cast<ptrdiff_t>(std::min(limit, released_.size()));
  std::vector<uint64_t> taken(released_.begin(), end);
  released_.erase(released_.begin(), end);
  return taken;
}

void Arena::note_released(uint64_t offset) {
  for (Block& each : blocks_) each.released_by += each.offset == offset;
}

bool Arena::choose(size_t stride, uint64_t* offset) {
  for (Block& each : blocks_) {
    if (each.released_by < ranks_ || each.stride != stride) continue;
    each.released_by = 0;
    *offset = each.offset;
    return false;
  }
  if (stride >= kHugePage) end_ = (end_ + kHugePage - 1) / kHugePage * kHugePage;
  *offset = end_;
  end_ += stride * ranks_;  // whatever comes of it: ranks must agree
  return true;
}

bool Arena::back(size_t stride, uint64_t offset) {
  const size_t bytes = stride * ranks_;
  const uint64_t mine = offset + rank_ * stride;
  if (available_bytes() / ranks_ < stride) {
    errno = ENOMEM;
    return false;
  }
  // Lengthens the file by its last byte; beyond the end this makes it longer, never shorter.
  const int file = segment_.descriptor();
  if (fallocate(file, 0, static_cast<off_t>(offset + bytes - 1), 1) != 0) return false;
  void* base = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file,
                    static_cast<off_t>(offset));
  if (base == MAP_FAILED) return false;
  if (!populate(static_cast<unsigned char*>(base) + rank_ * stride, stride, file, mine)) {
    const int why = errno;
    munmap(base, bytes);
    punch(mine, stride);
    errno = why;
    return false;
  }
  blocks_.push_back({offset, stride, static_cast<unsigned char*>(base)});
  update_bounds();
  return true;
}

void Arena::punch(uint64_t begin, size_t bytes) {
  // Refused, the memory stays until the communicator ends.
  (void)fallocate(segment_.descriptor(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                  static_cast<off_t>(begin), static_cast<off_t>(bytes));
}

void Arena::remove(size_t index) {
  const Block each = blocks_[index];
  munmap(each.base, each.stride * ranks_);
  punch(each.offset + rank_ * each.stride, each.stride);
  blocks_.erase(blocks_.begin() + static_cast<ptrdiff_t>(index));
  update_bounds();
}

void Arena::unback(uint64_t offset) {
  for (size_t i = 0; i < blocks_.size(); ++i) {
    if (blocks_[i].offset == offset) return remove(i);
  }
}

void Arena::trim() {
  for (size_t i = blocks_.size(); i-- > 0;) {
    if (blocks_[i].released_by == ranks_) remove(i);
  }
}

void Arena::update_bounds() {
  low_ = ~uintptr_t{0};
  high_ = 0;
  for (const Block& each : blocks_) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(each.base) + rank_ * each.stride;
    low_ = std::min(low_, begin);
    high_ = std::max(high_, begin + each.stride);
  }
}

}  // namespace lcal
