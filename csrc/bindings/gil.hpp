// The GIL given up for a scope, also where the interpreter ends meanwhile.
#pragma once

#include <pybind11/pybind11.h>

#include <mutex>

namespace kvcached::bindings {

// Instead of pybind11's own guard: a thread that asks for the GIL of an interpreter that is ending is unwound
// by force, which ends the process with SIGABRT as soon as that reaches a destructor of C++. Such a thread (a
// daemon) is parked here until the process is gone.
class GilRelease {
 public:
  // `held` is unlocked where the thread is parked, so that what others still call at exit does not wait for
  // it.
  explicit GilRelease(std::unique_lock<std::mutex>* held = nullptr)
      : held_(held), state_(PyEval_SaveThread()) {}
  GilRelease(const GilRelease&) = delete;
  GilRelease& operator=(const GilRelease&) = delete;
  ~GilRelease();

  // From here on only the calling thread gets the GIL back. By the thread that ends the interpreter, before
  // it does, with the GIL held.
  static void keep_for_this_thread();

 private:
  std::unique_lock<std::mutex>* held_;
  PyThreadState* state_;
};

}  // namespace kvcached::bindings
