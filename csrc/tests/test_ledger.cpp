// The ledger within one process: accounts, floors, limits, and files that are not what they should be.
#include <fcntl.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <random>
#include <thread>
#include <utility>

#include "ledger/ledger.hpp"
#include "ledger_folder.hpp"
#include "testing.hpp"
#include "vmm/error.hpp"

namespace {

using namespace kvcached;

ClientSpec spec(const std::string& name, std::int64_t floor_bytes = 0,
                std::optional<std::int64_t> limit_bytes = std::nullopt, std::int32_t priority = 0) {
  return {name, floor_bytes, limit_bytes, priority};
}

struct Unmounted {
  explicit Unmounted(std::string folder) : folder(std::move(folder)) {}
  Unmounted(const Unmounted&) = delete;
  Unmounted& operator=(const Unmounted&) = delete;
  ~Unmounted() { ::umount2(folder.c_str(), MNT_DETACH); }
  std::string folder;
};

void write_file(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary) << bytes;
  ::chmod(path.c_str(), 0600);
}

}  // namespace

TEST(ledger_claims_stop_at_the_budget) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a"));
  const auto b = ledger.register_client(spec("b"));
  CHECK(a->try_claim(60));
  CHECK(!b->try_claim(41));
  CHECK_EQ(b->obtainable_bytes(), 40);
  CHECK(b->try_claim(40));
  CHECK_EQ(a->obtainable_bytes(), 0);
  CHECK_EQ(ledger.snapshot().used_bytes, 100);
  a->release(60);
  CHECK(b->try_claim(60));
  CHECK_THROWS(Misuse, "releases 1 bytes but holds 0", a->release(1));
  CHECK_THROWS(Misuse, "claim of -1 bytes", a->try_claim(-1));
  CHECK(a->try_claim(0));
}

TEST(ledger_a_floor_counts_whether_used_or_not) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a", 30));
  const auto b = ledger.register_client(spec("b"));
  CHECK_EQ(b->attainable_bytes(), 70);
  CHECK_EQ(a->attainable_bytes(), 100);
  CHECK(!b->try_claim(71));
  CHECK(b->try_claim(70));
  CHECK_EQ(a->obtainable_bytes(), 30);
  CHECK(a->try_claim(30));
  CHECK(!a->try_claim(1));
}

TEST(ledger_a_floor_becomes_real_once_others_have_made_room) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto b = ledger.register_client(spec("b"));
  CHECK(b->try_claim(90));
  const auto a = ledger.register_client(spec("a", 30));
  CHECK(!a->try_claim(30));  // never more than the budget, guarantee or not
  CHECK(!b->try_claim(1));   // and nothing more for those above what is theirs
  const std::uint32_t generation = a->generation();
  CHECK(!a->try_claim(11));
  CHECK_EQ(a->generation(), generation);  // what cannot be granted disturbs nobody
  CHECK(a->try_claim(10));                // as much of it as there is
  b->release(20);
  CHECK(a->try_claim(20));
  CHECK_EQ(ledger.snapshot().used_bytes, 100);
}

TEST(ledger_floors_that_do_not_fit_are_refused_with_the_budget_that_would_do) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a", 60));
  CHECK_THROWS(LedgerRefused, "the smallest budget that works is 110", ledger.register_client(spec("b", 50)));
  CHECK_EQ(ledger.snapshot().clients.size(), 1U);
  const auto b = ledger.register_client(spec("b", 40));
  CHECK_THROWS(LedgerRefused, "smallest budget that works is 101", b->set_floor(41));
  CHECK_EQ(b->floor_bytes(), 40);
  a->set_floor(10);
  b->set_floor(90);
  CHECK_THROWS(LedgerRefused, "exceeds its limit", b->set_limit(89));
}

TEST(ledger_a_limit_binds_its_owner_alone_and_may_be_lifted) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a", 0, 50));
  CHECK_EQ(a->attainable_bytes(), 50);
  CHECK(a->try_claim(50));
  CHECK(!a->try_claim(1));
  a->set_limit(20);
  CHECK_EQ(a->obtainable_bytes(), 0);
  CHECK_EQ(a->used_bytes(), 50);
  a->release(40);
  CHECK_EQ(a->obtainable_bytes(), 10);
  a->set_limit(std::nullopt);
  CHECK_EQ(a->obtainable_bytes(), 90);
}

