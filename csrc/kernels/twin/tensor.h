// LocalTensor and GlobalTensor: views that know what they may touch.
#pragma once

#include "core.h"

#define __gm__
#define __ubuf__

namespace AscendC {

enum class CacheMode { CACHE_MODE_DISABLE, CACHE_MODE_NORMAL };

template <class T>
class LocalTensor {
 public:
  using PrimType = T;
  LocalTensor() = default;
  // Static allocation, without TPipe.
  LocalTensor(TPosition position, uint32_t address, uint32_t elements,
              const twin::Site& site = twin::Site())
      : memory_(&twin::core().local(twin::local_of(position), site)),
        position_(position),
        begin_(address),
        end_(address + elements * sizeof(T)),
        elements_(elements) {
    twin::require(
        end_ <= memory_->bytes.size(), site,
        twin::concat("a tensor of ", elements * sizeof(T), " bytes at ", address,
                     " ends outside of the ", memory_->bytes.size(), " bytes of ", memory_->name));
  }

  LocalTensor operator[](uint32_t offset) const {
    LocalTensor view = *this;
    view.begin_ += offset * sizeof(T);
    view.elements_ = offset < elements_ ? elements_ - offset : 0;
    return view;
  }

  T GetValue(uint32_t index, const twin::Site& site = twin::Site()) const {
    const twin::Op op = twin::core().begin(PIPE_S, site, "GetValue");
    return *access(index, 1, twin::Kind::read, op, 1);
  }
  void SetValue(uint32_t index, T value, const twin::Site& site = twin::Site()) const {
    const twin::Op op = twin::core().begin(PIPE_S, site, "SetValue");
    *access(index, 1, twin::Kind::write, op, 1) = value;
  }

  uint32_t GetSize() const { return elements_; }
  void SetSize(uint32_t elements) { elements_ = elements; }
  uint64_t GetPhyAddr() const { return begin_; }
  TPosition GetPosition() const { return position_; }

  template <class U>
  LocalTensor<U> ReinterpretCast() const {
    LocalTensor<U> view;
    view.adopt(*memory_, position_, begin_, end_, label_);
    return view;
  }

  // The twin's own from here on.
  void adopt(twin::LocalMemory& memory, TPosition position, size_t begin, size_t end,
             std::string label) {
    memory_ = &memory;
    position_ = position;
    begin_ = begin;
    end_ = end;
    elements_ = end > begin ? static_cast<uint32_t>((end - begin) / sizeof(T)) : 0;
    label_ = std::move(label);
  }

  // Checks and stamps [first, first + count); alignment in bytes, 0: the memory's own.
  T* access(size_t first, size_t count, twin::Kind kind, const twin::Op& op, size_t alignment = 0,
            bool must_be_written = true) const {
    require(op);
    const size_t at = begin_ + first * sizeof(T), bytes = count * sizeof(T);
    if (!alignment) alignment = memory_->alignment;
    twin::require(at % alignment == 0, op.site,
                  twin::concat(op.name, ": address ", at, " of ", memory_->name, " ", label_,
                               " is no multiple of ", alignment));
    twin::require(at + bytes <= end_, op.site,
                  twin::concat(op.name, " ", twin::name(kind), " bytes ", at - begin_, " to ",
                               at - begin_ + bytes, " of ", memory_->name, " ", label_,
                               ", which has ", end_ > begin_ ? end_ - begin_ : 0, " from there"));
    twin::core().touch(*memory_, at, bytes, kind, op, label_, must_be_written);
    return reinterpret_cast<T*>(memory_->bytes.data() + at);
  }

  void require(const twin::Op& op) const {
    twin::require(memory_, op.site, twin::concat(op.name, ": a LocalTensor that nobody allocated"));
  }
  bool is_in(twin::Local which) const { return memory_ && twin::local_of(position_) == which; }
  twin::LocalMemory& memory() const { return *memory_; }
  size_t begin() const { return begin_; }
  const std::string& label() const { return label_; }

 private:
  twin::LocalMemory* memory_ = nullptr;
  TPosition position_ = TPosition::VECCALC;
  size_t begin_ = 0, end_ = 0;
  uint32_t elements_ = 0;
  std::string label_ = "tensor";
};

template <class T>
class GlobalTensor {
 public:
  using PrimType = T;
  void SetGlobalBuffer(__gm__ T* buffer, uint64_t elements) {
    data_ = buffer;
    elements_ = elements;
  }
  void SetGlobalBuffer(__gm__ T* buffer) { SetGlobalBuffer(buffer, kUnknown); }

