#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ledger/client.hpp"
#include "ledger/ledger_file.hpp"

namespace kvcached {

struct ClientInfo {
  std::size_t slot = 0;
  std::uint32_t pid = 0;
  std::string name;
  std::int64_t used_bytes = 0;
  std::int64_t floor_bytes = 0;
  std::optional<std::int64_t> limit_bytes;
  std::int64_t spare_bytes = 0;
  std::int64_t want_bytes = 0;
  std::int64_t asked_bytes = 0;
  std::int32_t priority = 0;
  ClientKind kind = ClientKind::kKv;
  Published published;
  bool alive = false;
};

struct LedgerSnapshot {
  std::int64_t budget_bytes = 0;
  std::int64_t used_bytes = 0;
  std::uint32_t generation = 0;
  std::vector<ClientInfo> clients;
};

// One device's budget as seen by an observer; clients are made from it.
class Ledger {
 public:
  Ledger(const std::string& path, std::optional<std::int64_t> budget_bytes) : file_(path, budget_bytes) {}

  const std::string& path() const noexcept { return file_.path(); }
  std::int64_t budget_bytes() const { return file_.budget_bytes(); }
  bool is_at_its_path() const noexcept { return file_.is_at_its_path(); }
  std::unique_ptr<LedgerClient> register_client(const ClientSpec& spec) const;
  // Reaps the dead, then reads. Lines of living clients may change while they are read.
  LedgerSnapshot snapshot() const;
  // Settings of one client, which is named by place and process, so that nobody who took its place meanwhile
  // is hit (Misuse). In force from its next claim on.
  void set_limit(std::size_t slot, std::uint32_t pid, std::optional<std::int64_t> limit_bytes) const;
  void set_floor(std::size_t slot, std::uint32_t pid, std::int64_t floor_bytes) const;
  void set_priority(std::size_t slot, std::uint32_t pid, std::int32_t priority) const;
  // Asks it to come down by `bytes`; the level it is asked to come down to.
  std::int64_t recall(std::size_t slot, std::uint32_t pid, std::int64_t bytes, double lapse_s) const;
  // Waits until the generation differs from `generation`, at most `timeout_s`, and returns the present one.
  // Deaths and lapses change the generation once somebody notices; this looks when the time is over.
  std::uint32_t wait(std::uint32_t generation, double timeout_s) const;

 private:
  LedgerFile file_;
};

}  // namespace kvcached
