#include "ledger/client.hpp"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "vmm/error.hpp"

namespace kvcached {
namespace {

constexpr int kClaimAttempts = 8;
constexpr std::int64_t kReapIntervalNs = 100'000'000;

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

// Two racers that both rolled back must not meet again in step.
void pause_a_while(int attempt, std::size_t slot) {
  const std::size_t rounds = (std::size_t{16} << attempt) + slot * 8;
  for (std::size_t i = 0; i < rounds; ++i) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#else
    std::atomic_signal_fence(std::memory_order_seq_cst);
#endif
  }
}

std::int64_t require_bytes(const char* what, std::int64_t bytes, std::int64_t least) {
  if (bytes >= least && bytes <= kMaxBytes) return bytes;
  throw Misuse(std::string(what) + " of " + std::to_string(bytes) + " bytes: must be between " +
               std::to_string(least) + " and " + std::to_string(kMaxBytes));
}

std::int64_t limit_or_unlimited(std::optional<std::int64_t> limit_bytes) {
  return limit_bytes ? require_bytes("limit", *limit_bytes, 0) : kUnlimited;
}

}  // namespace

LedgerClient::LedgerClient(const std::string& path, const ClientSpec& spec)
    : file_(path, std::nullopt), name_(spec.name) {
  if (name_.empty() || name_.size() >= kNameBytes || name_.find('\0') != std::string::npos) {
    throw Misuse("client name '" + name_ + "' has " + std::to_string(name_.size()) +
                 " bytes of UTF-8: must be 1 to " + std::to_string(kNameBytes - 1) +
                 " and without zero bytes");
  }
  const std::int64_t floor_bytes = require_bytes("floor", spec.floor_bytes, 0);
  const std::int64_t limit_bytes = limit_or_unlimited(spec.limit_bytes);

  file_.reap();
  const LedgerFile::AdminLock lock(file_);
  require_floor_fits(floor_bytes, limit_bytes);
  take_slot();
  hot().want_bytes.store(0);
  hot().used_bytes.store(0);  // a dead predecessor's, if its slot was taken before anybody reaped it
  hot().limit_bytes.store(limit_bytes);
  hot().floor_bytes.store(floor_bytes);
  write_info(spec);
}

void LedgerClient::take_slot() {
  for (std::size_t slot = 0; slot < kLedgerSlots; ++slot) {
    if (!file_.try_lock_slot(slot)) continue;
    slot_ = slot;
    std::atomic<std::uint32_t>& high = file_.segment().header.high_slot;
    if (high.load() <= slot) high.store(static_cast<std::uint32_t>(slot + 1));  // under the admin lock
    return;
  }
  throw Misuse("ledger " + file_.path() + ": all " + std::to_string(kLedgerSlots) + " places are taken");
}

void LedgerClient::write_info(const ClientSpec& spec) {
  LedgerInfoLine& info = file_.segment().info[slot_];
  std::array<std::uint64_t, kNameWords> words{};
  std::memcpy(words.data(), spec.name.data(), spec.name.size());
  for (std::size_t i = 0; i < kNameWords; ++i) info.name[i].store(words[i]);
  info.priority.store(spec.priority);
  publish({});
  info.pid.store(static_cast<std::uint32_t>(::getpid()));  // last: from here on readers show the line
}

void LedgerClient::require_floor_fits(std::int64_t floor_bytes, std::int64_t limit_bytes) const {
  if (floor_bytes > limit_bytes) {
    throw LedgerRefused("'" + name_ + "': floor of " + std::to_string(floor_bytes) +
                        " bytes exceeds its limit of " + std::to_string(limit_bytes));
  }
  const std::int64_t others = floors_of_others(file_.segment(), slot_);
  const std::int64_t budget = file_.budget_bytes();
  if (others <= budget - floor_bytes) return;
  throw LedgerRefused("floors do not fit: '" + name_ + "' asks for " + std::to_string(floor_bytes) +
                      " bytes, other clients are guaranteed " + std::to_string(others) + ", the budget of " +
                      file_.path() + " is " + std::to_string(budget) +
                      "; the smallest budget that works is " + std::to_string(others + floor_bytes));
}

