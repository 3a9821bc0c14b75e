// Keeps empty pages ready, so that a step finds memory instead of waiting for it.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <thread>

#include "arena/kv_pool.hpp"
#include "arena/warm_marks.hpp"
#include "ledger/call_bell.hpp"
#include "vmm/process.hpp"

namespace kvcached {

// A thread that fills a pool's reserve of empty pages up to the high mark once it fell below the low one.
// Warm pages are ordinary empty pages: paid for, counted, taken first, and the first that trim() gives back.
// It sleeps while nobody takes pages, and fills nothing while another client waits for memory. Where it
// `gives_back`, it also wakes when the ledger asks for more, and gives empty pages back: all while another
// client waits, else as many as are asked for. Rows that grow() made free stay until alloc() took them.
//
// The thread maps without the pool's mutex. It never knows Python, hence never holds the GIL.
class WarmReserve {
 public:
  // `mutex` guards every call of `pool`; both must outlive this. At most `max_bytes` are kept; where
  // that is less than a page and nobody could ask, no thread is started. "Under the mutex" below: the caller
  // holds it.
  WarmReserve(KvPool& pool, std::mutex& mutex, std::size_t max_bytes, bool gives_back = false);
  WarmReserve(const WarmReserve&) = delete;
  WarmReserve& operator=(const WarmReserve&) = delete;
  ~WarmReserve() { stop(); }

  // Under the mutex, after rows or pages came or went. No system call unless the reserve fell below its mark.
  void observe() {
    if (thread_.joinable()) look();
  }
  // Under the mutex, after the owner was told that so many rows are free and backed: they stay so until it
  // has taken as many, or trims.
  void promised(std::size_t rows) noexcept { promised_rows_ = std::max(promised_rows_, rows); }
  void taken(std::size_t rows) noexcept { promised_rows_ -= std::min(promised_rows_, rows); }
  // Under the mutex, after a step had to map pages itself.
  void missed() noexcept {
    has_missed_ = true;
    empty_pages_ = pool_.pages_empty();
  }
  // Under the mutex, after a trim to `keep_rows`: where it left less than the low mark the owner wants the
  // memory gone, and nothing is filled until pages are taken again.
  void trimmed(std::size_t keep_rows) noexcept;
  // Under the mutex, after the pool took another geometry: what was learnt of its pages is forgotten.
  void realigned() noexcept;
  // Under the mutex: pages worth keeping when trimming.
  std::size_t keep_pages() const noexcept { return marks_.high_pages(); }
  // Waits, giving up `lock` of the mutex meanwhile, until no growth of the filler is under way.
  void settle(std::unique_lock<std::mutex>& lock);
  // Not under the mutex: ends the thread. Idempotent.
  void stop() noexcept;

 private:
  void look();
  void run();
  void serve(std::unique_lock<std::mutex>& lock);
  void fill(std::unique_lock<std::mutex>& lock);
  void give_back();
  bool grow(std::unique_lock<std::mutex>& lock, std::size_t pages);

  KvPool& pool_;
  std::mutex& mutex_;
  const std::size_t max_bytes_;
  const bool gives_back_;  // where there is a ledger
  const CallBell bell_;
  OwnerProcess owner_;  // the thread does not exist in a forked child

  // All guarded by mutex_.
  WarmMarks marks_;
  std::size_t empty_pages_ = 0;  // when last looked
  std::size_t drawn_pages_ = 0;  // taken and not returned since the filler last looked
  std::size_t burst_pages_ = 0;  // the most of that
  std::size_t keep_rows_ = 0;    // of the last trim
  std::size_t promised_rows_ = 0;
  bool is_owed_ = false;  // more was asked for than there was: what gets empty goes back
  bool has_missed_ = false;
  bool is_refused_ = false;  // the last fill was: not tried again until a step maps or pages go
  bool is_resting_ = false;
  bool is_called_ = false;
  bool is_growing_ = false;
  bool is_stopping_ = false;
  std::condition_variable settled_;

  std::thread thread_;
};

}  // namespace kvcached
