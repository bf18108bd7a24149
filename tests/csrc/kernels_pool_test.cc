// The thread pool: every block exactly once, callers beside each other, sleepers woken, forks.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels_check.h"
#include "thread_pool.h"

using kernels::ThreadPool;

namespace {

void check_run(int64_t blocks) {
  std::vector<int> times(static_cast<size_t>(blocks), 0);  // plain: a race shows under TSan
  ThreadPool::instance().run(blocks, [&](int64_t i) { ++times[static_cast<size_t>(i)]; });
  for (int each : times) CHECK(each == 1);
}

void every_block_runs_once() {
  for (int threads : {1, 2, 4}) {
    ThreadPool::instance().set_num_threads(threads);
    for (int repeat = 0; repeat < 200; ++repeat) {
      for (int64_t blocks : {0, 1, 2, 3, 17}) check_run(blocks);
    }
  }
}

void sleeping_workers_are_woken() {
  ThreadPool::instance().set_num_threads(3);
  std::vector<std::thread::id> ids(3);
  for (int repeat = 0; repeat < 5; ++repeat) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));  // past the spin
    std::atomic<int> arrived{0};
    ThreadPool::instance().run(3, [&](int64_t) {  // ends only when three threads are in it
      arrived.fetch_add(1);
      while (arrived.load() < 3) std::this_thread::yield();
    });
    CHECK(arrived.load() == 3);
  }
}

void callers_do_not_wait_for_each_other() {
  ThreadPool::instance().set_num_threads(2);
  std::vector<std::thread> callers;
  for (int c = 0; c < 3; ++c) {
    callers.emplace_back([] {
      for (int repeat = 0; repeat < 300; ++repeat) check_run(9);
    });
  }
  for (auto& caller : callers) caller.join();
}

#if !defined(__SANITIZE_THREAD__)  // TSan cannot start threads in a child of a threaded process
void a_forked_child_has_a_pool() {
  ThreadPool::instance().set_num_threads(3);
  check_run(50);
  const pid_t child = fork();
  if (child == 0) {
    if (ThreadPool::instance().num_threads() != 3) _exit(2);
    check_run(50);
    _exit(0);
  }
  int status = 0;
  CHECK(waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}
#else
void a_forked_child_has_a_pool() {}
#endif

}  // namespace

int main() {
  every_block_runs_once();
  sleeping_workers_are_woken();
  callers_do_not_wait_for_each_other();
  a_forked_child_has_a_pool();
  CHECK(refusal_of([] { ThreadPool::instance().set_num_threads(0); }).find("1 to 1024") !=
        std::string::npos);
}
