// The warm reserve beside a pool that is used meanwhile.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "arena/kv_pool.hpp"
#include "arena/warm_reserve.hpp"
#include "backends.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "vmm/error.hpp"
#include "vmm/forwarding_vmm.hpp"
#include "vmm/host_vmm.hpp"
#include "vmm/limited_vmm.hpp"

namespace {

using namespace kvcached;

constexpr std::size_t kRowsPerPage = 16;
constexpr std::size_t kPageBytes = 4096;
constexpr std::size_t kMaxPages = 40;

Geometry geometry() {
  GeometrySpec spec;
  spec.rows = 512 * static_cast<std::int64_t>(kRowsPerPage);
  spec.row_bytes = {static_cast<std::int64_t>(kPageBytes / kRowsPerPage)};
  spec.granularity_bytes = kPageBytes;
  spec.page_bytes = kPageBytes;
  return Geometry(spec);
}

// A pool as the bindings hold it, and the calls of an engine.
class Engine {
 public:
  explicit Engine(std::shared_ptr<LedgerClient> client = nullptr,
                  std::shared_ptr<Vmm> vmm = std::make_shared<HostVmm>(false), bool gives_back = false,
                  std::size_t max_pages = kMaxPages)
      : pool(std::move(vmm), geometry(), std::move(client)),
        warm(pool, mutex, max_pages * kPageBytes, gives_back) {}

  // A step that takes `pages` whole pages; whether it found them ready.
  bool step(std::size_t pages) {
    const std::size_t rows = pages * kRowsPerPage;
    std::unique_lock<std::mutex> lock(mutex);
    const bool was_ready = pool.rows_free_backed() >= rows;
    if (!was_ready) {
      warm.settle(lock);
      REQUIRE(pool.grow(rows));
      warm.missed();
    }
    std::vector<std::int64_t> ids(rows);
    REQUIRE(pool.alloc(rows, ids.data()));
    warm.observe();
    taken.insert(taken.end(), ids.begin(), ids.end());
    return was_ready;
  }

  void free_all() {
    const std::lock_guard<std::mutex> lock(mutex);
    pool.free(taken.data(), taken.size());
    taken.clear();
    warm.observe();
  }

  void trim(std::size_t keep_rows) {
    const std::lock_guard<std::mutex> lock(mutex);
    pool.trim(keep_rows);
    warm.trimmed(keep_rows);
  }

  void realign() {
    std::unique_lock<std::mutex> lock(mutex);
    warm.settle(lock);
    pool.realign(geometry());
    warm.realigned();
  }

  // Down to what the reserve asks to keep.
  void trim_to_mark() {
    const std::lock_guard<std::mutex> lock(mutex);
    const std::size_t keep_rows = warm.keep_pages() * kRowsPerPage;
    pool.trim(keep_rows);
    warm.trimmed(keep_rows);
  }

  std::size_t pages_empty() {
    const std::lock_guard<std::mutex> lock(mutex);
    return pool.pages_empty();
  }

