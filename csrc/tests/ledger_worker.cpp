// The processes behind bench/ledger: what a claim costs, alone and against others, and what kill -9 leaves.
//   ledger_worker pair BLOCKS PAIRS
//   ledger_worker race WORKERS MILLISECONDS
//   ledger_worker hold WORKERS MILLISECONDS    the same, keeping some grants for a while
//   ledger_worker kill ROUNDS
// Each prints one JSON object. A worker keeps books of its own in memory shared with its auditor, never in
// the ledger's file: the two are compared.
#include <sched.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "child_process.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"

namespace {

using namespace kvcached;

constexpr std::size_t kMostWorkers = 16;
constexpr std::int64_t kMostUnits = 4;  // a worker holds 1 to 4 units at a time

// In a race with holds every so many-th grant is kept while the others take so many turns; by every second
// racer seldom, so that it is preempted at any instant and not always there.
constexpr std::int64_t kPairsPerHold[] = {64, 8192};
constexpr int kTurnsHeld = 4;

enum Phase : int { kIdle, kClaiming, kReleasing };

// One worker's books: written by it alone, read by the auditor, also after its death.
struct alignas(64) Account {
  std::atomic<int> phase{kIdle};
  std::atomic<int> is_at_rest{0};
  std::atomic<std::int64_t> held{0};
  std::atomic<std::int64_t> pairs{0};
  std::atomic<std::int64_t> refusals{0};
  std::atomic<std::int64_t> cpu_ns{0};
};

struct Board {
  alignas(64) std::atomic<int> ready{0};
  std::atomic<int> go{0};
  std::atomic<int> stop{0};
  std::atomic<int> rest{0};
  alignas(64) std::atomic<std::int64_t> held{0};
  alignas(64) std::atomic<std::int64_t> overgrants{0};
  std::atomic<std::int64_t> audits{0};
  Account accounts[kMostWorkers];
};

std::int64_t now_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void wait_for(const std::atomic<int>& word, int least) {
  for (int poll = 0; word.load() < least; ++poll) {
    if (poll == 200'000) throw std::runtime_error("a process did not answer for 20 s");
    ::usleep(100);
  }
}

// ---- pair: one process, nobody else -----------------------------------------------------------------------

int run_pair(int blocks, std::int64_t pairs) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 1 << 30);
  const auto client = ledger.register_client({"pair", 0, std::nullopt, 0});
  double best_ns = 1e18;
  for (int block = 0; block < blocks; ++block) {
    const std::int64_t start_ns = now_ns(CLOCK_MONOTONIC);
    for (std::int64_t pair = 0; pair < pairs; ++pair) {
      if (!client->try_claim(4096)) return 1;
      client->release(4096);
    }
    const auto taken_ns = static_cast<double>(now_ns(CLOCK_MONOTONIC) - start_ns);
    best_ns = std::min(best_ns, taken_ns / static_cast<double>(pairs));
  }
  std::printf("{\"pair_ns\": %.1f, \"blocks\": %d, \"pairs\": %lld}\n", best_ns, blocks,
              static_cast<long long>(pairs));
  return 0;
}

// ---- race: several processes, a budget below what they would hold together --------------------------------

// Keeps a grant while others run: then the budget is mostly held, and a grant too many stays to be seen.
void hold_a_while(Board& board, std::int64_t budget) {
  for (int turn = 0; turn < kTurnsHeld; ++turn) {
    ::sched_yield();
    if (board.held.load() > budget) board.overgrants.fetch_add(1);
  }
}

