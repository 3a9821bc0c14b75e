#include "ledger/ledger.hpp"

#include "ledger/clock.hpp"
#include "ledger/names.hpp"
#include "ledger/reclaim.hpp"
#include "ledger/settings.hpp"

namespace kvcached {
namespace {

ClientInfo read_client(const LedgerSegment& shared, const Standings& standings, std::size_t slot) {
  const LedgerHotLine& hot = shared.hot[slot];
  const LedgerInfoLine& info = shared.info[slot];
  ClientInfo client;
  client.slot = slot;
  client.pid = info.pid.load();
  client.name = read_name(info);
  client.used_bytes = clamp_bytes(hot.used_bytes.load());
  client.floor_bytes = floor_of(hot);
  const std::int64_t limit = hot.limit_bytes.load();
  if (limit != kUnlimited) client.limit_bytes = clamp_bytes(limit);
  client.spare_bytes = std::min(client.used_bytes, clamp_bytes(hot.spare_bytes.load()));
  client.want_bytes = standings.all[slot].want_bytes;
  client.asked_bytes = asked_bytes(standings, slot);
  client.priority = hot.priority.load();
  client.kind = static_cast<ClientKind>(std::min(hot.kind.load(), kClientKinds - 1));
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
  snapshot.generation = shared.bell.generation.load();
  const Standings standings = read_standings(shared, coarse_now_ns());
  for (std::size_t slot = 0; slot < standings.count; ++slot) {
    ClientInfo client = read_client(shared, standings, slot);
    snapshot.used_bytes += client.used_bytes;
    if (client.pid == 0) continue;
    client.alive = file_.is_slot_locked_elsewhere(slot);
    snapshot.clients.push_back(std::move(client));
  }
  return snapshot;
}

std::uint32_t Ledger::wait(std::uint32_t generation, double timeout_s) const {
  const std::atomic<std::uint32_t>& current = file_.segment().bell.generation;
  if (current.load() == generation && timeout_s > 0) file_.sleep(generation, timeout_s);
  if (current.load() == generation) file_.reap();
  if (current.load() == generation) file_.ring_for_lapses();
  return current.load();
}

void Ledger::set_limit(std::size_t slot, std::uint32_t pid, std::optional<std::int64_t> limit_bytes) const {
  Settings(file_, slot, pid).set_limit(limit_bytes);
}

void Ledger::set_floor(std::size_t slot, std::uint32_t pid, std::int64_t floor_bytes) const {
  Settings(file_, slot, pid).set_floor(floor_bytes);
}

void Ledger::set_priority(std::size_t slot, std::uint32_t pid, std::int32_t priority) const {
  Settings(file_, slot, pid).set_priority(priority);
}

std::int64_t Ledger::recall(std::size_t slot, std::uint32_t pid, std::int64_t bytes, double lapse_s) const {
  return Settings(file_, slot, pid).recall(bytes, lapse_s);
}

}  // namespace kvcached
