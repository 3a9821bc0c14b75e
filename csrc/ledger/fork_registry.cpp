#include "ledger/fork_registry.hpp"

#include <pthread.h>

#include "ledger/ledger_file.hpp"

namespace kvcached {

ForkRegistry& ForkRegistry::instance() {
  static ForkRegistry* const registry = new ForkRegistry;  // never destroyed: fork handlers cannot be removed
  return *registry;
}

ForkRegistry::ForkRegistry() { ::pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child); }

void ForkRegistry::add(LedgerFile* file) {
  const std::lock_guard<std::mutex> guard(mutex_);
  files_.insert(file);
}

void ForkRegistry::remove(LedgerFile* file) noexcept {
  const std::lock_guard<std::mutex> guard(mutex_);
  files_.erase(file);
}

// Held over the fork, so that the child finds the set whole.
void ForkRegistry::before_fork() { instance().mutex_.lock(); }

void ForkRegistry::after_fork_in_parent() { instance().mutex_.unlock(); }

void ForkRegistry::after_fork_in_child() {
  for (LedgerFile* file : instance().files_) file->orphan();
  instance().files_.clear();
  instance().mutex_.unlock();
}

}  // namespace kvcached
