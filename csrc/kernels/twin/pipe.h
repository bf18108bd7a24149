// TPipe, TQue, TBuf: static memory, buffers handed from pipe to pipe, and their limits.
#pragma once

#include "sync.h"

namespace twin {

inline std::pair<pipe_t, pipe_t> pipes_of(TPosition source, TPosition target) {
  if (source == TPosition::VECIN && target == TPosition::VECOUT) return {PIPE_MTE2, PIPE_MTE3};
  switch (source) {
    case TPosition::VECIN:
      return {PIPE_MTE2, PIPE_V};
    case TPosition::VECOUT:
      return {PIPE_V, PIPE_MTE3};
    case TPosition::A1:
    case TPosition::B1:
    case TPosition::C1:
      return {PIPE_MTE2, PIPE_MTE1};
    case TPosition::A2:
    case TPosition::B2:
      return {PIPE_MTE1, PIPE_M};
    case TPosition::CO1:
      return {PIPE_M, PIPE_FIX};
    default:
      return {PIPE_V, PIPE_V};
  }
}

struct QueueBuffer {
  size_t begin = 0, bytes = 0;
  enum State { vacant, allocated, queued, taken } state = vacant;
  Clock freed;  // of the last user, before it is allocated again
  Clock filled;
  std::string label;
};

// Takes the next bytes of a memory.
inline size_t take(LocalMemory& memory, size_t bytes, const Site& site) {
  const size_t rounded = (bytes + 31) / 32 * 32;
  require(bytes > 0, site, "InitBuffer of 0 bytes");
  require(memory.used + rounded <= memory.bytes.size(), site,
          concat("InitBuffer: ", rounded, " bytes more than the ", memory.used,
                 " in use don't fit ", memory.name, ", which has ", memory.bytes.size()));
  return std::exchange(memory.used, memory.used + rounded);
}

}  // namespace twin

namespace AscendC {

template <TPosition source, TPosition target, int32_t depth, int32_t mask = 0>
class TQueBind {
 public:
  template <class T>
  LocalTensor<T> AllocTensor(const twin::Site& site = twin::Site()) {
    for (twin::QueueBuffer& buffer : buffers_) {
      if (buffer.state != twin::QueueBuffer::vacant) continue;
      twin::Core& me = twin::core();
      buffer.state = twin::QueueBuffer::allocated;
      me.inherit(producer());
      me.learn(producer(), buffer.freed);
      me.open_tensors.push_back(buffer.label);
      return tensor<T>(buffer);
    }
    twin::core().fail(site, twin::concat("AllocTensor: all ", buffers_.size(), " buffers of the ",
                                         "queue are in use"));
  }

  template <class T>
  bool EnQue(const LocalTensor<T>& tensor, const twin::Site& site = twin::Site()) {
    twin::QueueBuffer& buffer = find(tensor, twin::QueueBuffer::allocated, "EnQue", site);
    twin::require(order_.size() < static_cast<size_t>(depth), site,
                  twin::concat("EnQue: the queue holds ", order_.size(), ", its depth is ", depth));
    buffer.state = twin::QueueBuffer::queued;
    buffer.filled = twin::core().finished(producer());
    order_.push_back(&buffer);
    return true;
  }

  template <class T>
  LocalTensor<T> DeQue(const twin::Site& site = twin::Site()) {
    twin::require(!order_.empty(), site, "DeQue: the queue is empty; the core hangs");
    twin::QueueBuffer& buffer = *order_.front();
    order_.pop_front();
    buffer.state = twin::QueueBuffer::taken;
    twin::core().inherit(consumer());
    twin::core().learn(consumer(), buffer.filled);
    return tensor<T>(buffer);
  }

  template <class T>
  void FreeTensor(LocalTensor<T>& tensor, const twin::Site& site = twin::Site()) {
    twin::QueueBuffer& buffer = find(tensor, twin::QueueBuffer::taken, "FreeTensor", site);
    buffer.state = twin::QueueBuffer::vacant;
    buffer.freed = twin::core().finished(consumer());
    // What the last round left must not be taken for this round's.
    tensor.memory().shadow.set_written(buffer.begin, buffer.begin + buffer.bytes, false);
    auto& open = twin::core().open_tensors;
    open.erase(std::find(open.begin(), open.end(), buffer.label));
  }

  bool HasTensorInQue() const { return !order_.empty(); }
  bool VacantInQue() const { return order_.size() < static_cast<size_t>(depth); }

  // For TPipe::InitBuffer.
  void add_buffer(size_t begin, size_t bytes, std::string label) {
    buffers_.push_back({begin, bytes, twin::QueueBuffer::vacant, {}, {}, std::move(label)});
  }
  static constexpr TPosition position = source;
  size_t num_buffers() const { return buffers_.size(); }
  static pipe_t producer() { return twin::pipes_of(source, target).first; }
  static pipe_t consumer() { return twin::pipes_of(source, target).second; }

