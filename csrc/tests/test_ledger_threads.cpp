// The ledger between threads of one process, which share a file description and so every lock of it, and the
// bell that wakes whoever waits.
#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "ledger/ledger.hpp"
#include "ledger/settings.hpp"
#include "ledger_folder.hpp"
#include "testing.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;
using Clock = std::chrono::steady_clock;

constexpr auto kPatience = std::chrono::seconds(60);

}  // namespace

TEST(ledger_threads_of_one_ledger_change_settings_one_after_the_other) {
  const LedgerFolder folder;
  const LedgerFile file(folder.path(), 100);
  const auto client = Ledger(folder.path(), std::nullopt).register_client({"a", 0, std::nullopt, 0});
  std::future<void> change;
  {
    const LedgerFile::AdminLock lock(file);
    change = std::async(std::launch::async, [&] { Settings(file, client->slot()).set_priority(3); });
    CHECK(change.wait_for(std::chrono::milliseconds(50)) == std::future_status::timeout);
  }
  change.get();
  CHECK_EQ(Ledger(folder.path(), std::nullopt).snapshot().clients[0].priority, 3);
}

// Closing took the mapping away from under a thread that was changing settings.
TEST(ledger_threads_may_change_settings_of_a_client_that_is_closed_meanwhile) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  for (int round = 0; round < 200; ++round) {
    const auto client = ledger.register_client({"a", 0, std::nullopt, 0});
    std::atomic<bool> has_begun{false};
    std::thread other([&] {
      try {
        for (;; has_begun = true) {
          client->set_priority(1);
          client->set_floor(1);
        }
      } catch (const Misuse&) {
      }
    });
    while (!has_begun) std::this_thread::yield();
    client->close();
    other.join();
    CHECK(ledger.snapshot().clients.empty());
    CHECK_EQ(ledger.register_client({"b", 100, std::nullopt, 0})->obtainable_bytes(), 100);
  }
}

// Two that reaped through one description both held the lock of a dead place; the second could clear whoever
// had taken it meanwhile.
TEST(ledger_threads_that_reap_together_never_clear_a_place_that_was_taken_anew) {
  const LedgerFolder folder;
  const LedgerFile shared(folder.path(), 100);
  std::atomic<bool> is_over{false};
  std::vector<std::thread> reapers;
  for (int i = 0; i < 2; ++i) {
    reapers.emplace_back([&] {
      while (!is_over.load()) shared.reap();
    });
  }
  for (int round = 0; round < 2000; ++round) {
    {
      const LedgerFile dying(folder.path(), std::nullopt);
      if (dying.try_lock_slot(0)) dying.segment().info[0].pid.store(1);
    }
    LedgerClient client(folder.path(), {"living", 0, std::nullopt, 0});
    CHECK(client.try_claim(100));
    std::this_thread::yield();
    CHECK_EQ(client.used_bytes(), 100);
    CHECK(shared.segment().info[client.slot()].pid.load() != 0);
  }
  is_over = true;
  for (std::thread& reaper : reapers) reaper.join();
}

// What a killed process left half done: the flag is down and nobody was woken.
TEST(ledger_threads_reaping_wakes_those_whom_the_dead_had_yet_to_wake) {
  const LedgerFolder folder;
  const LedgerFile file(folder.path(), 100);
  const Ledger observer(folder.path(), std::nullopt);
  {
    const LedgerFile dying(folder.path(), std::nullopt);
    REQUIRE(dying.try_lock_slot(0));
    dying.segment().header.high_slot.store(1);
    dying.segment().info[0].pid.store(1);
  }
  const std::uint32_t generation = file.segment().bell.generation.load();
  std::atomic<bool> has_woken{false};
  std::thread waiter([&] {
    file.sleep(generation, std::chrono::duration<double>(kPatience).count());
    has_woken = true;
  });
  for (const auto end = Clock::now() + kPatience; Clock::now() < end;) {
    if (file.segment().bell.has_waiters.load() != 0) break;
    std::this_thread::yield();
  }
  std::this_thread::sleep_for(
      std::chrono::milliseconds(50));  // let it fall asleep, else this is merely easier
  file.segment().bell.has_waiters.store(0);
  observer.snapshot();
  for (const auto end = Clock::now() + kPatience / 4; Clock::now() < end && !has_woken;) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(has_woken.load());
  file.bump_for_the_dead();
  waiter.join();
}
