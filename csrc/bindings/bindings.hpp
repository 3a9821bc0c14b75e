// What the binding files share. Only files in this folder know Python.
#pragma once

#include <pybind11/pybind11.h>

#include <memory>
#include <mutex>
#include <optional>
#include <sstream>
#include <string>

#include "bindings/gil.hpp"
#include "vmm/error.hpp"
#include "vmm/vmm.hpp"

namespace kvcached::bindings {

namespace py = pybind11;

// A backend as Python sees it: shared by every pool made from it.
struct Backend {
  std::shared_ptr<Vmm> vmm;
};

// Takes a lock without ever waiting for it under the GIL: the GIL is the outermost lock, and the holder may
// be about to take it again.
class PatientLock {
 public:
  explicit PatientLock(std::mutex& mutex) : lock_(mutex, std::try_to_lock) {
    if (lock_.owns_lock()) return;
    const GilRelease release(&lock_);
    lock_.lock();
  }

  std::unique_lock<std::mutex>& get() noexcept { return lock_; }

 private:
  std::unique_lock<std::mutex> lock_;
};

inline std::size_t require_count(const char* what, std::int64_t value) {
  if (value >= 0) return static_cast<std::size_t>(value);
  throw Misuse(std::string(what) + " is " + std::to_string(value) + ", must not be negative");
}

void bind_errors(py::module_& module);
void bind_vmm(py::module_& module);
void bind_ledger(py::module_& module);
void bind_pool(py::module_& module);

}  // namespace kvcached::bindings