  // Waits until the reserve holds `pages`; patience is long, since only a fault uses it up.
  void await(std::size_t pages) {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (pages_empty() != pages) {
      if (std::chrono::steady_clock::now() > deadline) {
        throw std::runtime_error("the reserve holds " + std::to_string(pages_empty()) + " pages, not " +
                                 std::to_string(pages));
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }

  std::mutex mutex;
  KvPool pool;
  std::vector<std::int64_t> taken;
  WarmReserve warm;
};

TEST(warm_reserve_serves_the_burst_after_the_first) {
  Engine engine;
  CHECK(!engine.step(8));
  engine.await(12);  // the burst and half of it
  for (int i = 0; i < 5; ++i) {
    CHECK(engine.step(8));
    engine.await(12);
  }
  engine.warm.stop();
  engine.pool.check_invariants();
}

TEST(warm_reserve_learns_nothing_from_pages_that_come_back) {
  Engine engine;
  engine.step(4);
  engine.await(6);
  engine.free_all();
  for (int round = 0; round < 100; ++round) {
    CHECK(engine.step(4));  // 10 were there, and 6 are more than the low mark: nobody is called
    engine.free_all();
  }
  CHECK(engine.step(8));
  engine.await(12);  // 8 and half of it
}

TEST(warm_reserve_stays_within_its_bound) {
  Engine engine;
  CHECK(!engine.step(100));
  engine.await(kMaxPages);
  engine.warm.stop();
  CHECK_EQ(engine.pages_empty(), kMaxPages);
}

TEST(warm_reserve_of_an_idle_pool_is_empty_and_stays_so) {
  Engine engine;
  CHECK(!engine.step(8));
  engine.free_all();
  engine.trim(0);  // perhaps while the filler maps
  engine.warm.stop();
  CHECK_EQ(engine.pages_empty(), 0u);
  engine.pool.check_invariants();
}

TEST(warm_reserve_is_taken_up_again_after_idleness) {
  Engine engine;
  CHECK(!engine.step(8));
  engine.await(12);
  engine.free_all();
  engine.trim(0);
  CHECK_EQ(engine.pages_empty(), 0u);
  CHECK(!engine.step(2));
  engine.await(12);
}

TEST(warm_reserve_does_not_grow_while_another_client_waits) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 1 << 20);
  LedgerClient other(folder.path(), {"other", 0, std::nullopt, 0});
  Engine engine(std::make_shared<LedgerClient>(folder.path(), ClientSpec{"warm", 0, std::nullopt, 0}));
  other.set_want(kPageBytes);
  CHECK(!engine.step(8));
  CHECK(!engine.step(8));
  engine.warm.stop();
  CHECK_EQ(engine.pages_empty(), 0u);
}

TEST(warm_reserve_pays_for_its_pages) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 1 << 20);
  auto client = std::make_shared<LedgerClient>(folder.path(), ClientSpec{"warm", 0, std::nullopt, 0});
  Engine engine(client);
  CHECK(!engine.step(8));
  engine.await(12);
  engine.warm.stop();
  engine.pool.check_invariants();
  CHECK_EQ(static_cast<std::size_t>(client->used_bytes()), engine.pool.mapped_bytes());
  CHECK_EQ(engine.pool.mapped_bytes(), (1 + 8 + 12) * kPageBytes);  // the padding page, too
  engine.pool.close();
  CHECK_EQ(client->used_bytes(), 0);
}

TEST(warm_reserve_takes_what_the_budget_has_left_and_no_more) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 12 * kPageBytes);
  auto client = std::make_shared<LedgerClient>(folder.path(), ClientSpec{"warm", 0, std::nullopt, 0});
  Engine engine(client);
  CHECK(!engine.step(8));
  engine.warm.stop();  // after at most one try that the ledger refused
  engine.pool.check_invariants();
  CHECK(client->used_bytes() <= static_cast<std::int64_t>(12 * kPageBytes));
}

TEST(warm_reserve_survives_a_device_that_refuses) {
  Engine engine(nullptr, std::make_shared<LimitedVmm>(std::make_shared<HostVmm>(false), 10 * kPageBytes));
  CHECK(!engine.step(8));  // and the padding page: one page is left
  engine.warm.stop();
  engine.pool.check_invariants();
  CHECK(engine.pages_empty() <= 1);
  std::vector<std::int64_t> ids(2 * kRowsPerPage);
  CHECK_THROWS(OutOfMemory, "limit of", engine.pool.grow(ids.size()));
}