int race(const std::string& path, Board& board, std::size_t index, std::int64_t budget, bool holds) {
  const Ledger ledger(path, std::nullopt);
  const auto client = ledger.register_client({"racer", 0, std::nullopt, 0});
  Account& mine = board.accounts[index];
  std::int64_t pairs = 0, refusals = 0;
  std::minstd_rand random(static_cast<unsigned>(index) + 1);
  board.ready.fetch_add(1);
  wait_for(board.go, 1);
  const std::int64_t start_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
  while (board.stop.load(std::memory_order_relaxed) == 0) {
    const std::int64_t units = 1 + static_cast<std::int64_t>(random()) % kMostUnits;
    if (!client->try_claim(units)) {
      ++refusals;
      continue;
    }
    // After the grant and until before the release: what these books hold was granted at the same time.
    if (board.held.fetch_add(units) + units > budget) board.overgrants.fetch_add(1);
    if (++pairs % kPairsPerHold[index % 2] == 0 && holds) hold_a_while(board, budget);
    board.held.fetch_sub(units);
    client->release(units);
  }
  mine.cpu_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID) - start_ns;
  mine.pairs = pairs;
  mine.refusals = refusals;
  return 0;
}

int audit(Board& board, std::int64_t budget) {
  board.ready.fetch_add(1);
  while (board.stop.load() == 0) {
    if (board.held.load() > budget) board.overgrants.fetch_add(1);
    board.audits.fetch_add(1);
    ::usleep(50);  // all along, yet without taking a core from those it watches
  }
  return 0;
}

int run_race(std::size_t workers, int milliseconds, bool holds) {
  const LedgerFolder folder;
  const Shared<Board> board;
  const auto demand = static_cast<std::int64_t>(workers) * kMostUnits;
  const std::int64_t budget = demand * 3 / 8;
  const Ledger ledger(folder.path(), budget);
  std::vector<Child> children;
  for (std::size_t i = 0; i < workers; ++i) {
    children.emplace_back([&, i] { return race(folder.path(), *board, i, budget, holds); });
  }
  children.emplace_back([&] { return audit(*board, budget); });
  wait_for(board->ready, static_cast<int>(workers) + 1);
  board->go = 1;
  ::usleep(static_cast<useconds_t>(milliseconds) * 1000);
  board->stop = 1;
  int failed = 0;
  for (Child& child : children) failed += child.wait() != 0 ? 1 : 0;
  std::int64_t pairs = 0, refusals = 0, cpu_ns = 0;
  for (const Account& account : board->accounts) {
    pairs += account.pairs;
    refusals += account.refusals;
    cpu_ns += account.cpu_ns;
  }
  std::printf(
      "{\"pair_cpu_ns\": %.1f, \"pairs\": %lld, \"refusals\": %lld, \"overgrants\": %lld, \"audits\": %lld, "
      "\"left_bytes\": %lld, \"failed\": %d}\n",
      static_cast<double>(cpu_ns) / static_cast<double>(std::max<std::int64_t>(pairs, 1)),
      static_cast<long long>(pairs), static_cast<long long>(refusals),
      static_cast<long long>(board->overgrants.load()), static_cast<long long>(board->audits.load()),
      static_cast<long long>(ledger.snapshot().used_bytes), failed);
  return 0;
}

// ---- kill: workers killed at random instants while the others go on ---------------------------------------

constexpr std::size_t kKillWorkers = 4;
constexpr std::int64_t kKillBudget = 1000;

int haggle(const std::string& path, Board& board, std::size_t index, unsigned seed) {
  Account& mine = board.accounts[index];
  const Ledger ledger(path, std::nullopt);
  const auto client =
      ledger.register_client({"haggler", index % 2 == 0 ? kKillBudget / 16 : 0, std::nullopt, 0});
  std::mt19937 random(seed);
  std::int64_t held = 0;
  board.ready.fetch_add(1);
  for (;;) {
    if (held > 0 && random() % 2 == 0) {
      const std::int64_t bytes = 1 + static_cast<std::int64_t>(random()) % held;
      mine.phase = kReleasing;
      client->release(bytes);
      held -= bytes;
    } else {
      const std::int64_t bytes = 1 + static_cast<std::int64_t>(random() % (kKillBudget / 4));
      mine.phase = kClaiming;
      if (client->try_claim(bytes)) held += bytes;
    }
    mine.phase = kIdle;
    mine.held = held;
    while (board.rest.load() != 0) {
      mine.is_at_rest = 1;
      ::usleep(50);
    }
    mine.is_at_rest = 0;
  }
}

