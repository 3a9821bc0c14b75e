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
  std::int64_t want_bytes = 0;
  std::int32_t priority = 0;
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
  std::unique_ptr<LedgerClient> register_client(const ClientSpec& spec) const;
  // Reaps the dead, then reads. Lines of living clients may change while they are read.
  LedgerSnapshot snapshot() const;
  // Waits until the generation differs from `generation`, at most `timeout_s`, and returns the present one. A
  // death changes the generation once somebody reaps; this does so when the time is over.
  std::uint32_t wait(std::uint32_t generation, double timeout_s) const;

 private:
  LedgerFile file_;
};

}  // namespace kvcached
