#pragma once

#include <mutex>
#include <set>

namespace kvcached {

class LedgerFile;

// All open ledger files of this process, so that a forked child can drop the descriptors that would otherwise
// keep its dead parent's locks alive.
class ForkRegistry {
 public:
  static ForkRegistry& instance();
  void add(LedgerFile* file);
  void remove(LedgerFile* file) noexcept;

 private:
  ForkRegistry();
  static void before_fork();
  static void after_fork_in_parent();
  static void after_fork_in_child();

  std::mutex mutex_;
  std::set<LedgerFile*> files_;
};

}  // namespace kvcached