TEST(ledger_snapshots_show_what_was_registered_and_published) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("Modell-\xc3\xa4", 5, 80, -3));
  a->publish({4096, 8192, 7, 9});
  const LedgerSnapshot snapshot = ledger.snapshot();
  REQUIRE(snapshot.clients.size() == 1);
  const ClientInfo& info = snapshot.clients[0];
  CHECK_EQ(info.name, "Modell-\xc3\xa4");
  CHECK_EQ(info.pid, static_cast<std::uint32_t>(::getpid()));
  CHECK_EQ(info.floor_bytes, 5);
  CHECK_EQ(info.limit_bytes.value_or(-1), 80);
  CHECK_EQ(info.priority, -3);
  CHECK_EQ(info.published.range_base, 4096U);
  CHECK_EQ(info.published.rows_backed, 9U);
  CHECK(info.alive);
}

TEST(ledger_a_want_is_seen_by_the_others_and_every_change_of_it_wakes_them) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a"));
  const auto b = ledger.register_client(spec("b"));
  CHECK(a->try_claim(100));
  a->set_spare(100);
  std::uint32_t last = a->generation();
  const auto has_changed = [&] { return std::exchange(last, a->generation()) != a->generation(); };
  b->set_want(30);
  CHECK(has_changed());
  CHECK_EQ(a->asked_bytes(), 30);
  CHECK_EQ(b->asked_bytes(), 0);
  CHECK_EQ(ledger.snapshot().clients[1].want_bytes, 30);
  CHECK_EQ(ledger.snapshot().clients[0].asked_bytes, 30);
  b->set_want(30);  // renewed: nothing new to anybody
  CHECK(!has_changed());
  b->set_want(0);  // who stood behind it may go on
  CHECK(has_changed());
  CHECK_EQ(a->asked_bytes(), 0);
  b->set_want(5);
  b->close();
  CHECK_EQ(a->asked_bytes(), 0);
  CHECK_THROWS(Misuse, "a lapse after", a->set_want(1, 0.0));
  CHECK_THROWS(Misuse, "want of -1 bytes", a->set_want(-1));
}

// Who is asked for how much also depends on what others take and offer meanwhile.
TEST(ledger_what_is_taken_or_offered_beside_a_want_wakes_those_who_give) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto cache = ledger.register_client(spec("cache"));
  const auto waiter = ledger.register_client(spec("waiter", 0, std::nullopt, 1));
  const auto other = ledger.register_client(spec("other"));
  CHECK(cache->try_claim(60));
  std::uint32_t last = cache->generation();
  const auto has_changed = [&] { return std::exchange(last, cache->generation()) != cache->generation(); };
  cache->set_spare(60);
  CHECK(other->try_claim(10));
  CHECK(!has_changed());  // nobody wants anything
  waiter->set_want(30);
  CHECK(has_changed());
  CHECK_EQ(cache->asked_bytes(), 0);
  CHECK(other->try_claim(20));
  CHECK(has_changed());
  CHECK_EQ(cache->asked_bytes(), 20);
  cache->set_spare(60);
  CHECK(!has_changed());
  cache->set_spare(10);
  CHECK(has_changed());
  CHECK_EQ(cache->asked_bytes(), 10);
}

// Between a claim that serves a want and the owner's word that it is satisfied, the others used to see both.
TEST(ledger_a_claim_serves_the_want_before_its_owner_says_so) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto cache = ledger.register_client(spec("cache"));
  const auto b = ledger.register_client(spec("b"));
  CHECK(cache->try_claim(90));
  cache->set_spare(90);
  const auto wanted = [&] { return ledger.snapshot().clients[1].want_bytes; };
  b->set_want(60);
  CHECK_EQ(cache->asked_bytes(), 50);
  cache->release(50);
  CHECK(b->try_claim(25));
  CHECK_EQ(wanted(), 35);
  CHECK_EQ(cache->asked_bytes(), 0);
  CHECK(!b->try_claim(36));  // what is not granted serves nothing
  CHECK_EQ(wanted(), 35);
  CHECK(b->try_claim(35));
  CHECK_EQ(wanted(), 0);
  CHECK_EQ(cache->asked_bytes(), 0);
  b->release(60);  // the want is over, and does not come back
  CHECK_EQ(wanted(), 0);
  b->set_want(70);
  b->set_want(0);
  CHECK_EQ(wanted(), 0);
}