 private:
  template <class T>
  LocalTensor<T> tensor(const twin::QueueBuffer& buffer) const {
    LocalTensor<T> view;
    twin::LocalMemory& memory = twin::core().local(twin::local_of(source), twin::Site());
    view.adopt(memory, source, buffer.begin, buffer.begin + buffer.bytes, buffer.label);
    return view;
  }
  template <class T>
  twin::QueueBuffer& find(const LocalTensor<T>& tensor, twin::QueueBuffer::State state,
                          const char* call, const twin::Site& site) {
    for (twin::QueueBuffer& buffer : buffers_) {
      if (buffer.begin == tensor.begin() && buffer.state == state) return buffer;
    }
    twin::core().fail(
        site, twin::concat(call, ": ", tensor.label(), " is not this queue's, or not ",
                           state == twin::QueueBuffer::allocated ? "allocated" : "dequeued"));
  }

  std::deque<twin::QueueBuffer> buffers_;
  std::deque<twin::QueueBuffer*> order_;
};

template <TPosition position>
struct OtherEnd {
  static constexpr TPosition value = position == TPosition::VECIN ? TPosition::VECCALC : position;
};

template <TPosition position, int32_t depth, int32_t mask = 0>
using TQue = TQueBind<position, OtherEnd<position>::value, depth, mask>;

template <TPosition position = TPosition::VECCALC>
class TBuf {
 public:
  template <class T>
  LocalTensor<T> Get(const twin::Site& site = twin::Site()) {
    return GetWithOffset<T>(static_cast<uint32_t>(bytes_ / sizeof(T)), 0, site);
  }
  template <class T>
  LocalTensor<T> Get(uint32_t elements, const twin::Site& site = twin::Site()) {
    return GetWithOffset<T>(elements, 0, site);
  }
  template <class T>
  LocalTensor<T> GetWithOffset(uint32_t elements, uint32_t offset,
                               const twin::Site& site = twin::Site()) {
    twin::require(offset + elements * sizeof(T) <= bytes_, site,
                  twin::concat("TBuf::Get: bytes ", offset, " to ", offset + elements * sizeof(T),
                               " of ", label_, ", which has ", bytes_));
    LocalTensor<T> view;
    twin::LocalMemory& memory = twin::core().local(twin::local_of(position), site);
    const size_t begin = begin_ + offset;
    view.adopt(memory, position, begin, begin + elements * sizeof(T), label_);
    return view;
  }
  void place(size_t begin, size_t bytes, std::string label) {
    begin_ = begin;
    bytes_ = bytes;
    label_ = std::move(label);
  }

 private:
  size_t begin_ = 0, bytes_ = 0;
  std::string label_ = "TBuf without InitBuffer";
};

class TPipe {
 public:
  TPipe(const twin::Site& site = twin::Site()) {
    twin::require(!twin::core().has_pipe, site, "a second TPipe in one kernel");
    twin::core().has_pipe = true;
  }

  template <TPosition source, TPosition target, int32_t depth, int32_t mask>
  bool InitBuffer(TQueBind<source, target, depth, mask>& queue, uint8_t num, uint32_t bytes,
                  const twin::Site& site = twin::Site()) {
    twin::require(num >= 1 && num <= 8, site,
                  twin::concat("InitBuffer: ", +num, " buffers; 1 to 8"));
    twin::LocalMemory& memory = twin::core().local(twin::local_of(source), site);
    for (int i = 0; i < num; ++i) {
      queue.add_buffer(twin::take(memory, bytes, site), (bytes + 31) / 32 * 32,
                       twin::concat("queue buffer ", i, " of ", site.text()));
    }
    return true;
  }

  template <TPosition position>
  bool InitBuffer(TBuf<position>& buffer, uint32_t bytes, const twin::Site& site = twin::Site()) {
    twin::LocalMemory& memory = twin::core().local(twin::local_of(position), site);
    buffer.place(twin::take(memory, bytes, site), (bytes + 31) / 32 * 32,
                 twin::concat("buffer of ", site.text()));
    return true;
  }

  template <HardEvent event>
  TEventID AllocEventID(const twin::Site& site = twin::Site()) {
    uint8_t& ids = used<event>();
    for (int id = 0; id < 8; ++id) {
      if (ids >> id & 1) continue;
      ids |= 1 << id;
      return static_cast<TEventID>(id);
    }
    twin::core().fail(site,
                      twin::concat("AllocEventID<", twin::pair_of(event).name, ">: all 8 used"));
  }
  template <HardEvent event>
  void ReleaseEventID(TEventID id, const twin::Site& site = twin::Site()) {
    twin::require(used<event>() >> id & 1, site,
                  twin::concat("ReleaseEventID(", +id, "): it is not allocated"));
    used<event>() &= ~(1 << id);
  }
  // The first free id, not reserved; good until the next Alloc or Fetch of the pair.
  template <HardEvent event>
  TEventID FetchEventID(const twin::Site& site = twin::Site()) {
    const TEventID id = AllocEventID<event>(site);
    ReleaseEventID<event>(id, site);
    twin::core().fetched_ids[{twin::pair_of(event).from, twin::pair_of(event).to}] |= 1 << id;
    return id;
  }

 private:
  template <HardEvent event>
  static uint8_t& used() {
    return twin::core().event_ids[{twin::pair_of(event).from, twin::pair_of(event).to}];
  }
};

}  // namespace AscendC
