#include "ledger/client.hpp"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "ledger/clock.hpp"
#include "ledger/names.hpp"
#include "ledger/reclaim.hpp"
#include "ledger/settings.hpp"
#include "vmm/error.hpp"

namespace kvcached {
namespace {

constexpr int kClaimAttempts = 8;
// Looking for the dead costs system calls: a reader that polls does it seldom, a refused claim more often.
constexpr std::int64_t kReapOnLookNs = 100'000'000;
constexpr std::int64_t kReapOnRefusalNs = 5'000'000;
constexpr std::int64_t kLookAtPathNs = 1'000'000'000;
constexpr std::size_t kHoldersNamed = 3;

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

bool is_due(std::atomic<std::int64_t>& next_ns, std::int64_t interval_ns) {
  const std::int64_t now_ns = coarse_now_ns();
  if (now_ns < next_ns.load()) return false;
  next_ns.store(now_ns + interval_ns);
  return true;
}

bool does_another_want(const LedgerSegment& segment, std::size_t self) {
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    if (i != self && segment.hot[i].want_to_bytes.load() != 0) return true;
  }
  return false;
}

// "'a' 100, 'b' 50": those that hold most, other than `self`.
std::string name_holders(const LedgerSegment& segment, std::size_t self) {
  std::vector<std::pair<std::int64_t, std::size_t>> holders;
  for (std::size_t i = 0; i < high_slot(segment); ++i) {
    const std::int64_t bytes = committed_bytes(segment.hot[i]);
    if (i != self && bytes > 0) holders.emplace_back(bytes, i);
  }
  std::sort(holders.rbegin(), holders.rend());
  std::string text;
  for (std::size_t i = 0; i < std::min(holders.size(), kHoldersNamed); ++i) {
    const auto [bytes, slot] = holders[i];
    text += (i == 0 ? "'" : ", '") + read_name(segment.info[slot]) + "' " + std::to_string(bytes);
  }
  return text.empty() ? "nobody" : text;
}

}  // namespace