// Everything at once: random steps, frees and trims while the filler maps. The books agree at each step.
void torture(std::shared_ptr<Vmm> vmm, unsigned seed) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 300 * kPageBytes);
  auto client = std::make_shared<LedgerClient>(folder.path(), ClientSpec{"warm", 0, std::nullopt, 0});
  std::mt19937 random(seed);
  {
    Engine engine(client, std::move(vmm));
    for (int i = 0; i < 2000; ++i) {
      const std::size_t used_pages = engine.taken.size() / kRowsPerPage;
      switch (random() % 6) {
        case 0:
        case 1:
        case 2:
          if (used_pages < 150) engine.step(1 + random() % 12);
          break;
        case 3:
          engine.free_all();
          if (random() % 4 == 0) engine.realign();
          break;
        case 4:
          engine.trim_to_mark();
          break;
        default:
          engine.trim(0);
      }
      const std::lock_guard<std::mutex> lock(engine.mutex);
      engine.pool.check_invariants();
      REQUIRE(client->used_bytes() <= static_cast<std::int64_t>(300 * kPageBytes));
    }
    engine.warm.stop();
    engine.pool.check_invariants();
    CHECK_EQ(static_cast<std::size_t>(client->used_bytes()), engine.pool.mapped_bytes());
  }
  CHECK_EQ(client->used_bytes(), 0);
}

TEST(warm_reserve_torture) {
  for (unsigned seed = 1; seed <= 3; ++seed) torture(std::make_shared<HostVmm>(false), seed);
}

TEST(warm_reserve_torture_in_strict_mode) { torture(std::make_shared<HostVmm>(true), 4); }

// One client of a ledger whose reserve answers its calls.
struct Asked {
  LedgerFolder folder;
  Ledger ledger{folder.path(), 100 * kPageBytes};
  std::shared_ptr<LedgerClient> client = ledger.register_client({"me", 0, std::nullopt, 0});
  Engine engine{client, std::make_shared<HostVmm>(false), true};

  std::size_t used_pages() const { return static_cast<std::size_t>(client->used_bytes()) / kPageBytes; }

  void set_limit(std::size_t pages) {
    ledger.set_limit(0, static_cast<std::uint32_t>(::getpid()),
                     static_cast<std::int64_t>(pages * kPageBytes));
  }
};

}  // namespace

// An engine at its limit: nothing can be had, so steps that find their pages must not wake anybody for more.
TEST(warm_reserve_that_was_refused_rests_until_a_step_maps_itself_or_pages_go) {
  class Counting : public ForwardingVmm {
   public:
    using ForwardingVmm::ForwardingVmm;
    Handle create(std::size_t bytes) override {
      try {
        return ForwardingVmm::create(bytes);
      } catch (const OutOfMemory&) {
        ++refusals;
        throw;
      }
    }
    std::atomic<int> refusals{0};
  };
  const auto vmm = std::make_shared<Counting>(
      std::make_shared<LimitedVmm>(std::make_shared<HostVmm>(false), 9 * kPageBytes));
  Engine engine(nullptr, vmm);
  engine.step(5);
  for (int patience = 0; vmm->refusals == 0 && patience < 30'000; ++patience) {
    engine.free_all();
    engine.step(5);
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  REQUIRE(vmm->refusals > 0);
  const int refusals = vmm->refusals;
  for (int round = 0; round < 200; ++round) {
    engine.free_all();
    CHECK(engine.step(5));
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  CHECK_EQ(vmm->refusals.load(), refusals);
  engine.free_all();
  engine.trim(8 * kRowsPerPage);  // whatever has changed since: it is tried again
  engine.step(5);
  for (int patience = 0; vmm->refusals == refusals && patience < 30'000; ++patience) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  CHECK(vmm->refusals > refusals);
}

TEST(warm_reserve_gives_back_what_a_lowered_limit_asks_for_and_no_more) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  asked.set_limit(asked.used_pages() - 2);
  asked.engine.await(4);
  asked.set_limit(0);
  asked.engine.await(0);
  CHECK_EQ(asked.used_pages(), 5U);  // with rows in use, and with the reserved one
  asked.engine.free_all();           // they go as they are freed
  asked.engine.await(0);
  CHECK_EQ(asked.used_pages(), 1U);
  asked.client->set_limit(std::nullopt);
  asked.engine.step(4);
  asked.engine.await(6);
}

TEST(warm_reserve_goes_first_when_another_client_wants_memory) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  const auto other = asked.ledger.register_client({"other", 0, std::nullopt, -1});
  other->set_want(kPageBytes);
  asked.engine.await(0);
}

// Wants count beyond the floor, so nobody says that one is not there yet.
TEST(warm_reserve_makes_room_for_a_floor_that_is_promised_to_another) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  const std::int64_t floor_bytes = 92 * kPageBytes;  // 3 less are left beside it
  const auto other = asked.ledger.register_client({"other", floor_bytes, std::nullopt, 0});
  asked.engine.await(0);
  CHECK(other->try_claim(floor_bytes));
}

