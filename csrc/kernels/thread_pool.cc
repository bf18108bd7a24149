#include "thread_pool.h"

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <new>
#include <stdexcept>
#include <string>

namespace kernels {
namespace {

void pause() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int allowed_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

using Clock = std::chrono::steady_clock;
constexpr auto kSpin = std::chrono::microseconds(50);
constexpr int kPausesPerLook = 32;

alignas(ThreadPool) unsigned char storage[sizeof(ThreadPool)];

}  // namespace

// Never destroyed: a daemon thread of the interpreter may still be in a kernel at exit. A forked
// child has none of the threads, so it gets a new pool of the same width in the same place.
ThreadPool& ThreadPool::instance() {
  static ThreadPool* pool = [] {
    pthread_atfork(nullptr, nullptr, [] {
      const int width = reinterpret_cast<ThreadPool*>(storage)->num_threads();
      (new (storage) ThreadPool)->num_threads_ = width;
    });
    return new (storage) ThreadPool;
  }();
  return *pool;
}

ThreadPool::ThreadPool() : num_threads_(allowed_cpus()) {}

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::set_num_threads(int count) {
  if (count < 1 || count > 1024) {
    throw std::invalid_argument("set_num_threads(" + std::to_string(count) +
                                "): give 1 to 1024 threads");
  }
  const std::lock_guard<std::mutex> lock(busy_);
  stop();
  num_threads_ = count;
}

void ThreadPool::start() {
  for (int i = 1; i < num_threads(); ++i) threads_.emplace_back([this] { work(); });
}

void ThreadPool::stop() {
  {
    const std::lock_guard<std::mutex> lock(sleep_);
    stopping_ = true;
  }
  wake_.notify_all();
  for (auto& thread : threads_) thread.join();
  threads_.clear();
  stopping_ = false;
}

bool ThreadPool::run_one() {
  int64_t left = unclaimed_.load(std::memory_order_relaxed);
  do {
    if (left == 0) return false;
  } while (!unclaimed_.compare_exchange_weak(left, left - 1, std::memory_order_acquire,
                                             std::memory_order_relaxed));
  body_(context_, left - 1);
  unfinished_.fetch_sub(1, std::memory_order_release);
  return true;
}

void ThreadPool::wait_for_work() {
  const auto deadline = Clock::now() + kSpin;
  do {
    for (int i = 0; i < kPausesPerLook; ++i) {
      if (unclaimed_.load(std::memory_order_relaxed) > 0 || stopping_) return;
      pause();
    }
  } while (Clock::now() < deadline);
  std::unique_lock<std::mutex> lock(sleep_);
  sleepers_.fetch_add(1);  // before the look at unclaimed_, which run() sets before it looks here
  wake_.wait(lock, [this] { return unclaimed_.load() > 0 || stopping_; });
  sleepers_.fetch_sub(1);
}

void ThreadPool::work() {
  while (!stopping_) {
    if (!run_one()) wait_for_work();
  }
}

void ThreadPool::run(int64_t blocks, Body body, const void* context) {
  if (blocks <= 1 || num_threads() == 1 || !busy_.try_lock()) {
    for (int64_t i = 0; i < blocks; ++i) body(context, i);
    return;
  }
  const std::lock_guard<std::mutex> lock(busy_, std::adopt_lock);
  if (threads_.empty()) start();
  body_ = body;
  context_ = context;
  unfinished_.store(blocks, std::memory_order_relaxed);
  unclaimed_.store(blocks);
  if (sleepers_.load() > 0) {
    {
      const std::lock_guard<std::mutex> sleeping(sleep_);
    }
    wake_.notify_all();
  }
  while (run_one()) {
  }
  for (int spins = 0; unfinished_.load(std::memory_order_acquire) > 0; ++spins) {
    // The rest is at most one block for each worker; one of them may have lost its CPU.
    spins < 2000 ? pause() : static_cast<void>(sched_yield());
  }
}

}  // namespace kernels
