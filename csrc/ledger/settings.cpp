#include "ledger/settings.hpp"

#include <algorithm>

#include "ledger/clock.hpp"
#include "ledger/names.hpp"
#include "vmm/error.hpp"

namespace kvcached {

std::int64_t require_bytes(const char* what, std::int64_t bytes, std::int64_t least) {
  if (bytes >= least && bytes <= kMaxBytes) return bytes;
  throw Misuse(std::string(what) + " of " + std::to_string(bytes) + " bytes: must be between " +
               std::to_string(least) + " and " + std::to_string(kMaxBytes));
}

std::int64_t limit_or_unlimited(std::optional<std::int64_t> limit_bytes) {
  return limit_bytes ? require_bytes("limit", *limit_bytes, 0) : kUnlimited;
}

std::int64_t until_ns(double lapse_s) {
  if (!(lapse_s > 0 && lapse_s <= kMostLapseS)) {
    throw Misuse("a lapse after " + std::to_string(lapse_s) + " s: must be above 0 and at most " +
                 std::to_string(kMostLapseS));
  }
  return coarse_now_ns() + static_cast<std::int64_t>(lapse_s * 1e9);
}

void require_floor_fits(const LedgerFile& file, std::size_t slot, const std::string& name,
                        std::int64_t floor_bytes, std::int64_t limit_bytes) {
  if (floor_bytes > limit_bytes) {
    throw LedgerRefused("'" + name + "': floor of " + std::to_string(floor_bytes) +
                        " bytes exceeds its limit of " + std::to_string(limit_bytes));
  }
  const std::int64_t others = floors_of_others(file.segment(), slot);
  const std::int64_t budget = file.budget_bytes();
  if (others <= budget - floor_bytes) return;
  throw LedgerRefused("floors do not fit: '" + name + "' asks for " + std::to_string(floor_bytes) +
                      " bytes, other clients are guaranteed " + std::to_string(others) + ", the budget of " +
                      file.path() + " is " + std::to_string(budget) + "; the smallest budget that works is " +
                      std::to_string(others + floor_bytes));
}

void store_floor(LedgerHotLine& line, std::int64_t floor_bytes) {
  const std::uint64_t changes = (line.floor_word.load() >> kFloorBits) + 1;
  line.floor_word.store(changes << kFloorBits | static_cast<std::uint64_t>(floor_bytes));
}

Settings::Settings(const LedgerFile& file, std::size_t slot, std::optional<std::uint32_t> pid)
    : file_(file), slot_(slot), lock_(file), name_("place " + std::to_string(slot)) {
  if (slot >= kLedgerSlots) throw Misuse("ledger " + file.path() + " has no " + name_);
  if (!pid) return;
  file.reap();
  const std::uint32_t present = file.segment().info[slot].pid.load();
  if (present != *pid || present == 0 || !file.is_slot_locked_elsewhere(slot)) {
    throw Misuse("ledger " + file.path() + ": process " + std::to_string(*pid) + " is no longer at " + name_);
  }
  name_ = read_name(file.segment().info[slot]);
}

void Settings::set_limit(std::optional<std::int64_t> limit_bytes) {
  const std::int64_t limit = limit_or_unlimited(limit_bytes);
  require_floor_fits(file_, slot_, name_, floor_of(hot()), limit);
  hot().limit_bytes.store(limit);
  file_.bump();
  file_.call(slot_);
}

void Settings::set_floor(std::int64_t floor_bytes) {
  require_bytes("floor", floor_bytes, 0);
  require_floor_fits(file_, slot_, name_, floor_bytes, hot().limit_bytes.load());
  store_floor(hot(), floor_bytes);
  file_.bump();
  file_.call_others();
}

void Settings::set_priority(std::int32_t priority) {
  hot().priority.store(priority);
  file_.bump();
  file_.call_others();
}

std::int64_t Settings::recall(std::int64_t bytes, double lapse_s) {
  require_bytes("recall", bytes, 0);
  const std::int64_t used = clamp_bytes(hot().used_bytes.load());
  const std::int64_t to = std::max(floor_of(hot()), used - bytes);
  LedgerInfoLine& info = file_.segment().info[slot_];
  info.recall_until_ns.store(0);  // never the new time with the old level
  info.recall_to_bytes.store(to);
  info.recall_until_ns.store(until_ns(lapse_s));
  file_.bump();
  file_.call(slot_);
  return to;
}

}  // namespace kvcached