TEST(ledger_a_floor_is_no_part_of_a_want_and_claims_within_it_serve_none) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto cache = ledger.register_client(spec("cache"));
  const auto b = ledger.register_client(spec("b", 30));
  CHECK(cache->try_claim(70));
  cache->set_spare(70);
  b->set_want(50);
  CHECK_EQ(cache->asked_bytes(), 20);
  CHECK(b->try_claim(30));
  CHECK_EQ(cache->asked_bytes(), 20);
  cache->release(20);
  CHECK(b->try_claim(20));
  CHECK_EQ(cache->asked_bytes(), 0);
}

TEST(ledger_a_want_that_is_not_renewed_lapses_and_wakes_those_behind_it) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto first = ledger.register_client(spec("first", 0, std::nullopt, 1));
  const auto second = ledger.register_client(spec("second"));
  first->set_want(80, 0.05);
  second->set_yielding(true);
  CHECK(!second->try_claim(21));
  CHECK_EQ(second->obtainable_bytes(), 20);
  const std::uint32_t before = second->generation();
  std::uint32_t now = before;
  for (int tries = 0; now == before && tries < 100; ++tries) now = ledger.wait(before, 0.1);
  CHECK(now != before);
  CHECK_EQ(ledger.wait(now, 0.01), now);  // rung for once
  CHECK(second->try_claim(100));
  CHECK_EQ(ledger.snapshot().clients[0].want_bytes, 0);
}

TEST(ledger_only_new_work_yields_and_only_beyond_its_floor) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto first = ledger.register_client(spec("first", 0, std::nullopt, 1));
  const auto second = ledger.register_client(spec("second", 10));
  first->set_want(95);
  second->set_yielding(true);
  CHECK_EQ(second->obtainable_bytes(), 10);
  CHECK(!second->try_claim(11));
  CHECK(second->try_claim(10));
  second->set_yielding(false);
  CHECK(second->try_claim(90));
  CHECK_EQ(first->obtainable_bytes(), 0);
  first->set_yielding(true);  // the first in the order yields to nobody
  second->set_want(5);
  second->release(80);
  CHECK(first->try_claim(80));
}

TEST(ledger_settings_of_another_process_hold_from_its_next_claim_on) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const Ledger controller(folder.path(), std::nullopt);
  const auto a = ledger.register_client(spec("a", 20));
  const auto pid = static_cast<std::uint32_t>(::getpid());
  CHECK(a->try_claim(60));

  controller.set_limit(0, pid, 50);
  CHECK(!a->try_claim(1));
  CHECK_EQ(a->asked_bytes(), 10);
  a->release(20);
  CHECK_EQ(a->asked_bytes(), 0);
  CHECK_EQ(a->obtainable_bytes(), 10);
  CHECK_THROWS(LedgerRefused, "exceeds its limit", controller.set_limit(0, pid, 19));
  controller.set_limit(0, pid, std::nullopt);
  CHECK_EQ(a->obtainable_bytes(), 60);

  controller.set_floor(0, pid, 70);
  CHECK_EQ(a->floor_bytes(), 70);
  CHECK_THROWS(LedgerRefused, "smallest budget that works is 101", controller.set_floor(0, pid, 101));
  controller.set_priority(0, pid, -5);
  CHECK_EQ(controller.snapshot().clients[0].priority, -5);
  controller.set_floor(0, pid, 10);
  CHECK_EQ(controller.recall(0, pid, 100, 10.0), 10);
  CHECK_EQ(a->asked_bytes(), 30);
  a->release(30);
  CHECK_EQ(a->asked_bytes(), 0);

  CHECK_THROWS(Misuse, "is no longer at place 0", controller.set_limit(0, pid + 1, 50));
  CHECK_THROWS(Misuse, "is no longer at place 1", controller.set_limit(1, pid, 50));
  CHECK_THROWS(Misuse, "has no place 64", controller.set_priority(kLedgerSlots, pid, 1));
  a->close();
  CHECK_THROWS(Misuse, "is no longer at place 0", controller.set_limit(0, pid, 50));
}

