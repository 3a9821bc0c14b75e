// The ledger between processes: races, kill -9 at any instant, forked children. Every child ends by itself.
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <random>
#include <vector>

#include "child_process.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "testing.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;

// What forked children tell each other and the test.
struct Board {
  std::atomic<std::int64_t> held{0};
  std::atomic<long> grants{0};
  std::atomic<long> refusals{0};
  std::atomic<long> overgrants{0};
  std::atomic<int> ready{0};
};
using SharedPage = Shared<Board>;

void wait_until_ready(const SharedPage& shared, int count) {
  for (int i = 0; i < 10000 && shared->ready.load() < count; ++i) ::usleep(1000);
  REQUIRE(shared->ready.load() >= count);
}

// Claims and releases at random, and keeps a second set of books that shows any grant beyond the budget.
int haggle(const std::string& path, const SharedPage& shared, unsigned seed, std::int64_t budget,
           int rounds) {
  const Ledger ledger(path, std::nullopt);
  const auto client = ledger.register_client({"worker", seed % 2 == 0 ? budget / 16 : 0, std::nullopt, 0});
  std::mt19937 random(seed);
  shared->ready.fetch_add(1);
  std::int64_t mine = 0;
  for (int i = 0; i < rounds; ++i) {
    const auto bytes = static_cast<std::int64_t>(1 + random() % (budget / 2));
    if (mine > 0 && random() % 2 == 0) {
      shared->held.fetch_sub(mine);
      client->release(mine);
      mine = 0;
    } else if (client->try_claim(bytes)) {
      shared->grants.fetch_add(1);
      if (shared->held.fetch_add(bytes) + bytes > budget) shared->overgrants.fetch_add(1);
      mine += bytes;
    } else {
      shared->refusals.fetch_add(1);
    }
  }
  shared->held.fetch_sub(mine);
  client->release(mine);
  return 0;
}

}  // namespace

TEST(ledger_processes_racing_for_credit_never_get_more_than_the_budget) {
  const LedgerFolder folder;
  const SharedPage shared;
  constexpr std::int64_t kBudget = 1000;
  const Ledger ledger(folder.path(), kBudget);
  std::vector<Child> children;
  for (unsigned seed = 1; seed <= 4; ++seed) {
    children.emplace_back([&, seed] { return haggle(folder.path(), shared, seed, kBudget, 60000); });
  }
  for (Child& child : children) CHECK_EQ(child.wait(), 0);
  CHECK_EQ(shared->overgrants.load(), 0);
  CHECK(shared->grants.load() > 1000);
  CHECK(shared->refusals.load() > 100);
  CHECK_EQ(ledger.snapshot().used_bytes, 0);
}

TEST(ledger_processes_credit_for_one_is_never_granted_to_two) {
  const LedgerFolder folder;
  const SharedPage shared;
  const Ledger ledger(folder.path(), 10);
  const auto grab = [&] {
    const auto client = Ledger(folder.path(), std::nullopt).register_client({"grab", 0, std::nullopt, 0});
    shared->ready.fetch_add(1);
    while (shared->ready.load() < 2) {
    }
    for (int i = 0; i < 200000; ++i) {
      if (!client->try_claim(10)) continue;
      if (shared->held.fetch_add(1) != 0) shared->overgrants.fetch_add(1);
      shared->grants.fetch_add(1);
      shared->held.fetch_sub(1);
      client->release(10);
    }
    return 0;
  };
  Child one(grab);
  Child two(grab);
  CHECK_EQ(one.wait(), 0);
  CHECK_EQ(two.wait(), 0);
  CHECK_EQ(shared->overgrants.load(), 0);
  CHECK(shared->grants.load() > 1000);
}