  GlobalTensor operator[](uint64_t offset) const {
    GlobalTensor view;
    view.data_ = data_ + offset;
    view.elements_ = elements_ == kUnknown ? kUnknown : elements_ - std::min(offset, elements_);
    return view;
  }
  __gm__ const T* GetPhyAddr() const { return data_; }
  uint64_t GetSize() const { return elements_; }
  void SetL2CacheHint(CacheMode) {}
  template <class U>
  GlobalTensor<U> ReinterpretCast() const {
    GlobalTensor<U> view;
    view.SetGlobalBuffer(reinterpret_cast<U*>(data_),
                         elements_ == kUnknown ? kUnknown : elements_ * sizeof(T) / sizeof(U));
    return view;
  }

  // Through the core's data cache: stale until DataCacheCleanAndInvalid.
  T GetValue(uint64_t index, const twin::Site& site = twin::Site()) const {
    const twin::Op op = twin::core().begin(PIPE_S, site, "GetValue");
    T value;
    std::memcpy(&value, cached(index, op, true) + line_offset(index), sizeof value);
    return value;
  }
  void SetValue(uint64_t index, T value, const twin::Site& site = twin::Site()) const {
    const twin::Op op = twin::core().begin(PIPE_S, site, "SetValue");
    std::memcpy(cached(index, op, false) + line_offset(index), &value, sizeof value);
    const auto [gm, at] = locate(index, 1, op);
    dirty(*gm, at) = op.time;
  }

  // The twin's own from here on.
  static constexpr uint64_t kUnknown = ~uint64_t{0};

  // The allocation and the byte offset of [first, first + count); checks the bounds.
  std::pair<twin::Gm*, size_t> locate(uint64_t first, size_t count, const twin::Op& op) const {
    T* begin = data_ + first;
    twin::Gm* gm = twin::core().launch.memory->find(begin);
    twin::require(gm, op.site, twin::concat(op.name, ": GM address outside of every allocation"));
    const size_t at = reinterpret_cast<uint8_t*>(begin) - gm->base;
    twin::require(elements_ == kUnknown || first + count <= elements_, op.site,
                  twin::concat(op.name, ": elements ", first, " to ", first + count,
                               " of a GlobalTensor of ", elements_, " in ", gm->name));
    twin::require(at + count * sizeof(T) <= gm->size, op.site,
                  twin::concat(op.name, ": bytes ", at, " to ", at + count * sizeof(T), " of GM ",
                               gm->name, " of rank ", gm->rank, ", which has ", gm->size));
    return {gm, at};
  }

  T* access(uint64_t first, size_t count, twin::Kind kind, const twin::Op& op,
            bool must_be_written = true) const {
    const auto [gm, at] = locate(first, count, op);
    twin::core().touch(*gm, at, count * sizeof(T), kind, op, must_be_written);
    return reinterpret_cast<T*>(gm->base + at);
  }

  // Writes back a dirty line, whole, and forgets it.
  void clean(uint64_t index, const twin::Op& op) const {
    const auto [gm, at] = locate(index, 1, op);
    auto& lines = twin::core().cache;
    auto line = lines.find({gm, at / kLine});
    if (line == lines.end()) return;
    if (line->second.second) {
      const size_t begin = at / kLine * kLine, bytes = std::min(kLine, gm->size - begin);
      twin::core().touch(*gm, begin, bytes, twin::Kind::write, op);
      std::memcpy(gm->base + begin, line->second.first.data(), bytes);
    }
    lines.erase(line);
  }

 private:
  static constexpr size_t kLine = 64;

  size_t line_offset(uint64_t index) const {
    const twin::Gm* gm = twin::core().launch.memory->find(data_ + index);
    return (reinterpret_cast<uint8_t*>(data_ + index) - gm->base) % kLine;
  }
  static uint64_t& dirty(twin::Gm& gm, size_t at) {
    return twin::core().cache[{&gm, at / kLine}].second;
  }
  uint8_t* cached(uint64_t index, const twin::Op& op, bool reads) const {
    const auto [gm, at] = locate(index, 1, op);
    auto& lines = twin::core().cache;
    auto found = lines.find({gm, at / kLine});
    if (found == lines.end()) {
      const size_t begin = at / kLine * kLine, bytes = std::min(kLine, gm->size - begin);
      if (reads) twin::core().touch(*gm, at, sizeof(T), twin::Kind::read, op);
      found = lines.emplace(std::make_pair(gm, at / kLine), std::make_pair(Line{}, 0)).first;
      std::memcpy(found->second.first.data(), gm->base + begin, bytes);
    }
    return found->second.first.data();
  }
  using Line = std::array<uint8_t, 64>;

  T* data_ = nullptr;
  uint64_t elements_ = 0;
};

}  // namespace AscendC
