#include "bindings/gil.hpp"

#include <pthread.h>
#include <unistd.h>

#include <atomic>

namespace kvcached::bindings {
namespace {

constexpr useconds_t kPollUs = 100;

std::atomic<bool> is_kept{false};
std::atomic<int> takers{0};  // threads that will not look at is_kept any more before they have the GIL
thread_local bool is_keeper = false;
// Of the threads that ask for it only the forking one, which has it, lives on in a child.
[[maybe_unused]] const int registered = ::pthread_atfork(nullptr, nullptr, [] { takers = 0; });

}  // namespace

GilRelease::~GilRelease() {
  ++takers;
  if (is_kept.load() && !is_keeper) {
    --takers;
    if (held_ != nullptr && held_->owns_lock()) held_->unlock();
    for (;;) ::pause();
  }
  PyEval_RestoreThread(state_);
  --takers;
}

void GilRelease::keep_for_this_thread() {
  is_keeper = true;
  is_kept = true;
  while (takers.load() > 0) {
    PyThreadState* const state = PyEval_SaveThread();
    ::usleep(kPollUs);
    PyEval_RestoreThread(state);
  }
}

}  // namespace kvcached::bindings
