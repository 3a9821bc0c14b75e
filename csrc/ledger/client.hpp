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
};

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
  ~LedgerClient() { close(); }

  bool is_open() const noexcept { return file_.is_open(); }
  const std::string& name() const noexcept { return name_; }
  std::size_t slot() const noexcept { return slot_; }
  std::int64_t used_bytes() const { return clamp_bytes(hot().used_bytes.load()); }
  std::int64_t floor_bytes() const { return clamp_bytes(hot().floor_bytes.load()); }
  std::int64_t limit_bytes() const {
    return std::max<std::int64_t>(0, hot().limit_bytes.load());
  }  // kUnlimited: none
  std::int64_t budget_bytes() const { return file_.budget_bytes(); }
  std::uint32_t generation() const { return file_.segment().header.generation.load(); }

  bool try_claim(std::int64_t bytes);
  void release(std::int64_t bytes);
  // What one claim could get this instant.
  std::int64_t obtainable_bytes();
  // The most this client could ever hold: its limit, and the budget less the floors of the others.
  std::int64_t attainable_bytes() const;
  void set_limit(std::optional<std::int64_t> limit_bytes);
  // Throws LedgerRefused, with the old floor kept, if the floors stop fitting.
  void set_floor(std::int64_t floor_bytes);
  // Tells the others how many bytes this client was refused and still wants; 0 once it is satisfied.
  void set_want(std::int64_t want_bytes);
  std::int64_t wanted_by_others_bytes() const { return wanted_by_others(file_.segment(), slot_); }
  void publish(const Published& facts);
  // One line for messages: what is held, limited and left.
  std::string explain();
  void close() noexcept;

 private:
  LedgerHotLine& hot() const { return file_.segment().hot[slot_]; }
  void take_slot();
  void write_info(const ClientSpec& spec);
  void require_floor_fits(std::int64_t floor_bytes, std::int64_t limit_bytes) const;
  std::int64_t headroom_bytes() const;
  bool reap_if_due();

  LedgerFile file_;
  std::string name_;
  std::size_t slot_ = kLedgerSlots;
  // Once seen to fit beside all that others hold, the floor is respected by every later claim of theirs.
  std::atomic<bool> is_floor_secured_{false};
  std::atomic<std::int64_t> next_reap_ns_{0};
};

}  // namespace kvcached
