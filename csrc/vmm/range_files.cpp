#include "vmm/range_files.hpp"

#include <fcntl.h>
#include <pthread.h>

#include <cerrno>
#include <iterator>
#include <utility>

#include "vmm/system_error.hpp"

namespace kvcached {

RangeFiles& RangeFiles::instance() {
  static RangeFiles* const files = new RangeFiles;  // never destroyed: fork handlers cannot be removed
  return *files;
}

RangeFiles::RangeFiles() { ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

void RangeFiles::add(Address base, FileDescriptor file) {
  const std::lock_guard<std::mutex> guard(mutex_);
  files_.insert_or_assign(base, std::move(file));
}

FileDescriptor RangeFiles::remove(Address base) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto entry = files_.extract(base);
  return entry.empty() ? FileDescriptor() : std::move(entry.mapped());
}

ExportedMemory RangeFiles::share(Address address) {
  const std::lock_guard<std::mutex> guard(mutex_);
  const auto& [base, file] = *std::prev(files_.upper_bound(address));
  FileDescriptor copy(::fcntl(file.get(), F_DUPFD_CLOEXEC, 0));
  if (copy.get() < 0) raise_system_error("fcntl(F_DUPFD_CLOEXEC)", errno);
  return {std::move(copy), address - base};
}

// Held over the fork, so that the child finds the table whole.
void RangeFiles::before_fork() { instance().mutex_.lock(); }

void RangeFiles::after_fork_in_parent() { instance().mutex_.unlock(); }

void RangeFiles::after_fork_in_child() {
  instance().files_.clear();
  instance().mutex_.unlock();
}

}  // namespace kvcached