struct Toll {
  long kills = 0;
  long mid_operation = 0;
  std::int64_t leaked_bytes = 0;
  long wrong_sums = 0;
};

// The survivors rest; what the ledger holds must be what their books say, and all else must be claimable.
void audit_survivors(const Ledger& ledger, LedgerClient& witness, Board& board,
                     const std::array<bool, kKillWorkers>& is_dead, Toll& toll) {
  board.rest = 1;
  std::int64_t expected = 0;
  for (std::size_t i = 0; i < kKillWorkers; ++i) {
    if (is_dead[i]) continue;
    wait_for(board.accounts[i].is_at_rest, 1);
    expected += board.accounts[i].held;
  }
  const std::int64_t used = ledger.snapshot().used_bytes;
  toll.leaked_bytes += std::max<std::int64_t>(0, used - expected);
  toll.wrong_sums += used != expected ? 1 : 0;
  const std::int64_t rest = witness.obtainable_bytes();
  const bool is_whole = witness.try_claim(rest) && !witness.try_claim(1);
  if (!is_whole) ++toll.wrong_sums;
  witness.release(witness.used_bytes());
  board.rest = 0;
}

int run_kill(long rounds) {
  const LedgerFolder folder;
  const Shared<Board> board;
  const Ledger ledger(folder.path(), kKillBudget);
  const auto witness = ledger.register_client({"witness", 0, std::nullopt, 0});
  std::mt19937 random(20);
  Toll toll;
  std::vector<Child> workers;
  const auto start = [&](std::size_t i) {
    board->accounts[i].is_at_rest = 0;
    board->accounts[i].phase = kIdle;
    const unsigned seed = static_cast<unsigned>(random());
    return Child([&, i, seed] { return haggle(folder.path(), *board, i, seed); }, 600);
  };
  for (std::size_t i = 0; i < kKillWorkers; ++i) workers.push_back(start(i));
  wait_for(board->ready, kKillWorkers);
  for (long round = 0; round < rounds; ++round) {
    ::usleep(200 + random() % 3000);
    std::array<bool, kKillWorkers> is_dead{};
    const unsigned victims = 1 + static_cast<unsigned>(random()) % ((1U << kKillWorkers) - 1);
    for (std::size_t i = 0; i < kKillWorkers; ++i) {
      if ((victims >> i & 1U) == 0) continue;
      workers[i].kill();
      is_dead[i] = true;
      ++toll.kills;
      toll.mid_operation += board->accounts[i].phase != kIdle ? 1 : 0;
    }
    audit_survivors(ledger, *witness, *board, is_dead, toll);
    board->ready = 0;
    int started = 0;
    for (std::size_t i = 0; i < kKillWorkers; ++i) {
      if (!is_dead[i]) continue;
      workers[i] = start(i);
      ++started;
    }
    wait_for(board->ready, started);
  }
  for (Child& worker : workers) worker.kill();
  toll.leaked_bytes += ledger.snapshot().used_bytes;
  std::printf(
      "{\"rounds\": %ld, \"kills\": %ld, \"mid_operation\": %ld, \"leaked_bytes\": %lld, \"wrong_sums\": "
      "%ld}\n",
      rounds, toll.kills, toll.mid_operation, static_cast<long long>(toll.leaked_bytes), toll.wrong_sums);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "";
  try {
    if (what == "pair" && argc == 4) return run_pair(std::atoi(argv[2]), std::atoll(argv[3]));
    if ((what == "race" || what == "hold") && argc == 4) {
      return run_race(std::min<std::size_t>(std::strtoul(argv[2], nullptr, 10), kMostWorkers),
                      std::atoi(argv[3]), what == "hold");
    }
    if (what == "kill" && argc == 3) return run_kill(std::atol(argv[2]));
  } catch (const std::exception& error) {
    std::fprintf(stderr, "ledger_worker: %s\n", error.what());
    return 1;
  }
  std::fprintf(stderr,
               "usage: ledger_worker pair BLOCKS PAIRS | race|hold WORKERS MILLISECONDS | kill ROUNDS\n");
  return 2;
}
