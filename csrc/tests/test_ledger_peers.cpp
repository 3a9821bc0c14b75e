// Faults that were found in a system of the same purpose, as far as they concern a budget between processes:
// each must be impossible here. The numbers are ours.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>

#include "child_process.hpp"
#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "testing.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;

struct Signals {
  std::atomic<int> ready{0};
  std::atomic<int> count{0};
};

void wait_for(const std::atomic<int>& word) {
  for (int poll = 0; poll < 20'000 && word.load() == 0; ++poll) ::usleep(1000);
  REQUIRE(word.load() != 0);
}

constexpr uid_t kNobody = 65534;

}  // namespace

// Memory that another process took between the look and the claim ended the process.
TEST(peer_fault_03_what_another_took_after_the_check_is_a_refusal) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client({"a", 10, std::nullopt, 0});
  const auto b = ledger.register_client({"b", 0, std::nullopt, 0});
  const std::int64_t seen = a->obtainable_bytes();
  CHECK_EQ(seen, 100);
  CHECK(b->try_claim(60));
  CHECK(!a->try_claim(seen));
  CHECK_EQ(a->used_bytes(), 0);
  CHECK(a->try_claim(40));
}

// A limit above what there is made shrinking end the process.
TEST(peer_fault_04_a_limit_beyond_the_budget_grants_no_more_than_the_budget) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client({"a", 0, 50, 0});
  a->set_limit(kMaxBytes);
  CHECK_EQ(a->attainable_bytes(), 100);
  CHECK(!a->try_claim(101));
  CHECK(a->try_claim(100));
  a->release(100);
  a->set_limit(0);
  CHECK(!a->try_claim(1));
  CHECK_EQ(ledger.snapshot().used_bytes, 0);
}

// Whoever could read the shared file could stop all allocations by holding its lock.
TEST(peer_fault_06_a_process_that_holds_every_lock_stalls_no_claim) {
  const LedgerFolder folder;
  const Shared<Signals> signals;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client({"a", 0, std::nullopt, 0});
  const auto b = ledger.register_client({"b", 0, std::nullopt, 0});
  Child hostile([&] {
    const LedgerFile file(folder.path(), std::nullopt);
    const LedgerFile::AdminLock lock(file);
    for (std::size_t slot = 0; slot < kLedgerSlots; ++slot) file.try_lock_slot(slot);
    signals->ready = 1;
    ::pause();
    return 0;
  });
  wait_for(signals->ready);
  for (int round = 0; round < 1000; ++round) {
    CHECK(a->try_claim(100));
    CHECK(!b->try_claim(1));
    b->set_want(10);
    a->set_spare(100);
    CHECK_EQ(a->asked_bytes(), 10);
    a->release(100);
    CHECK(b->try_claim(10));
    b->set_want(0);
    b->release(10);
  }
  CHECK_EQ(ledger.snapshot().clients.size(), 2U);
  // What needs the lock gives up and says why.
  CHECK_THROWS(Error, "is that process stopped?", ledger.register_client({"c", 0, std::nullopt, 0}));
}

TEST(peer_fault_06_another_user_can_neither_read_nor_lock_it) {
  if (::geteuid() != 0) throw testing::Skipped("only root can become another user");
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const std::string path = folder.path();
  Child other([&] {
    if (::setgid(kNobody) != 0 || ::setuid(kNobody) != 0) return 1;
    if (::open(path.c_str(), O_RDONLY) >= 0) return 2;
    if (::open(folder.folder().c_str(), O_RDONLY) >= 0) return 3;
    struct stat facts{};
    return ::stat(path.c_str(), &facts) == 0 ? 4 : 0;
  });
  CHECK_EQ(other.wait(), 0);
  // Nor does what they left at our path deceive us.
  std::filesystem::rename(path, path + ".ours");
  std::filesystem::create_symlink(path + ".ours", path);
  CHECK_THROWS(Misuse, "cannot open", Ledger(path, std::nullopt));
  std::filesystem::remove(path);
  std::filesystem::copy_file(path + ".ours", path);
  REQUIRE(::chmod(path.c_str(), 0600) == 0 && ::chown(path.c_str(), kNobody, kNobody) == 0);
  CHECK_THROWS(Misuse, "the file belongs to user 65534", Ledger(path, std::nullopt));
}

// SIGTERM and SIGKILL left segments and sockets behind, and so a smaller budget for those that came after.
TEST(peer_fault_07_a_killed_process_leaves_one_reusable_file_and_no_credit) {
  const LedgerFolder folder;
  for (const int signal : {SIGTERM, SIGKILL}) {
    const Shared<Signals> signals;
    Child child([&] {
      const Ledger ledger(folder.path(), 100);
      const auto client = ledger.register_client({"child", 60, std::nullopt, 0});
      client->try_claim(80);
      client->set_want(1000, 1e6);
      signals->ready = 1;
      ::pause();
      return 0;
    });
    wait_for(signals->ready);
    ::kill(child.pid(), signal);
    CHECK_EQ(child.wait(), 128 + signal);
    const Ledger ledger(folder.path(), 100);
    CHECK(ledger.snapshot().clients.empty());
    const auto next = ledger.register_client({"next", 100, std::nullopt, 0});
    CHECK(next->try_claim(100));
    CHECK_EQ(next->asked_bytes(), 0);
  }
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder.folder()))
    files += entry.exists() ? 1U : 0U;
  CHECK_EQ(files, 1U);
  CHECK(LedgerFile::remove_unused(folder.path()));
}

// With a limit set every allocation resized the pool, and lifting the limit never let it grow again.
TEST(peer_fault_08_a_limit_costs_nothing_while_it_is_kept_and_lifting_it_gives_all_back) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client({"a", 0, std::nullopt, 0});
  a->set_limit(30);
  const std::uint32_t generation = a->generation();
  for (int round = 0; round < 100; ++round) {
    CHECK(a->try_claim(30));
    CHECK(!a->try_claim(1));
    CHECK_EQ(a->asked_bytes(), 0);
    a->release(30);
  }
  CHECK_EQ(a->generation(), generation + 100);  // one per release, and nothing else was disturbed
  a->set_limit(std::nullopt);
  CHECK(a->try_claim(100));
}