// A floor that came back must be seen to fit again: in between, others may have taken what it guaranteed.
TEST(ledger_a_floor_lowered_and_raised_by_another_process_is_no_longer_taken_for_granted) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a", 60));
  const auto b = ledger.register_client(spec("b"));
  const auto pid = static_cast<std::uint32_t>(::getpid());
  CHECK(a->try_claim(10));
  ledger.set_floor(0, pid, 10);
  CHECK(b->try_claim(90));
  ledger.set_floor(0, pid, 60);
  CHECK(!a->try_claim(1));
  b->release(50);
  CHECK(a->try_claim(50));
}

TEST(ledger_kinds_are_lines_of_one_budget) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  ClientSpec weights = spec("model");
  weights.kind = ClientKind::kWeights;
  const auto w = ledger.register_client(weights);
  const auto kv = ledger.register_client(spec("model"));
  CHECK(w->try_claim(70));
  CHECK(!kv->try_claim(31));
  const LedgerSnapshot snapshot = ledger.snapshot();
  CHECK(snapshot.clients[0].kind == ClientKind::kWeights);
  CHECK(snapshot.clients[1].kind == ClientKind::kKv);
}

TEST(ledger_a_refusal_names_who_holds_the_rest) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("small"));
  const auto b = ledger.register_client(spec("large", 40));
  CHECK(a->explain().find("guaranteed: 'large' 40") != std::string::npos);
  CHECK(b->try_claim(70));
  CHECK(a->explain().find("could claim 30 now; others hold or are guaranteed: 'large' 70") !=
        std::string::npos);
  CHECK(a->try_claim(30));
  CHECK(b->explain().find("'small' 30") != std::string::npos);
  b->close();
  CHECK(a->explain().find("guaranteed: nobody") != std::string::npos);
}

TEST(ledger_a_deleted_file_is_noticed_by_its_clients) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a"));
  const auto b = ledger.register_client(spec("b"));
  CHECK(!a->is_cut_off());
  CHECK(ledger.is_at_its_path());
  std::filesystem::remove(folder.path());
  CHECK(!ledger.is_at_its_path());
  CHECK(b->is_cut_off());
  const Ledger anew(folder.path(), 100);
  CHECK(!ledger.is_at_its_path());
  CHECK(anew.is_at_its_path());
  CHECK(a->try_claim(100));  // what was running goes on, under the budget that it knows
}

TEST(ledger_closing_gives_everything_up_and_frees_the_place) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  for (int round = 0; round < 200; ++round) {
    const auto a = ledger.register_client(spec("a", 100));
    CHECK(a->try_claim(100));
    CHECK_EQ(a->slot(), 0U);
    a->close();
    a->close();
    CHECK_THROWS(Misuse, "is closed", a->try_claim(1));
  }
  CHECK_EQ(ledger.snapshot().used_bytes, 0);
  CHECK(ledger.snapshot().clients.empty());
}

TEST(ledger_names_and_places_are_bounded) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  CHECK_THROWS(Misuse, "has 48 bytes", ledger.register_client(spec(std::string(48, 'x'))));
  CHECK_THROWS(Misuse, "has 0 bytes", ledger.register_client(spec("")));
  for (const char* const name : {"two\nlines", "\x1b[2J", "delete\x7f", "tab\t"}) {
    CHECK_THROWS(Misuse, "holds the control character", ledger.register_client(spec(name)));
  }
  CHECK(ledger.snapshot().clients.empty());
  CHECK_EQ(ledger.register_client(spec("\xc3\xa9t\xc3\xa9"))->name(), "\xc3\xa9t\xc3\xa9");
  std::vector<std::unique_ptr<LedgerClient>> clients;
  for (std::size_t i = 0; i < kLedgerSlots; ++i)
    clients.push_back(ledger.register_client(spec(std::string(47, 'x'))));
  CHECK_THROWS(Misuse, "all 64 places are taken", ledger.register_client(spec("one more")));
  clients.pop_back();
  ledger.register_client(spec("one more"));
}