TEST(ledger_processes_a_release_wakes_a_waiter_that_has_no_other_way_out) {
  const LedgerFolder folder;
  const SharedPage shared;
  const Ledger ledger(folder.path(), 10);
  const auto holder = ledger.register_client({"holder", 0, std::nullopt, 0});
  CHECK(holder->try_claim(10));
  Child waiter([&] {
    ::alarm(20);  // a lost wake-up ends here
    const Ledger mine(folder.path(), std::nullopt);
    const std::uint32_t generation = mine.snapshot().generation;
    shared->ready = 1;
    while (mine.wait(generation, 1e6) == generation) {
    }
    return 0;
  });
  wait_until_ready(shared, 1);
  ::usleep(50'000);  // let it fall asleep; if it has not, the test is merely easier
  holder->release(10);
  CHECK_EQ(waiter.wait(), 0);
}

TEST(ledger_processes_killed_at_any_instant_leave_nothing_behind) {
  const LedgerFolder folder;
  const SharedPage shared;
  constexpr std::int64_t kBudget = 1000;
  const Ledger ledger(folder.path(), kBudget);
  const auto witness = ledger.register_client({"witness", 100, std::nullopt, 0});
  CHECK(witness->try_claim(100));
  std::mt19937 random(3);
  for (int round = 0; round < 60; ++round) {
    shared->ready = 0;
    Child one([&] { return haggle(folder.path(), shared, 1, kBudget, 1 << 30); });
    Child two([&] { return haggle(folder.path(), shared, 2, kBudget, 1 << 30); });
    wait_until_ready(shared, 2);
    ::usleep(random() % 3000);
    one.kill();
    two.kill();
    const LedgerSnapshot snapshot = ledger.snapshot();
    CHECK_EQ(snapshot.used_bytes, 100);
    CHECK_EQ(snapshot.clients.size(), 1U);
    CHECK(witness->try_claim(900));
    witness->release(900);
  }
}

TEST(ledger_processes_killed_while_they_come_and_go_leave_a_usable_file) {
  const LedgerFolder folder;
  constexpr std::int64_t kBudget = 1000;
  const Ledger ledger(folder.path(), kBudget);
  std::mt19937 random(4);
  for (int round = 0; round < 60; ++round) {
    Child child([&] {
      for (;;) {
        const Ledger mine(folder.path(), kBudget);
        mine.register_client({"brief", 600, std::nullopt, 0})->try_claim(700);
      }
      return 0;
    });
    ::usleep(random() % 2000);
    child.kill();
    const auto client = ledger.register_client({"after", 1000, std::nullopt, 0});
    CHECK(client->try_claim(1000));
  }
}

TEST(ledger_processes_a_dead_holder_is_noticed_by_those_who_only_look) {
  const LedgerFolder folder;
  const SharedPage shared;
  const Ledger ledger(folder.path(), 1000);
  const auto client = ledger.register_client({"me", 0, std::nullopt, 0});
  Child holder([&] {
    const auto other = Ledger(folder.path(), std::nullopt).register_client({"holder", 0, std::nullopt, 0});
    other->try_claim(1000);
    shared->ready = 1;
    ::pause();
    return 0;
  });
  wait_until_ready(shared, 1);
  CHECK_EQ(client->obtainable_bytes(), 0);
  const std::uint32_t before = client->generation();
  holder.kill();
  CHECK(ledger.wait(before, 0.05) != before);
  CHECK_EQ(client->obtainable_bytes(), 1000);
}

TEST(ledger_processes_a_forked_child_does_not_keep_its_parent_alive) {
  const LedgerFolder folder;
  const SharedPage shared;
  const Ledger ledger(folder.path(), 1000);
  Child parent([&] {
    const auto client = Ledger(folder.path(), std::nullopt).register_client({"parent", 0, std::nullopt, 0});
    client->try_claim(1000);
    Child grandchild([&] {
      bool refused = false;
      try {
        client->try_claim(1);
      } catch (const Misuse&) {
        refused = true;
      }
      shared->held = refused ? 1 : 0;
      shared->grants = ::getpid();
      shared->ready = 1;
      ::pause();
      return 0;
    });
    ::pause();
    return 0;
  });
  wait_until_ready(shared, 1);
  CHECK_EQ(shared->held.load(), 1);
  CHECK_EQ(ledger.snapshot().used_bytes, 1000);
  parent.kill();
  CHECK_EQ(ledger.snapshot().used_bytes, 0);
  CHECK_EQ(::kill(static_cast<pid_t>(shared->grants.load()), SIGKILL), 0);
}

TEST(ledger_processes_two_waiters_for_one_credit_both_get_their_turns) {
  const LedgerFolder folder;
  constexpr int kTurns = 300;
  const Ledger ledger(folder.path(), 10);
  const auto take_turns = [&] {
    const Ledger mine(folder.path(), std::nullopt);
    const auto client = mine.register_client({"turns", 0, std::nullopt, 0});
    for (int turn = 0; turn < kTurns;) {
      const std::uint32_t generation = client->generation();
      if (!client->try_claim(10)) {
        mine.wait(generation, 20.0);  // a lost wake-up would stay here until the alarm
        continue;
      }
      ++turn;
      ::usleep(10);
      client->release(10);
    }
    return 0;
  };
  Child one(take_turns);
  Child two(take_turns);
  CHECK_EQ(one.wait(), 0);
  CHECK_EQ(two.wait(), 0);
}
