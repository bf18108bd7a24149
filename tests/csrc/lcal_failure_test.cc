// What goes wrong: mismatches, aborts, deadlines, deaths, a second thread.
#include <sys/wait.h>

#include <chrono>
#include <csignal>

#include "error.h"
#include "lcal_check.h"

namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const lcal::PeerFailure& error) {
    return error.what();
  } catch (const lcal::UsageError& error) {
    return error.what();
  }
  return "";
}

bool has(const std::string& text, const std::string& part) {
  if (text.find(part) != std::string::npos) return true;
  std::fprintf(stderr, "not found: %s\nin: %s\n", part.c_str(), text.c_str());
  return false;
}

void mismatches_are_named() {
  on_ranks(2, [](lcal::Comm& comm) {
    std::vector<float> x(8);
    const std::string said = error_of([&] {
      if (comm.rank() == 0) {
        comm.all_reduce(x.data(), 8, lcal::DType::f32, lcal::Op::sum);
      } else {
        comm.barrier();
      }
    });
    CHECK(has(said, "all_reduce #2 (32 bytes float32, sum)") && has(said, "barrier #2"));
    CHECK(!error_of([&] { comm.barrier(); }).empty());  // broken for good
  });
}

void other_counts_are_named() {
  on_ranks(3, [](lcal::Comm& comm) {
    std::vector<float> x(16);
    const size_t count = comm.rank() == 1 ? 15 : 16;
    const std::string said =
        error_of([&] { comm.all_reduce(x.data(), count, lcal::DType::f32, lcal::Op::sum); });
    CHECK(has(said, "60 bytes float32") || has(said, "64 bytes float32"));
  });
}

void an_abort_wakes_everyone() {
  on_ranks(3, [](lcal::Comm& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      comm.abort("out of coffee");
      return;
    }
    const std::string said = error_of([&] { comm.barrier(); });
    CHECK(has(said, "rank 1 (pid ") && has(said, "out of coffee"));
  });
}

void a_deadline_names_who_is_missing() {
  const std::string session = fresh_session();
  std::thread absent([&] {
    lcal::Comm comm(options_of(session, 1, 2));
    std::this_thread::sleep_for(std::chrono::milliseconds(900));
    CHECK(!error_of([&] { comm.barrier(); }).empty());
  });
  lcal::Options options = options_of(session, 0, 2);
  options.timeout_s = 0.3;
  lcal::Comm comm(options);
  const std::string said = error_of([&] { comm.barrier(); });
  CHECK(has(said, "in barrier #2 for rank 1 (pid ") && has(said, "in no collective"));
  absent.join();
}

void ranks_that_do_not_come_are_named() {
  lcal::Options options = options_of(fresh_session(), 0, 3);
  options.timeout_s = 0.2;
  CHECK(has(error_of([&] { lcal::Comm comm(options); }), "for ranks 1, 2, which did not come"));
  options.rank = 2;
  options.session = fresh_session();
  CHECK(has(error_of([&] { lcal::Comm comm(options); }), "for rank 0, which did not come"));
}

void a_dead_process_is_named() {
  const std::string session = fresh_session();
  const pid_t child = fork();
  if (child == 0) {
    lcal::Comm comm(options_of(session, 1, 2));
    comm.barrier();
    raise(SIGKILL);
  }
  lcal::Comm comm(options_of(session, 0, 2));
  comm.barrier();
  const std::string said = error_of([&] { comm.barrier(); });
  CHECK(has(said, "rank 1 (pid " + std::to_string(child) + ") died"));
  int status;
  waitpid(child, &status, 0);
}

void a_second_thread_is_refused() {
  on_ranks(2, [](lcal::Comm& comm) {
    if (comm.rank() == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      comm.barrier();
      return;
    }
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      CHECK(has(error_of([&] { comm.barrier(); }), "another thread is inside"));
    });
    comm.barrier();
    other.join();
  });
}

}  // namespace

int main() {
  a_dead_process_is_named();  // first: forks while there is one thread
  mismatches_are_named();
  other_counts_are_named();
  an_abort_wakes_everyone();
  a_deadline_names_who_is_missing();
  ranks_that_do_not_come_are_named();
  a_second_thread_is_refused();
  return 0;
}
