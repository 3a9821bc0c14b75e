#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

#include "ledger/ledger_file.hpp"

namespace kvcached {

struct ClientSpec {
  std::string name;
  std::int64_t floor_bytes = 0;
  std::optional<std::int64_t> limit_bytes;
  std::int32_t priority = 0;
  ClientKind kind = ClientKind::kKv;
};

constexpr double kWantLapseS = 5.0;

struct Published {
  std::uint64_t range_base = 0;
  std::uint64_t range_bytes = 0;
  std::uint64_t rows_used = 0;
  std::uint64_t rows_backed = 0;
};

// One client's account in the ledger. Credit is a right to memory, not memory: claim before taking memory,
// release after it is gone. Claims and releases may come from any thread of the owner.
class LedgerClient {
 public:
  // Throws LedgerRefused if the floors no longer fit, Misuse for a bad spec or a full ledger.
  LedgerClient(const std::string& path, const ClientSpec& spec);
  LedgerClient(const LedgerClient&) = delete;
  LedgerClient& operator=(const LedgerClient&) = delete;
  ~LedgerClient() { leave(); }

  bool is_open() const noexcept { return file_.is_open(); }
  const std::string& name() const noexcept { return name_; }
  const std::string& path() const noexcept { return file_.path(); }
  bool is_in(const LedgerFile& file) const noexcept { return file_.is_same_as(file); }
  std::size_t slot() const noexcept { return slot_; }
  std::int64_t used_bytes() const { return clamp_bytes(hot().used_bytes.load()); }
  std::int64_t floor_bytes() const { return floor_of(hot()); }
  std::int64_t limit_bytes() const {
    return std::max<std::int64_t>(0, hot().limit_bytes.load());
  }  // kUnlimited: none
  std::int64_t budget_bytes() const { return file_.budget_bytes(); }
  std::uint32_t generation() const { return file_.segment().bell.generation.load(); }

  bool try_claim(std::int64_t bytes);
  void release(std::int64_t bytes);
  // What one claim could get this instant.
  std::int64_t obtainable_bytes();
  // The most this client could ever hold: its limit, and the budget less the floors of the others.
  std::int64_t attainable_bytes() const;
  void set_limit(std::optional<std::int64_t> limit_bytes);
  // Throws LedgerRefused, with the old floor kept, if the floors stop fitting.
  void set_floor(std::int64_t floor_bytes);
  void set_priority(std::int32_t priority);
  // Tells the others how many bytes beyond what it holds now this client was refused and still wants. What it
  // is granted from then on counts towards it, what it gives back adds to it; 0 takes it back. Whoever goes
  // on wanting says so again before `lapse_s` is over.
  void set_want(std::int64_t want_bytes, double lapse_s = kWantLapseS);
  // Tells the others how much of what it holds this client could give back without hurting running work.
  void set_spare(std::int64_t spare_bytes);
  // What this client should give back now: see reclaim.hpp.
  std::int64_t asked_bytes() const;
  bool others_want() const;
  // While set, claims and obtainable_bytes() leave what is wanted by those whose turn comes first: for new
  // work, as running work must go on. Within its floor a client yields to nobody.
  void set_yielding(bool is_yielding) { is_yielding_.store(is_yielding); }
  bool is_yielding() const noexcept { return is_yielding_.load(); }
  bool is_at_its_path() const noexcept { return file_.is_at_its_path(); }
  // Whether the file at our path is no longer this one: other processes share another budget now. Looks at
  // most once a second.
  bool is_cut_off();
  void publish(const Published& facts);
  // One line for messages: what is held, limited and left, and who holds the rest.
  std::string explain();
  // Gives up all credit and leaves. Misuse, with nothing changed, while a pool or range pays through this
  // client: its memory would stay and nobody would count it. Waits for settings that are being changed.
  void close();
  // Such a payer comes or goes (credit.hpp).
  void attach() noexcept { payers_.fetch_add(1); }
  void detach() noexcept { payers_.fetch_sub(1); }

 private:
  LedgerHotLine& hot() const { return file_.segment().hot[slot_]; }
  void take_slot();
  void write_lines(const ClientSpec& spec, std::int64_t limit_bytes);
  bool is_within_secured_floor(std::int64_t used_bytes) const;
  std::int64_t headroom_bytes() const;
  bool reap_if_due(std::int64_t interval_ns);
  void leave() noexcept;
  void queue_again();

  LedgerFile file_;
  std::string name_;
  std::size_t slot_ = kLedgerSlots;
  // The floor's word as it was when it was seen to fit beside all that others hold: every later claim of
  // theirs respects it, until it changes.
  std::atomic<std::uint64_t> secured_floor_word_{0};
  std::atomic<int> payers_{0};
  std::atomic<bool> is_yielding_{false};
  std::atomic<bool> is_cut_off_{false};
  std::atomic<std::int64_t> next_reap_ns_{0};
  std::atomic<std::int64_t> next_look_ns_{0};
};

}  // namespace kvcached
