#include "ledger/call_bell.hpp"

#include "ledger/futex.hpp"
#include "vmm/error.hpp"

namespace kvcached {

CallBell::CallBell(const LedgerClient* client) {
  if (client == nullptr) return;
  try {
    auto file = std::make_unique<LedgerFile>(client->path(), std::nullopt);
    if (!client->is_in(*file)) return;
    word_ = &file->segment().info[client->slot()].calls;
    file_ = std::move(file);
  } catch (const Error&) {
    if (client->is_at_its_path()) throw;
    // Deleted or replaced: nobody finds us through it any more.
  }
}

void CallBell::sleep(std::uint32_t count, bool is_bounded) const noexcept {
  const timespec bound{1, 0};
  futex_wait(word(), count, is_bounded ? &bound : nullptr);
}

void CallBell::ring() const noexcept {
  word().fetch_add(1);
  futex_wake_all(word());
}

}  // namespace kvcached
