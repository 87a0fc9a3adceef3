#include "without_gil.h"

#include <atomic>
#include <thread>

#include <pthread.h>
#include <unistd.h>

namespace etshared::runtime {
namespace {

namespace nb = ::nanobind;

std::atomic<int> num_taking = 0;
std::atomic<bool> is_exiting = false;
std::atomic<std::thread::id> exiting_thread;

void stop_other_threads() {
  exiting_thread = std::this_thread::get_id();
  is_exiting = true;
  // Whoever is about to take the GIL takes it now; nobody does from here on.
  while (num_taking > 0) {
    const nb::gil_scoped_release unlocked;
    std::this_thread::yield();
  }
}

} // namespace

WithoutGil::~WithoutGil() {
  ++num_taking;
  if (is_exiting && exiting_thread.load() != std::this_thread::get_id()) {
    --num_taking;
    while (true) {
      ::pause();
    }
  }
  PyEval_RestoreThread(state_);
  --num_taking;
}

void stop_other_threads_at_exit() {
  // The threads that were taking it are not in the child of a fork.
  ::pthread_atfork(nullptr, nullptr, [] { num_taking = 0; });
  nb::module_::import_("atexit").attr("register")(
      nb::cpp_function(stop_other_threads));
}

} // namespace etshared::runtime