TEST(ledger_a_waiter_wakes_when_credit_comes_back) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 100);
  const auto a = ledger.register_client(spec("a"));
  CHECK(a->try_claim(100));
  const std::uint32_t before = a->generation();
  CHECK_EQ(ledger.wait(before, 0.01), before);
  std::thread releaser([&a] {
    ::usleep(20'000);
    a->release(100);
  });
  std::uint32_t now = before;
  for (int tries = 0; now == before && tries < 100; ++tries) now = ledger.wait(before, 1.0);
  releaser.join();
  CHECK(now != before);
}

TEST(ledger_budgets_change_only_without_living_clients) {
  const LedgerFolder folder;
  const Ledger first(folder.path(), 100);
  {
    const auto a = first.register_client(spec("a"));
    CHECK_THROWS(Misuse, "has a budget of 100 bytes and living clients", Ledger(folder.path(), 200));
    CHECK_EQ(Ledger(folder.path(), 100).budget_bytes(), 100);
    CHECK_EQ(Ledger(folder.path(), std::nullopt).budget_bytes(), 100);
  }
  CHECK_EQ(Ledger(folder.path(), 200).budget_bytes(), 200);
  CHECK_EQ(first.budget_bytes(), 200);
  CHECK_THROWS(Misuse, "budget of 0 bytes", Ledger(folder.path(), 0));
}

TEST(ledger_files_that_are_not_privately_ours_are_refused) {
  const LedgerFolder folder;
  const std::string path = folder.path();
  CHECK_THROWS(Misuse, "does not exist", Ledger(path, std::nullopt));
  {
    const Ledger made(path, 100);
  }
  struct stat facts{};
  REQUIRE(::stat(path.c_str(), &facts) == 0);
  CHECK_EQ(facts.st_mode & 0777, 0600U);

  ::chmod(path.c_str(), 0640);
  CHECK_THROWS(Misuse, "the file is open to other users; run: chmod 0600", Ledger(path, 100));
  ::chmod(path.c_str(), 0600);
  ::chmod(folder.folder().c_str(), 0750);
  CHECK_THROWS(Misuse, "its folder is open to other users", Ledger(path, 100));
  ::chmod(folder.folder().c_str(), 0700);

  const std::string link = folder.folder() + "/link";
  std::filesystem::create_symlink(path, link);
  CHECK_THROWS(Misuse, "cannot open", Ledger(link, 100));
  const std::string pipe = folder.folder() + "/pipe";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  CHECK_THROWS(Misuse, "is not a regular file", Ledger(pipe, 100));
  std::filesystem::create_directory(folder.folder() + "/sub");
  CHECK_THROWS(Misuse, "cannot open", Ledger(folder.folder() + "/sub", 100));
  CHECK_THROWS(Misuse, "names no file", Ledger(folder.folder() + "/", 100));
  CHECK_THROWS(Misuse, "names no file", Ledger("", 100));
  CHECK_EQ(Ledger(folder.folder() + "/new/device.ledger", 100).budget_bytes(), 100);
}

TEST(ledger_files_are_removed_only_when_nobody_has_them_open) {
  const LedgerFolder folder;
  const std::string path = folder.path();
  {
    const Ledger ledger(path, 100);  // looks only, and holds no place
    CHECK(!LedgerFile::remove_unused(path));
    const auto a = ledger.register_client(spec("a"));
    CHECK(!LedgerFile::remove_unused(path));
    CHECK(ledger.is_at_its_path());
  }
  CHECK(LedgerFile::remove_unused(path));
  CHECK_THROWS(Misuse, "does not exist", LedgerFile::remove_unused(path));
  write_file(path, "kvledger of another version");
  CHECK(LedgerFile::remove_unused(path));
  write_file(path, "kvledger open to others");
  ::chmod(path.c_str(), 0644);
  CHECK_THROWS(Misuse, "the file is open to other users", LedgerFile::remove_unused(path));
}