LedgerClient::LedgerClient(const std::string& path, const ClientSpec& spec)
    : file_(path, std::nullopt), name_(spec.name) {
  if (name_.empty() || name_.size() >= kNameBytes || name_.find('\0') != std::string::npos) {
    throw Misuse("client name '" + name_ + "' has " + std::to_string(name_.size()) +
                 " bytes of UTF-8: must be 1 to " + std::to_string(kNameBytes - 1) +
                 " and without zero bytes");
  }
  for (const char byte : name_) {
    const auto code = static_cast<unsigned char>(byte);
    if (code >= 0x20 && code != 0x7f) continue;
    throw Misuse("client name of " + std::to_string(name_.size()) + " bytes holds the control character " +
                 std::to_string(code) + ": people read it on a terminal");
  }
  const std::int64_t floor_bytes = require_bytes("floor", spec.floor_bytes, 0);
  const std::int64_t limit_bytes = limit_or_unlimited(spec.limit_bytes);

  file_.reap();
  const LedgerFile::AdminLock lock(file_);
  require_floor_fits(file_, slot_, name_, floor_bytes, limit_bytes);
  take_slot();
  write_lines(spec, limit_bytes);
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

void LedgerClient::write_lines(const ClientSpec& spec, std::int64_t limit_bytes) {
  LedgerHotLine& line = hot();
  clear_account(line);  // a dead predecessor's, if its slot was taken before anybody reaped it
  line.limit_bytes.store(limit_bytes);
  line.priority.store(spec.priority);
  line.kind.store(static_cast<std::uint32_t>(spec.kind));
  store_floor(line, spec.floor_bytes);
  LedgerInfoLine& info = file_.segment().info[slot_];
  write_name(info, name_);
  info.recall_until_ns.store(0);
  publish({});
  info.pid.store(static_cast<std::uint32_t>(::getpid()));  // last: from here on readers show the line
  file_.bump_for_the_dead();
  if (spec.floor_bytes > 0)
    file_.call_others(slot_);  // a floor that is not there yet is theirs to make room for
}

// Claim, look, take back if over. Looking first keeps hopeless claims from disturbing others, and so from
// waking them in turn: only a claim that met another half-way is counted as a change.
bool LedgerClient::try_claim(std::int64_t bytes) {
  require_bytes("claim", bytes, 0);
  LedgerHotLine& line = hot();
  const LedgerSegment& shared = file_.segment();
  bool has_collided = false;
  bool is_granted = false;
  for (int attempt = 0; attempt < kClaimAttempts && !is_granted; ++attempt) {
    if (bytes > headroom_bytes()) {
      if (used_bytes() + bytes <= limit_bytes() && reap_if_due(kReapOnRefusalNs)) continue;
      break;
    }
    const std::int64_t used = clamp_bytes(line.used_bytes.fetch_add(bytes)) + bytes;
    const bool is_within_limit = used <= limit_bytes();
    is_granted = is_within_limit && is_within_secured_floor(used);
    if (is_within_limit && !is_granted) {
      const std::uint64_t floor_word = line.floor_word.load();
      const std::int64_t left_bytes = budget_bytes() - committed_by_others(shared, slot_);
      is_granted = used <= left_bytes;
      if (is_granted && floor_of(floor_word) <= left_bytes) secured_floor_word_.store(floor_word);
    }
    if (is_granted) break;
    line.used_bytes.fetch_sub(bytes);
    has_collided = true;
    pause_a_while(attempt, slot_);
  }
  // Somebody may have been refused because of what was just taken back; and what is granted past a want has
  // to come from those who give.
  if (has_collided || (is_granted && does_another_want(shared, slot_))) file_.bump();
  if (is_granted && line.want_to_bytes.load() != 0) queue_again();
  return is_granted;
}

bool LedgerClient::is_within_secured_floor(std::int64_t used_bytes) const {
  const std::uint64_t floor_word = hot().floor_word.load();
  return floor_word == secured_floor_word_.load() && used_bytes <= floor_of(floor_word);
}

// More that could be claimed now, by what the others show. Negative when over.
std::int64_t LedgerClient::headroom_bytes() const {
  const LedgerSegment& shared = file_.segment();
  const std::uint64_t floor_word = hot().floor_word.load();
  std::int64_t room = budget_bytes() - committed_by_others(shared, slot_);
  if (is_yielding() && does_another_want(shared, slot_)) {
    const std::int64_t now_ns = coarse_now_ns();
    const std::int64_t ahead = ahead_bytes(read_standings(shared, now_ns), slot_, now_ns);
    room = std::max(room - ahead, std::min(room, floor_of(floor_word)));
  }
  if (floor_word == secured_floor_word_.load()) room = std::max(room, floor_of(floor_word));
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
  if (room < limit_bytes() - used_bytes() && reap_if_due(kReapOnLookNs)) room = headroom_bytes();
  return std::max<std::int64_t>(0, room);
}

bool LedgerClient::reap_if_due(std::int64_t interval_ns) {
  return is_due(next_reap_ns_, interval_ns) && file_.reap(slot_);
}

std::int64_t LedgerClient::attainable_bytes() const {
  const std::int64_t most = budget_bytes() - floors_of_others(file_.segment(), slot_);
  return std::max<std::int64_t>(0, std::min(limit_bytes(), most));
}

void LedgerClient::set_limit(std::optional<std::int64_t> limit_bytes) {
  Settings(file_, slot_).set_limit(limit_bytes);
}

void LedgerClient::set_floor(std::int64_t floor_bytes) {
  file_.reap(slot_);
  Settings(file_, slot_).set_floor(floor_bytes);
}

void LedgerClient::set_priority(std::int32_t priority) { Settings(file_, slot_).set_priority(priority); }

void LedgerClient::set_want(std::int64_t want_bytes, double lapse_s) {
  require_bytes("want", want_bytes, 0);
  const std::int64_t lapse_ns = until_ns(lapse_s);
  LedgerHotLine& line = hot();
  const std::int64_t now_ns = coarse_now_ns();
  const bool is_live = line.want_to_bytes.load() != 0 && line.want_until_ns.load() > now_ns;
  const bool has_had_its_turn = line.want_since_ns.load() <= now_ns - kPatienceNs - kTurnNs;
  const bool begins = want_bytes > 0 && (!is_live || has_had_its_turn);
  if (begins) line.want_since_ns.store(now_ns);
  line.want_until_ns.store(lapse_ns);
  const std::int64_t want_to_bytes = want_bytes > 0 ? used_bytes() + want_bytes : 0;
  if (line.want_to_bytes.exchange(want_to_bytes) == want_to_bytes && !begins) return;
  file_.bump();
  if (want_bytes > 0) file_.call_others(slot_);
}

// What was granted to a want ends its turn: the next one of its priority comes first. What lies within the
// floor was nobody's favour.
void LedgerClient::queue_again() {
  LedgerHotLine& line = hot();
  const std::int64_t used = used_bytes();
  if (used <= floor_of(line)) return;
  std::int64_t want_to_bytes = line.want_to_bytes.load();
  if (want_to_bytes <= used) line.want_to_bytes.compare_exchange_strong(want_to_bytes, 0);
  line.want_since_ns.store(coarse_now_ns());
  file_.bump();
}

void LedgerClient::set_spare(std::int64_t spare_bytes) {
  require_bytes("spare", spare_bytes, 0);
  if (hot().spare_bytes.exchange(spare_bytes) == spare_bytes) return;
  if (does_another_want(file_.segment(), slot_)) file_.bump();  // it, or somebody else, is asked for more
}

bool LedgerClient::others_want() const {
  return do_others_want(read_standings(file_.segment(), coarse_now_ns()), slot_);
}

std::int64_t LedgerClient::asked_bytes() const {
  return kvcached::asked_bytes(read_standings(file_.segment(), coarse_now_ns()), slot_);
}

bool LedgerClient::is_cut_off() {
  if (is_due(next_look_ns_, kLookAtPathNs)) is_cut_off_.store(!file_.is_at_its_path());
  return is_cut_off_.load();
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
         std::to_string(budget_bytes()) + ", could claim " + std::to_string(obtainable_bytes()) +
         " now; others hold or are guaranteed: " + name_holders(file_.segment(), slot_);
}

void LedgerClient::close() {
  if (file_.is_open() && payers_.load() != 0) {
    throw Misuse("'" + name_ + "' still pays for a pool or range that holds " + std::to_string(used_bytes()) +
                 " bytes: close that first, and let the last tensor over it go");
  }
  leave();
}

void LedgerClient::leave() noexcept {
  const auto quiet = file_.exclude_threads();
  if (!file_.is_open()) return;
  LedgerSegment& shared = file_.segment();
  if (slot_ < kLedgerSlots) {
    clear_account(shared.hot[slot_]);
    file_.bump();
    shared.info[slot_].pid.store(0);  // last: until all are woken, a death here has to be noticed
  }
  file_.close();  // drops the slot's lock, after its line is clean
}

}  // namespace kvcached
