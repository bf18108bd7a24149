// Persistent threads that share the blocks of one kernel call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace kernels {

// The calling thread takes part. Blocks are claimed one by one, so a thread that the scheduler
// keeps away delays nobody. Waiting workers spin for microseconds, then sleep: kernels follow each
// other closely within a step, and an idle server burns nothing.
class ThreadPool {
 public:
  using Body = void (*)(const void* context, int64_t block);

  static ThreadPool& instance();

  // Throws std::invalid_argument unless 1 <= count <= 1024. Not while a call runs.
  void set_num_threads(int count);
  int num_threads() const { return num_threads_.load(std::memory_order_relaxed); }

  // Run body(context, i) for i in [0, blocks) and return when all are done. A second caller that
  // finds the pool busy runs its blocks alone.
  void run(int64_t blocks, Body body, const void* context);

  template <class F>
  void run(int64_t blocks, const F& body) {
    run(blocks, [](const void* f, int64_t i) { (*static_cast<const F*>(f))(i); }, &body);
  }

 private:
  ThreadPool();
  ~ThreadPool();
  void start();
  void stop();
  void work();
  bool run_one();
  void wait_for_work();

  std::atomic<int> num_threads_{1};
  std::vector<std::thread> threads_;
  std::mutex busy_;  // held by the caller whose job the workers share

  // Blocks nobody has claimed. Whoever lowers it owns a block, and may then read the job.
  alignas(64) std::atomic<int64_t> unclaimed_{0};
  alignas(64) std::atomic<int64_t> unfinished_{0};
  alignas(64) Body body_ = nullptr;
  const void* context_ = nullptr;

  std::mutex sleep_;
  std::condition_variable wake_;
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stopping_{false};
};

}  // namespace kernels