TEST(warm_reserve_makes_no_room_for_a_want_beyond_its_owners_limit) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  const auto other = asked.ledger.register_client({"other", 0, kPageBytes, 0});
  CHECK(other->try_claim(kPageBytes));
  other->set_want(kPageBytes);
  CHECK(!asked.client->others_want());
}

TEST(warm_reserve_of_no_pages_gives_back_what_is_empty) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100 * kPageBytes);
  Engine engine(ledger.register_client({"me", 0, std::nullopt, 0}), std::make_shared<HostVmm>(false),
                /*gives_back=*/true, /*max_pages=*/0);
  engine.step(4);
  engine.free_all();
  CHECK_EQ(engine.pages_empty(), 4U);
  const auto other = ledger.register_client({"other", 0, std::nullopt, 0});
  other->set_want(kPageBytes);
  engine.await(0);
}

// No file can be opened in its scope. It ends before an exception is looked at: sanitizers need pipes for
// that.
class WithoutDescriptors {
 public:
  WithoutDescriptors() {
    REQUIRE(::getrlimit(RLIMIT_NOFILE, &before_) == 0);
    const rlimit none{0, before_.rlim_max};
    REQUIRE(::setrlimit(RLIMIT_NOFILE, &none) == 0);
  }
  ~WithoutDescriptors() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

// A reserve that could not hear would be deaf for its whole life.
TEST(warm_reserve_that_cannot_listen_says_so) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100 * kPageBytes);
  const std::shared_ptr<LedgerClient> client = ledger.register_client({"me", 0, std::nullopt, 0});
  const auto make_engine = [&] {
    const WithoutDescriptors here;
    Engine(client, std::make_shared<HostVmm>(false), true);
  };
  CHECK_THROWS(Error, "Too many open files", make_engine());
  CHECK_EQ(client->used_bytes(), 0);
  std::filesystem::remove(folder.path());
  Engine engine(client, std::make_shared<HostVmm>(false), true);  // nobody could call it: no error
  engine.step(4);
  engine.await(6);
}

// Whoever wants may be stopped, or killed, between saying so and calling.
TEST(warm_reserve_notices_a_want_that_nobody_called_for) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  const LedgerFile file(asked.folder.path(), std::nullopt);
  const auto other = asked.ledger.register_client({"other", 0, std::nullopt, 0});
  file.segment().hot[other->slot()].want_until_ns.store(INT64_MAX);
  file.segment().hot[other->slot()].want_to_bytes.store(kPageBytes);
  asked.engine.await(0);
}

TEST(warm_reserve_keeps_the_rows_that_a_step_was_promised) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  {
    const std::lock_guard<std::mutex> lock(asked.engine.mutex);
    asked.engine.warm.promised(3 * kRowsPerPage);
    asked.set_limit(0);
  }
  asked.engine.await(3);
  {
    const std::lock_guard<std::mutex> lock(asked.engine.mutex);
    std::vector<std::int64_t> ids(3 * kRowsPerPage);
    CHECK(asked.engine.pool.alloc(ids.size(), ids.data()));
    asked.engine.warm.taken(ids.size());
    asked.engine.pool.free(ids.data(), ids.size());
    asked.engine.warm.observe();
  }
  asked.set_limit(0);
  asked.engine.await(0);
}

TEST(warm_reserve_keeps_its_client_from_being_closed_beside_it) {
  Asked asked;
  asked.engine.step(4);
  asked.engine.await(6);
  CHECK_THROWS(Misuse, "still pays for a pool", asked.client->close());
  asked.engine.step(4);
  asked.engine.await(6);
  asked.engine.warm.stop();
  asked.engine.pool.close();
  asked.client->close();
  CHECK(!asked.client->is_open());
}
