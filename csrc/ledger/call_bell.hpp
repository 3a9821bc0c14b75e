#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "ledger/client.hpp"

namespace kvcached {

// Where a thread sleeps until somebody calls: its own process, or whoever now asks its client for more
// memory. Releases of others, which are frequent, do not wake it.
//
// It has the ledger's file open on its own, so it may outlive the client. Without a client, or where the
// client's file is gone, only its own process can call.
class CallBell {
 public:
  // Throws where the ledger cannot be opened, for want of descriptors, say.
  explicit CallBell(const LedgerClient* client);

  // To be read before looking whether there is something to do.
  std::uint32_t count() const noexcept { return word().load(); }
  // Sleeps while the count is `count`, with a bound for at most a second: whoever changed something may have
  // been stopped before it called. Wakes early for no reason at times.
  void sleep(std::uint32_t count, bool is_bounded) const noexcept;
  void ring() const noexcept;

 private:
  std::atomic<std::uint32_t>& word() const noexcept { return *word_; }

  std::unique_ptr<LedgerFile> file_;
  mutable std::atomic<std::uint32_t> own_word_{0};
  std::atomic<std::uint32_t>* word_ = &own_word_;
};

}  // namespace kvcached