// Claim, look, take back if over. Looking first keeps hopeless claims from disturbing others, and so from
// waking them in turn: only a claim that met another half-way is counted as a change.
bool LedgerClient::try_claim(std::int64_t bytes) {
  require_bytes("claim", bytes, 0);
  LedgerHotLine& line = hot();
  const LedgerSegment& shared = file_.segment();
  bool collided = false;
  for (int attempt = 0; attempt < kClaimAttempts; ++attempt) {
    if (bytes > headroom_bytes()) {
      if (used_bytes() + bytes <= limit_bytes() && file_.reap(slot_)) continue;
      break;
    }
    const std::int64_t used = clamp_bytes(line.used_bytes.fetch_add(bytes)) + bytes;
    const std::int64_t floor = floor_bytes();
    const bool within_limit = used <= limit_bytes();
    if (within_limit && used <= floor && is_floor_secured_.load()) return true;
    if (within_limit && committed_by_others(shared, slot_) + std::max(used, floor) <= budget_bytes()) {
      is_floor_secured_.store(true);
      return true;
    }
    line.used_bytes.fetch_sub(bytes);
    collided = true;
    pause_a_while(attempt, slot_);
  }
  if (collided) file_.bump();  // somebody may have been refused because of what was just taken back
  return false;
}

// More that could be claimed now, by what the others show. Negative when over.
std::int64_t LedgerClient::headroom_bytes() const {
  std::int64_t room = budget_bytes() - committed_by_others(file_.segment(), slot_);
  if (is_floor_secured_.load()) room = std::max(room, floor_bytes());
  return std::min(room, limit_bytes()) - used_bytes();
}

void LedgerClient::release(std::int64_t bytes) {
  require_bytes("release", bytes, 0);
  if (bytes == 0) return;
  std::int64_t used = hot().used_bytes.load();
  do {
    if (bytes > used) {
      throw Misuse("'" + name_ + "' releases " + std::to_string(bytes) + " bytes but holds " +
                   std::to_string(used));
    }
  } while (!hot().used_bytes.compare_exchange_weak(used, used - bytes));
  file_.bump();
}

std::int64_t LedgerClient::obtainable_bytes() {
  std::int64_t room = headroom_bytes();
  // A reader that only ever looks would otherwise never learn that a holder has died.
  if (room < limit_bytes() - used_bytes() && reap_if_due()) room = headroom_bytes();
  return std::max<std::int64_t>(0, room);
}

bool LedgerClient::reap_if_due() {
  const std::int64_t now_ns = monotonic_ns();
  if (now_ns < next_reap_ns_.load()) return false;
  next_reap_ns_.store(now_ns + kReapIntervalNs);
  return file_.reap(slot_);
}

std::int64_t LedgerClient::attainable_bytes() const {
  const std::int64_t most = budget_bytes() - floors_of_others(file_.segment(), slot_);
  return std::max<std::int64_t>(0, std::min(limit_bytes(), most));
}

void LedgerClient::set_limit(std::optional<std::int64_t> limit_bytes) {
  const std::int64_t limit = limit_or_unlimited(limit_bytes);
  const LedgerFile::AdminLock lock(file_);
  require_floor_fits(hot().floor_bytes.load(), limit);
  hot().limit_bytes.store(limit);
  file_.bump();
}

void LedgerClient::set_floor(std::int64_t floor_bytes) {
  require_bytes("floor", floor_bytes, 0);
  file_.reap(slot_);
  const LedgerFile::AdminLock lock(file_);
  require_floor_fits(floor_bytes, hot().limit_bytes.load());
  if (floor_bytes > hot().floor_bytes.load()) is_floor_secured_.store(false);
  hot().floor_bytes.store(floor_bytes);
  file_.bump();
}

void LedgerClient::set_want(std::int64_t want_bytes) {
  require_bytes("want", want_bytes, 0);
  if (hot().want_bytes.exchange(want_bytes) < want_bytes) file_.bump();
}

void LedgerClient::publish(const Published& facts) {
  LedgerInfoLine& info = file_.segment().info[slot_];
  info.range_base.store(facts.range_base, std::memory_order_relaxed);
  info.range_bytes.store(facts.range_bytes, std::memory_order_relaxed);
  info.rows_used.store(facts.rows_used, std::memory_order_relaxed);
  info.rows_backed.store(facts.rows_backed, std::memory_order_relaxed);
}

std::string LedgerClient::explain() {
  const std::int64_t limit = limit_bytes();
  return "'" + name_ + "' holds " + std::to_string(used_bytes()) + " bytes of credit, limit " +
         (limit == kUnlimited ? std::string("none") : std::to_string(limit)) + ", budget " +
         std::to_string(budget_bytes()) + ", could claim " + std::to_string(obtainable_bytes()) + " now";
}

void LedgerClient::close() noexcept {
  if (!file_.is_open()) return;
  LedgerSegment& shared = file_.segment();
  if (slot_ < kLedgerSlots) {
    shared.info[slot_].pid.store(0);
    shared.hot[slot_].want_bytes.store(0);
    shared.hot[slot_].used_bytes.store(0);
    shared.hot[slot_].floor_bytes.store(0);
    file_.bump();
  }
  file_.close();  // drops the slot's lock, after its line is clean
}

}  // namespace kvcached
