#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "ledger/segment.hpp"

namespace kvcached {

// The ledger file, opened and mapped through a file description of its own.
//
// Liveness is an OFD lock on one byte per slot: the kernel drops it when the description's last descriptor
// closes, so on any death. Such a lock lives in the description, so two holders in one process need two
// LedgerFiles, and a forked child must not keep its parent's descriptor: a pthread_atfork handler closes it.
class LedgerFile {
 public:
  // budget given: creates the file (and its folder) or re-initialises one without living clients if its
  // budget differs. Without: the file must exist. Throws Misuse for a file or folder that is not privately
  // ours.
  LedgerFile(const std::string& path, std::optional<std::int64_t> budget_bytes);
  LedgerFile(const LedgerFile&) = delete;
  LedgerFile& operator=(const LedgerFile&) = delete;
  ~LedgerFile();

  // Removes a ledger of any version if no living process has it open; whether it did. Throws Misuse for a
  // file or folder that is not privately ours, and for a file that does not begin as a ledger does;
  // `even_if_blank` lets one go that is empty or was never finished.
  static bool remove_unused(const std::string& path, bool even_if_blank = false);

  const std::string& path() const noexcept { return path_; }
  bool is_open() const noexcept { return segment_ != nullptr; }
  // Throws Misuse when closed, or in a child that inherited this object over fork.
  LedgerSegment& segment() const;
  std::int64_t budget_bytes() const { return clamp_bytes(segment().header.budget_bytes.load()); }
  // False once the file was deleted or another put in its place: our clients and those of the new one share
  // no budget any more.
  bool is_at_its_path() const noexcept;
  bool is_same_as(const LedgerFile& other) const noexcept;
  // Not while another thread is in a call of this object, unless all such calls are changes of settings or
  // reaping and what `exclude_threads` gave is held.
  void close() noexcept;
  struct Quiet {
    std::unique_lock<std::mutex> admin, reap;
  };
  Quiet exclude_threads() const;

  bool try_lock_slot(std::size_t slot) const noexcept;
  void unlock_slot(std::size_t slot) const noexcept;
  bool is_slot_locked_elsewhere(std::size_t slot) const noexcept;
  // Frees the slots of dead clients other than `self`; true if there were any. Threads take turns, as locks
  // of one description do not keep them apart.
  bool reap(std::size_t self = kLedgerSlots) const;
  // Counts a change that may let a waiter through, and wakes all waiters.
  void bump() const;
  // The same after a death: whoever died may have cleared the waiters' flag and not woken them yet.
  void bump_for_the_dead() const;
  // Wakes whoever sleeps on the calls of one place (call_bell.hpp), or of all places in use but `self`.
  void call(std::size_t slot) const;
  void call_others(std::size_t self = kLedgerSlots) const;
  // Bumps once for every want that has lapsed and every turn that has ended, whoever notices first.
  void ring_for_lapses() const;
  // Sleeps while the generation is `generation`, at most `timeout_s`; wakes early for no reason at times.
  void sleep(std::uint32_t generation, double timeout_s) const;

  // Serialises registration and changes of floors, between processes and between threads. Held for
  // microseconds; given up after some seconds.
  class AdminLock {
   public:
    explicit AdminLock(const LedgerFile& file);
    AdminLock(const AdminLock&) = delete;
    AdminLock& operator=(const AdminLock&) = delete;
    ~AdminLock();

   private:
    const LedgerFile& file_;
    const std::lock_guard<std::mutex> threads_;
  };

 private:
  friend class ForkRegistry;

  explicit LedgerFile(const std::string& path);  // nothing opened yet
  void open_and_map(std::optional<std::int64_t> budget_bytes);
  void open_file(bool create);
  void map(bool create);
  void reserve_room(std::size_t present_bytes);
  void initialise(std::int64_t budget_bytes);
  void adopt(std::optional<std::int64_t> budget_bytes);
  // Throws before a mutex that a forked child might find locked is touched.
  std::mutex& usable(std::mutex& mutex) const;
  void orphan() noexcept;  // in a forked child: forget, without touching the mapping

  std::string path_;
  int fd_ = -1;
  LedgerSegment* segment_ = nullptr;
  bool is_orphan_ = false;
  mutable std::mutex admin_mutex_;
  mutable std::mutex reap_mutex_;
};

}  // namespace kvcached
