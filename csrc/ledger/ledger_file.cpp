#include "ledger/ledger_file.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <utility>

#include "ledger/clock.hpp"
#include "ledger/fork_registry.hpp"
#include "ledger/futex.hpp"
#include "ledger/reclaim.hpp"
#include "vmm/error.hpp"
#include "vmm/system_error.hpp"

namespace kvcached {
namespace {

// Lock bytes lie beyond the data: locks need no bytes beneath them.
constexpr off_t kSlotLockOffset = off_t{1} << 20;
constexpr off_t kAdminLockOffset = kSlotLockOffset - 1;
constexpr off_t kUsersLockOffset = kSlotLockOffset - 2;  // shared by all who have the file open
constexpr off_t kBlockBytes = 512;                       // of stat's st_blocks, whatever the file system has
constexpr int kOpenAttempts = 8;
constexpr long kAdminPollNs = 200'000;
constexpr int kAdminPolls = 25'000;  // 5 s

class Descriptor {
 public:
  explicit Descriptor(int fd) noexcept : fd_(fd) {}
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  int get() const noexcept { return fd_; }

 private:
  int fd_;
};

[[noreturn]] void reject(const std::string& path, const std::string& why) {
  throw Misuse("ledger " + path + ": " + why);
}

std::string folder_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string name_of(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  return slash == std::string::npos ? path : path.substr(slash + 1);
}

void require_private(const std::string& path, const struct stat& facts, const char* what, const char* mode) {
  if (facts.st_uid != ::geteuid()) {
    reject(path, std::string(what) + " belongs to user " + std::to_string(facts.st_uid) + ", not to us (" +
                     std::to_string(::geteuid()) + "); choose a path of your own");
  }
  if ((facts.st_mode & 077) != 0) {
    reject(path, std::string(what) + " is open to other users; run: chmod " + mode);
  }
}

int open_folder(const std::string& path, bool create) {
  const std::string folder = folder_of(path);
  if (create && ::mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) {
    reject(path, "cannot make folder " + folder + ": " + std::strerror(errno));
  }
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) reject(path, "cannot open folder " + folder + ": " + std::strerror(errno));
  return fd;
}

struct flock lock_request(short type, off_t offset) {
  struct flock request{};
  request.l_type = type;
  request.l_whence = SEEK_SET;
  request.l_start = offset;
  request.l_len = 1;
  return request;
}

bool try_lock(int fd, off_t offset, short type = F_WRLCK, off_t count = 1) {
  struct flock request = lock_request(type, offset);
  request.l_len = count;
  return ::fcntl(fd, F_OFD_SETLK, &request) == 0;
}

void unlock(int fd, off_t offset) {
  struct flock request = lock_request(F_UNLCK, offset);
  ::fcntl(fd, F_OFD_SETLK, &request);
}

// Which files may be removed: of any version, but ours by their first word.
bool begins_as_ledger(int fd) {
  std::uint64_t magic = 0;
  return ::pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == kLedgerMagic;
}

// Empty, or as it stays when its maker dies before the magic is written.
bool is_blank(int fd) {
  struct stat facts{};
  std::uint64_t magic = 0;
  if (::fstat(fd, &facts) != 0) return false;
  return facts.st_size == 0 || (facts.st_size == static_cast<off_t>(sizeof(LedgerSegment)) &&
                                ::pread(fd, &magic, sizeof magic, 0) == sizeof magic && magic == 0);
}

}  // namespace

LedgerFile::LedgerFile(const std::string& path)
    : path_(std::filesystem::absolute(path.empty() ? "/" : path).lexically_normal().string()) {
  if (path.empty() || name_of(path_).empty()) reject(path_, "names no file");
  ForkRegistry::instance().add(this);
}

LedgerFile::LedgerFile(const std::string& path, std::optional<std::int64_t> budget_bytes) : LedgerFile(path) {
  if (budget_bytes && (*budget_bytes <= 0 || *budget_bytes > kMaxBytes)) {
    reject(path, "budget of " + std::to_string(*budget_bytes) + " bytes: must be between 1 and " +
                     std::to_string(kMaxBytes));
  }
  open_and_map(budget_bytes);
}

LedgerFile::~LedgerFile() { close(); }

