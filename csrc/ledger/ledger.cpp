#include "ledger/ledger.hpp"

#include <array>
#include <cstring>

namespace kvcached {
namespace {

std::string name_of(const LedgerInfoLine& info) {
  std::array<std::uint64_t, kNameWords> words{};
  for (std::size_t i = 0; i < kNameWords; ++i) words[i] = info.name[i].load();
  std::array<char, kNameBytes> text{};
  std::memcpy(text.data(), words.data(), kNameBytes);
  return std::string(text.data(), ::strnlen(text.data(), kNameBytes));
}

ClientInfo read_client(const LedgerSegment& shared, std::size_t slot) {
  const LedgerHotLine& hot = shared.hot[slot];
  const LedgerInfoLine& info = shared.info[slot];
  ClientInfo client;
  client.slot = slot;
  client.pid = info.pid.load();
  client.name = name_of(info);
  client.used_bytes = clamp_bytes(hot.used_bytes.load());
  client.floor_bytes = clamp_bytes(hot.floor_bytes.load());
  const std::int64_t limit = hot.limit_bytes.load();
  if (limit != kUnlimited) client.limit_bytes = clamp_bytes(limit);
  client.want_bytes = clamp_bytes(hot.want_bytes.load());
  client.priority = info.priority.load();
  client.published = {info.range_base.load(), info.range_bytes.load(), info.rows_used.load(),
                      info.rows_backed.load()};
  return client;
}

}  // namespace

std::unique_ptr<LedgerClient> Ledger::register_client(const ClientSpec& spec) const {
  return std::make_unique<LedgerClient>(file_.path(), spec);
}

LedgerSnapshot Ledger::snapshot() const {
  file_.reap();
  const LedgerSegment& shared = file_.segment();
  LedgerSnapshot snapshot;
  snapshot.budget_bytes = file_.budget_bytes();
  snapshot.generation = shared.header.generation.load();
  for (std::size_t slot = 0; slot < high_slot(shared); ++slot) {
    ClientInfo client = read_client(shared, slot);
    snapshot.used_bytes += client.used_bytes;
    if (client.pid == 0) continue;
    client.alive = file_.is_slot_locked_elsewhere(slot);
    snapshot.clients.push_back(std::move(client));
  }
  return snapshot;
}

std::uint32_t Ledger::wait(std::uint32_t generation, double timeout_s) const {
  const std::atomic<std::uint32_t>& current = file_.segment().header.generation;
  if (current.load() == generation && timeout_s > 0) file_.sleep(generation, timeout_s);
  if (current.load() == generation) file_.reap();
  return current.load();
}

}  // namespace kvcached
