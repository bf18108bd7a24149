// Cores are threads, of which one runs at a time: the one that holds the baton.
//
// A thread hands it on where it has to wait and, by a seeded coin, at any call of the API. So a run
// can be repeated, a deadlock is seen at once (nobody can go on), and no lock is needed elsewhere.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "report.h"

namespace twin {

class Scheduler {
 public:
  explicit Scheduler(uint64_t seed) : random_(seed) {}

  // One in how many calls gives way to another core; 0: none.
  int preempt_one_in = 64;

  void add(std::string name, std::function<void()> body) {
    tasks_.push_back(std::make_unique<Task>());
    tasks_.back()->name = std::move(name);
    tasks_.back()->body = std::move(body);
  }

  // Runs all tasks to their end. Throws the first Fault.
  void run() {
    if (tasks_.empty()) return;
    for (auto& task : tasks_) task->thread = std::thread([this, t = task.get()] { work(*t); });
    {
      std::unique_lock<std::mutex> lock(mutex_);
      holder_ = tasks_[random_() % tasks_.size()].get();
      holder_->wake.notify_one();
      all_done_.wait(lock, [this] { return running_out_; });
    }
    for (auto& task : tasks_) task->thread.join();
    tasks_.clear();
    running_out_ = false;
    if (!failure_.empty()) throw Fault(std::exchange(failure_, {}));
  }

  void maybe_yield() {
    if (preempt_one_in && random_() % preempt_one_in == 0) hand_on(*holder_);
  }

  // Waits until ready() holds; `what` says for what, should it never.
  void block(const std::string& what, const Site& site, std::function<bool()> ready) {
    if (ready()) return;
    Task& me = *holder_;
    me.waits_for = concat(what, " at ", site.text());
    me.ready = std::move(ready);
    hand_on(me);
    me.ready = nullptr;
  }

 private:
  struct Task {
    std::string name, waits_for;
    std::function<void()> body;
    std::function<bool()> ready;  // null: can go on
    std::condition_variable wake;
    std::thread thread;
    bool done = false;
  };

  void work(Task& me) {
    {
      std::unique_lock<std::mutex> lock(mutex_);
      me.wake.wait(lock, [&] { return holder_ == &me; });
    }
    try {
      if (failure_.empty()) me.body();
    } catch (const Stop&) {
    } catch (const std::exception& error) {
      if (failure_.empty()) failure_ = error.what();
    }
    me.done = true;
    Task* next = choose();
    std::unique_lock<std::mutex> lock(mutex_);
    holder_ = next;
    if (next) {
      next->wake.notify_one();
    } else {
      running_out_ = true;
      all_done_.notify_one();
    }
  }

  // Gives the baton to a task that can go on, maybe to the same; returns with the baton.
  void hand_on(Task& me) {
    Task* next = choose();
    if (next != &me) {
      std::unique_lock<std::mutex> lock(mutex_);
      holder_ = next;
      next->wake.notify_one();
      me.wake.wait(lock, [&] { return holder_ == &me; });
    }
    if (!failure_.empty()) throw Stop();
  }

  // A task that can go on; after a failure any that is not done, so that it stops.
  Task* choose() {
    const size_t start = random_() % tasks_.size();
    bool all_done = true;
    for (int pass = 0; pass < 2; ++pass) {
      for (size_t i = 0; i < tasks_.size(); ++i) {
        Task& task = *tasks_[(start + i) % tasks_.size()];
        if (task.done) continue;
        all_done = false;
        if (!failure_.empty() || !task.ready || task.ready()) return &task;
      }
      if (all_done) return nullptr;
      failure_ = "deadlock:";
      for (auto& task : tasks_) {
        if (!task->done) failure_ += concat(" ", task->name, " waits for ", task->waits_for, ";");
      }
    }
    return nullptr;
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Task>> tasks_;
  std::mutex mutex_;
  std::condition_variable all_done_;
  Task* holder_ = nullptr;
  bool running_out_ = false;
  std::string failure_;
};

}  // namespace twin