void LedgerFile::open_and_map(std::optional<std::int64_t> budget_bytes) {
  for (int attempt = 0; attempt < kOpenAttempts; ++attempt) {
    open_file(budget_bytes.has_value());
    const AdminLock lock(*this);
    // Between the opening and the lock somebody may have removed the file as unused.
    if (!is_at_its_path() || !try_lock(fd_, kUsersLockOffset, F_RDLCK)) {
      ::close(std::exchange(fd_, -1));
      continue;
    }
    map(budget_bytes.has_value());
    adopt(budget_bytes);
    return;
  }
  reject(path_, "is removed and made anew all the time; is somebody else using this path?");
}

void LedgerFile::open_file(bool create) {
  const Descriptor folder(open_folder(path_, create));
  struct stat facts{};
  if (::fstat(folder.get(), &facts) != 0) reject(path_, std::string("fstat: ") + std::strerror(errno));
  require_private(path_, facts, "its folder", "0700");

  const int flags = O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | (create ? O_CREAT : 0);
  fd_ = ::openat(folder.get(), name_of(path_).c_str(), flags, 0600);
  if (fd_ < 0) {
    reject(path_, errno == ENOENT ? "does not exist; whoever owns the budget must create it first"
                                  : std::string("cannot open: ") + std::strerror(errno));
  }
  if (::fstat(fd_, &facts) != 0) reject(path_, std::string("fstat: ") + std::strerror(errno));
  if (!S_ISREG(facts.st_mode)) reject(path_, "is not a regular file");
  require_private(path_, facts, "the file", "0600");
}

void LedgerFile::map(bool create) {
  struct stat facts{};
  if (::fstat(fd_, &facts) != 0) reject(path_, std::string("fstat: ") + std::strerror(errno));
  const auto present_bytes = static_cast<std::size_t>(facts.st_size);
  if (present_bytes == 0 && create) facts.st_size = sizeof(LedgerSegment);
  if (facts.st_size != static_cast<off_t>(sizeof(LedgerSegment))) {
    reject(path_, "has " + std::to_string(facts.st_size) + " bytes instead of " +
                      std::to_string(sizeof(LedgerSegment)) +
                      ": not a ledger of this version; remove it (kvctl clean, if it was one)");
  }
  if (facts.st_blocks * kBlockBytes < facts.st_size) reserve_room(present_bytes);
  void* memory = ::mmap(nullptr, sizeof(LedgerSegment), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory == MAP_FAILED) reject(path_, std::string("mmap: ") + std::strerror(errno));
  ::madvise(memory, sizeof(LedgerSegment), MADV_DONTFORK);
  segment_ = static_cast<LedgerSegment*>(memory);
}

// A page of the file that finds no room at its first touch would be a SIGBUS.
void LedgerFile::reserve_room(std::size_t present_bytes) {
  constexpr std::size_t bytes = sizeof(LedgerSegment);
  rlimit limit{};
  int code = 0;
  if (present_bytes < bytes && ::getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes) {
    code = EFBIG;  // from the kernel it would be SIGXFSZ, which ends the process
  } else {
    do {
      code = ::fallocate(fd_, 0, 0, bytes) == 0 ? 0 : errno;
    } while (code == EINTR);
    // A file system that cannot tell may have room.
    if (code == EOPNOTSUPP) code = ::ftruncate(fd_, bytes) == 0 ? 0 : errno;
  }
  if (code == 0) return;
  if (present_bytes == 0) ::unlink(path_.c_str());  // made just now; whoever else has opened it looks again
  raise_system_error("ledger " + path_ + ": fallocate(" + std::to_string(bytes) + ")", code,
                     "make room on its file system, raise ulimit -f, or choose another path "
                     "(KVCACHED_LEDGER)");
}

bool LedgerFile::remove_unused(const std::string& path, bool even_if_blank) {
  LedgerFile file(path);
  file.open_file(/*create=*/false);
  if (!begins_as_ledger(file.fd_) && !(even_if_blank && is_blank(file.fd_))) {
    reject(file.path_, "is no ledger: its contents are somebody else's, so it stays");
  }
  const AdminLock lock(file);
  // Others may have it open without a place in it, and those of other versions only have a place.
  const bool is_unused = try_lock(file.fd_, kUsersLockOffset) &&
                         try_lock(file.fd_, kSlotLockOffset, F_WRLCK, kLedgerSlots) && file.is_at_its_path();
  return is_unused && ::unlink(file.path_.c_str()) == 0;
}

