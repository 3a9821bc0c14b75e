#include "ledger/call_bell.hpp"

#include <exception>

#include "ledger/futex.hpp"

namespace kvcached {

CallBell::CallBell(const LedgerClient* client) noexcept {
  if (client == nullptr) return;
  try {
    auto file = std::make_unique<LedgerFile>(client->path(), std::nullopt);
    if (!client->is_in(*file)) return;
    word_ = &file->segment().info[client->slot()].calls;
    file_ = std::move(file);
  } catch (const std::exception&) {
    // Deleted or replaced: nobody finds us through it any more.
  }
}

void CallBell::sleep(std::uint32_t count) const noexcept { futex_wait(word(), count, nullptr); }

void CallBell::ring() const noexcept {
  word().fetch_add(1);
  futex_wake_all(word());
}

}  // namespace kvcached
