// What may be changed about a client by itself or by another process of its user: under the admin lock, with
// effect on the next claim.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ledger/ledger_file.hpp"

namespace kvcached {

// Throws Misuse unless `bytes` is between `least` and kMaxBytes.
std::int64_t require_bytes(const char* what, std::int64_t bytes, std::int64_t least);
// Throws LedgerRefused unless the floor lies within the limit and beside the floors of the others.
void require_floor_fits(const LedgerFile& file, std::size_t slot, const std::string& name,
                        std::int64_t floor_bytes, std::int64_t limit_bytes);
constexpr double kMostLapseS = 1e6;
// The instant `lapse_s` from now. Throws Misuse for a time that is no time.
std::int64_t until_ns(double lapse_s);
// kUnlimited for none.
std::int64_t limit_or_unlimited(std::optional<std::int64_t> limit_bytes);
// Counts the change, so that its owner notices even if the old value comes back. Under the admin lock.
void store_floor(LedgerHotLine& line, std::int64_t floor_bytes);

class Settings {
 public:
  // Takes the admin lock. With a `pid`, throws Misuse unless that process lives in this slot.
  Settings(const LedgerFile& file, std::size_t slot, std::optional<std::uint32_t> pid = std::nullopt);

  // Throw LedgerRefused, with nothing changed, if floor, limit and the others' floors do not fit.
  void set_limit(std::optional<std::int64_t> limit_bytes);
  void set_floor(std::int64_t floor_bytes);
  void set_priority(std::int32_t priority);
  // Asks the client to come down by `bytes` from what it holds now, never below its floor, within `lapse_s`.
  // Returns how far it is asked to come down to.
  std::int64_t recall(std::int64_t bytes, double lapse_s);

 private:
  LedgerHotLine& hot() const { return file_.segment().hot[slot_]; }

  const LedgerFile& file_;
  std::size_t slot_;
  LedgerFile::AdminLock lock_;
  std::string name_;
};

}  // namespace kvcached