void LedgerFile::adopt(std::optional<std::int64_t> budget_bytes) {
  LedgerHeader& header = segment_->header;
  const std::uint64_t magic = header.magic.load();
  if (magic == 0) {  // new, or its maker died before it was finished
    if (!budget_bytes) reject(path_, "is not initialised; whoever owns the budget must create it first");
    initialise(*budget_bytes);
    return;
  }
  if (magic != kLedgerMagic || header.version != kLedgerVersion || header.slots != kLedgerSlots) {
    reject(path_, "is not a ledger of version " + std::to_string(kLedgerVersion) +
                      "; remove it (kvctl clean, if it was one)");
  }
  const std::int64_t present = header.budget_bytes.load();
  if (present <= 0 || present > kMaxBytes) {
    reject(path_, "holds an impossible budget of " + std::to_string(present) + " bytes; remove it");
  }
  if (!budget_bytes || *budget_bytes == present) return;
  for (std::size_t slot = 0; slot < kLedgerSlots; ++slot) {
    if (!is_slot_locked_elsewhere(slot)) continue;
    reject(path_, "has a budget of " + std::to_string(present) + " bytes and living clients (process " +
                      std::to_string(segment_->info[slot].pid.load()) + "), so it cannot be given " +
                      std::to_string(*budget_bytes) + "; stop them or use the present budget");
  }
  initialise(*budget_bytes);
}

// Under the admin lock, with no living client. The magic comes last: a half-made file is made anew.
void LedgerFile::initialise(std::int64_t budget_bytes) {
  LedgerHeader& header = segment_->header;
  header.magic.store(0);
  for (std::size_t slot = 0; slot < kLedgerSlots; ++slot) {
    clear_account(segment_->hot[slot]);
    segment_->hot[slot].limit_bytes.store(kUnlimited);
    segment_->info[slot].pid.store(0);
  }
  header.version = kLedgerVersion;
  header.slots = kLedgerSlots;
  header.high_slot.store(0);
  header.budget_bytes.store(budget_bytes);
  header.magic.store(kLedgerMagic);
  bump();
}

bool LedgerFile::is_at_its_path() const noexcept {
  struct stat ours{}, there{};
  if (::fstat(fd_, &ours) != 0) return true;
  if (::lstat(path_.c_str(), &there) != 0) return errno != ENOENT && errno != ENOTDIR;
  return ours.st_dev == there.st_dev && ours.st_ino == there.st_ino;
}

bool LedgerFile::is_same_as(const LedgerFile& other) const noexcept {
  struct stat ours{}, theirs{};
  return ::fstat(fd_, &ours) == 0 && ::fstat(other.fd_, &theirs) == 0 && ours.st_dev == theirs.st_dev &&
         ours.st_ino == theirs.st_ino;
}

LedgerSegment& LedgerFile::segment() const {
  if (segment_ != nullptr) return *segment_;
  if (is_orphan_) {
    throw Misuse("ledger " + path_ + ": was opened before this process was forked; open it again here");
  }
  throw Misuse("ledger " + path_ + ": is closed");
}

