// Facts about the life of this process that decide whether driver objects may still be touched.
#pragma once

#include <sys/types.h>
#include <unistd.h>

namespace kvcached {

// True once the interpreter or the process is on its way out. From then on destructors leak: the driver may
// already be gone, and the kernel takes everything back anyway.
bool process_exiting() noexcept;
void mark_process_exiting() noexcept;

// Remembers which process made an object. Ranges are not inherited over fork (MADV_DONTFORK) and driver
// contexts do not survive it, so a forked child must neither use nor undo what its parent made.
class OwnerProcess {
 public:
  bool is_current() const noexcept { return pid_ == ::getpid(); }
  bool may_undo() const noexcept { return !process_exiting() && is_current(); }

 private:
  pid_t pid_ = ::getpid();
};

}  // namespace kvcached