TEST(ledger_files_are_removed_only_if_they_are_ledgers) {
  const LedgerFolder folder;
  const std::string path = folder.path();
  const std::string unfinished(sizeof(LedgerSegment), '\0');
  for (const std::string& key : {std::string("PRIVATE KEY"), std::string("kvled"), std::string(8, '\0')}) {
    write_file(path, key);
    CHECK_THROWS(Misuse, path + ": is no ledger", LedgerFile::remove_unused(path));
    CHECK_THROWS(Misuse, "is no ledger", LedgerFile::remove_unused(path, /*even_if_blank=*/true));
    CHECK_EQ(std::filesystem::file_size(path), key.size());
  }
  for (const std::string& blank : {std::string(), unfinished}) {
    write_file(path, blank);
    CHECK_THROWS(Misuse, "is no ledger", LedgerFile::remove_unused(path));
    CHECK(LedgerFile::remove_unused(path, /*even_if_blank=*/true));
  }
}

// Without room for the file its first touch was a SIGBUS, and beyond the limit on files its making a SIGXFSZ.
TEST(ledger_files_that_find_no_room_are_an_error_and_leave_nothing) {
  const LedgerFolder folder;
  const std::string path = folder.path();
  rlimit limit{};
  REQUIRE(::getrlimit(RLIMIT_FSIZE, &limit) == 0);
  const rlimit small{1024, limit.rlim_max};
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_THROWS(DriverError, "EFBIG (27): File too large; make room", Ledger(path, 100));
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
  CHECK(!std::filesystem::exists(path));
  const Ledger ledger(path, 100);
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &small) == 0);
  CHECK_EQ(Ledger(path, std::nullopt).budget_bytes(), 100);  // nothing is to be made
  REQUIRE(::setrlimit(RLIMIT_FSIZE, &limit) == 0);
}

TEST(ledger_files_on_a_full_file_system_are_an_error) {
  const LedgerFolder folder;
  if (::mount("kvcached-test", folder.folder().c_str(), "tmpfs", 0, "size=8192,mode=0700") != 0) {
    throw testing::Skipped("mounting a small tmpfs needs root");
  }
  const Unmounted at_the_end(folder.folder());
  const std::string path = folder.path();
  CHECK_THROWS(OutOfMemory, path + ": fallocate(12", Ledger(path, 100));
  CHECK(!std::filesystem::exists(path));
  write_file(path, "");
  REQUIRE(::truncate(path.c_str(), sizeof(LedgerSegment)) == 0);  // right in size, and nothing but holes
  CHECK_THROWS(OutOfMemory, "ENOSPC (28)", Ledger(path, 100));
  CHECK_THROWS(OutOfMemory, "ENOSPC (28)", Ledger(path, std::nullopt));
  CHECK(std::filesystem::exists(path));
}

TEST(ledger_files_with_other_contents_are_refused) {
  const LedgerFolder folder;
  const std::string path = folder.path();
  write_file(path, "short");
  CHECK_THROWS(Misuse, "has 5 bytes instead of", Ledger(path, 100));
  write_file(path, std::string(sizeof(LedgerSegment), 'x'));
  CHECK_THROWS(Misuse, "is not a ledger of version 3", Ledger(path, 100));
  CHECK_THROWS(Misuse, "is not a ledger of version 3", Ledger(path, std::nullopt));
  write_file(path, std::string(sizeof(LedgerSegment), '\0'));  // its maker died half-way
  CHECK_THROWS(Misuse, "is not initialised", Ledger(path, std::nullopt));
  CHECK_EQ(Ledger(path, 100).budget_bytes(), 100);
}

TEST(ledger_any_bytes_in_the_lines_are_survived) {
  const LedgerFolder folder;
  const Ledger ledger(folder.path(), 1000);
  std::mt19937 random(7);
  for (int round = 0; round < 300; ++round) {
    const auto a = ledger.register_client(spec("a"));
    std::fstream file(folder.path(), std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(offsetof(LedgerSegment, header) + offsetof(LedgerHeader, budget_bytes));
    for (std::size_t i = offsetof(LedgerHeader, budget_bytes); i < sizeof(LedgerSegment); ++i) {
      file.put(static_cast<char>(random()));
    }
    file.close();
    a->obtainable_bytes();
    a->attainable_bytes();
    a->try_claim(10);
    ledger.snapshot();
    a->explain();
    a->close();
    ::truncate(folder.path().c_str(), 0);
    ::truncate(folder.path().c_str(), sizeof(LedgerSegment));
    const Ledger repaired(folder.path(), 1000);
    CHECK_EQ(repaired.snapshot().used_bytes, 0);
  }
}