void LedgerFile::close() noexcept {
  ForkRegistry::instance().remove(this);
  if (segment_ != nullptr) ::munmap(segment_, sizeof(LedgerSegment));
  segment_ = nullptr;
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

void LedgerFile::orphan() noexcept {
  segment_ = nullptr;  // MADV_DONTFORK: not mapped in this process
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  is_orphan_ = true;
}

bool LedgerFile::try_lock_slot(std::size_t slot) const noexcept {
  return try_lock(fd_, kSlotLockOffset + static_cast<off_t>(slot));
}

void LedgerFile::unlock_slot(std::size_t slot) const noexcept {
  unlock(fd_, kSlotLockOffset + static_cast<off_t>(slot));
}

bool LedgerFile::is_slot_locked_elsewhere(std::size_t slot) const noexcept {
  struct flock request = lock_request(F_WRLCK, kSlotLockOffset + static_cast<off_t>(slot));
  return ::fcntl(fd_, F_OFD_GETLK, &request) == 0 && request.l_type != F_UNLCK;
}

bool LedgerFile::reap(std::size_t self) const {
  const std::lock_guard<std::mutex> threads(usable(reap_mutex_));
  LedgerSegment& shared = segment();
  bool found = false;
  for (std::size_t slot = 0; slot < high_slot(shared); ++slot) {
    LedgerHotLine& hot = shared.hot[slot];
    const bool in_use = shared.info[slot].pid.load() != 0 || committed_bytes(hot) != 0;
    if (slot == self || !in_use || !try_lock_slot(slot)) continue;
    // The place counts as in use until all are woken: if we die on the way, the next one does it again.
    if (shared.info[slot].pid.load() == 0)
      shared.info[slot].pid.store(static_cast<std::uint32_t>(::getpid()));
    clear_account(hot);
    bump_for_the_dead();
    shared.info[slot].pid.store(0);
    unlock_slot(slot);
    found = true;
  }
  return found;
}

// The flag is cleared before the change is counted: one raised after that belongs to a waiter that sleeps on
// the new count, and has to stay for the next change. One raised in between is obeyed and stays as well.
void LedgerFile::bump() const {
  LedgerBell& bell = segment().bell;
  const bool is_called = bell.has_waiters.load() != 0 && bell.has_waiters.exchange(0) != 0;
  bell.generation.fetch_add(1);
  if (is_called || bell.has_waiters.load() != 0) futex_wake_all(bell.generation);
}

void LedgerFile::bump_for_the_dead() const {
  bump();
  futex_wake_all(segment().bell.generation);
}

void LedgerFile::call(std::size_t slot) const {
  std::atomic<std::uint32_t>& calls = segment().info[slot].calls;
  calls.fetch_add(1);
  futex_wake_all(calls);
}

void LedgerFile::call_others(std::size_t self) const {
  for (std::size_t slot = 0; slot < high_slot(segment()); ++slot) {
    if (slot != self && segment().info[slot].pid.load() != 0) call(slot);
  }
}

void LedgerFile::ring_for_lapses() const {
  LedgerSegment& shared = segment();
  const std::int64_t now_ns = coarse_now_ns();
  std::int64_t rung_ns = shared.bell.lapses_rung_ns.load();
  std::int64_t latest_ns = 0;
  for (std::size_t slot = 0; slot < high_slot(shared); ++slot) {
    const LedgerHotLine& line = shared.hot[slot];
    if (line.want_to_bytes.load() == 0) continue;
    const std::int64_t since_ns = std::clamp<std::int64_t>(line.want_since_ns.load(), 0, now_ns);
    for (const std::int64_t end_ns : {line.want_until_ns.load(), since_ns + kPatienceNs + kTurnNs}) {
      if (end_ns <= now_ns && (end_ns > rung_ns || rung_ns > now_ns)) latest_ns = std::max(latest_ns, end_ns);
    }
  }
  if (latest_ns > 0 && shared.bell.lapses_rung_ns.compare_exchange_strong(rung_ns, latest_ns)) bump();
}

void LedgerFile::sleep(std::uint32_t generation, double timeout_s) const {
  LedgerBell& bell = segment().bell;
  timespec timeout{};
  timeout.tv_sec = static_cast<time_t>(timeout_s);
  timeout.tv_nsec = static_cast<long>((timeout_s - std::floor(timeout_s)) * 1e9);
  // The flag before the futex call's own comparison: a waker either sees the flag or changed the word before.
  bell.has_waiters.store(1);
  futex_wait(bell.generation, generation, &timeout);
}

LedgerFile::AdminLock::AdminLock(const LedgerFile& file)
    : file_(file), threads_(file.usable(file.admin_mutex_)) {
  if (file_.fd_ < 0) file_.segment();  // closed: says so
  for (int poll = 0; poll < kAdminPolls; ++poll) {
    if (try_lock(file_.fd_, kAdminLockOffset)) return;
    const timespec pause{0, kAdminPollNs};
    ::nanosleep(&pause, nullptr);
  }
  throw Error("ledger " + file_.path_ +
              ": its lock is held by another process for 5 s; is that process stopped?");
}

std::mutex& LedgerFile::usable(std::mutex& mutex) const {
  if (is_orphan_) segment();
  return mutex;
}

LedgerFile::Quiet LedgerFile::exclude_threads() const {
  if (is_orphan_) return {};
  return {std::unique_lock(admin_mutex_), std::unique_lock(reap_mutex_)};
}

LedgerFile::AdminLock::~AdminLock() { unlock(file_.fd_, kAdminLockOffset); }

}  // namespace kvcached
