#include "arena/warm_reserve.hpp"

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

namespace kvcached {
namespace {

// Pages mapped at a time: a step that needs memory meanwhile waits for so many at most.
constexpr std::size_t kPagesAtOnce = 4;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

WarmReserve::WarmReserve(KvPool& pool, std::mutex& mutex, std::size_t max_bytes, bool gives_back)
    : pool_(pool),
      mutex_(mutex),
      max_bytes_(max_bytes),
      gives_back_(gives_back && pool.client() != nullptr),
      bell_(gives_back_ ? pool.client() : nullptr),
      marks_(max_bytes / pool.geometry().page_set_bytes()) {
  if (gives_back_ || marks_.max_pages() > 0) thread_ = std::thread([this] { run(); });
}

void WarmReserve::look() {
  const std::size_t before = std::exchange(empty_pages_, pool_.pages_empty());
  if (empty_pages_ > before) {
    drawn_pages_ -= std::min(drawn_pages_, empty_pages_ - before);
    if (is_owed_) bell_.ring();
  }
  if (empty_pages_ >= before) return;
  drawn_pages_ += before - empty_pages_;
  burst_pages_ = std::max(burst_pages_, drawn_pages_);
  is_resting_ = false;
  if (marks_.max_pages() == 0 || is_called_ ||
      (!has_missed_ && (is_refused_ || empty_pages_ >= marks_.low_pages())))
    return;
  has_missed_ = false;
  is_called_ = true;
  bell_.ring();
}

void WarmReserve::trimmed(std::size_t keep_rows) noexcept {
  empty_pages_ = pool_.pages_empty();
  keep_rows_ = keep_rows;
  is_refused_ = false;
  promised_rows_ = 0;
  is_resting_ = empty_pages_ < marks_.low_pages();
}

void WarmReserve::realigned() noexcept {
  marks_ = WarmMarks(max_bytes_ / pool_.geometry().page_set_bytes());
  drawn_pages_ = burst_pages_ = 0;
  trimmed(0);
}

void WarmReserve::settle(std::unique_lock<std::mutex>& lock) {
  settled_.wait(lock, [this] { return !is_growing_; });
}

void WarmReserve::stop() noexcept {
  if (!thread_.joinable()) return;
  if (!owner_.is_current()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_stopping_ = true;
  }
  bell_.ring();
  thread_.join();
}

void WarmReserve::run() {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!is_stopping_) {
    const std::uint32_t calls = bell_.count();  // before looking: a call from here on ends the sleep at once
    serve(lock);
    const bool could_give = gives_back_ && !pool_.is_closed() && pool_.pages_empty() > 0;
    lock.unlock();
    bell_.sleep(calls, could_give);
    lock.lock();
  }
}

// Nothing that fails here is an error of the owner's: its next call meets the cause, and says so.
void WarmReserve::serve(std::unique_lock<std::mutex>& lock) {
  try {
    if (std::exchange(is_called_, false)) fill(lock);
    if (gives_back_ && !pool_.is_closed()) give_back();
  } catch (const std::exception&) {
  }
}

void WarmReserve::give_back() {
  const bool is_wanted = pool_.others_want();
  const std::size_t page_bytes = pool_.geometry().page_set_bytes();
  const std::size_t asked_pages = (pool_.asked_bytes() + page_bytes - 1) / page_bytes;
  is_owed_ = is_wanted || asked_pages > 0;
  if (!is_owed_ || pool_.pages_empty() == 0) return;
  const std::size_t free_rows = pool_.rows_free_backed();
  const std::size_t asked_rows = is_wanted ? free_rows : asked_pages * pool_.geometry().rows_per_page();
  pool_.trim(std::max(promised_rows_, free_rows - std::min(free_rows, asked_rows)));
  empty_pages_ = pool_.pages_empty();
}

void WarmReserve::fill(std::unique_lock<std::mutex>& lock) {
  marks_.saw_burst(std::exchange(burst_pages_, 0), now_ns());
  drawn_pages_ = 0;
  while (!is_stopping_ && !is_resting_ && pool_.pages_empty() < marks_.high_pages() && !pool_.others_want()) {
    is_refused_ = !grow(lock, std::min(kPagesAtOnce, marks_.high_pages() - pool_.pages_empty()));
    if (is_refused_) break;
  }
}

// Whether pages came. Any refusal is an answer: the next step that lacks memory asks for itself and says why.
bool WarmReserve::grow(std::unique_lock<std::mutex>& lock, std::size_t pages) {
  bool has_mapped = false;
  try {
    std::optional<Growth> growth = pool_.begin_growth(pages);
    if (!growth) return false;
    is_growing_ = true;
    lock.unlock();
    try {
      growth->map();
      has_mapped = true;
    } catch (const std::exception&) {
    }
    lock.lock();
    is_growing_ = false;
    pool_.finish_growth(std::move(*growth));
    if (is_resting_) pool_.trim(keep_rows_);  // the owner gave up its memory while this was mapped
  } catch (const std::exception&) {
    has_mapped = false;
  }
  empty_pages_ = pool_.pages_empty();
  settled_.notify_all();
  return has_mapped;
}

}  // namespace kvcached
