// Facts about the life of this process that decide whether driver objects may still be touched.
#pragma once

#include <cstdint>

namespace kvcached {

// True once the interpreter or the process is on its way out. From then on destructors leak: the driver may
// already be gone, and the kernel takes everything back anyway.
bool process_exiting() noexcept;
void mark_process_exiting() noexcept;

// How many forks lie between the process that loaded this library and this one. No system call.
std::uint64_t fork_depth() noexcept;

// Remembers which process made an object. Ranges are not inherited over fork (MADV_DONTFORK) and driver
// contexts do not survive it, so a forked child must neither use nor undo what its parent made.
class OwnerProcess {
 public:
  bool is_current() const noexcept { return depth_ == fork_depth(); }
  bool may_undo() const noexcept { return !process_exiting() && is_current(); }
  // Throws Misuse in a forked child.
  void require_current() const;

 private:
  std::uint64_t depth_ = fork_depth();
};

}  // namespace kvcached
