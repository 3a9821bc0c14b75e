#pragma once

#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <new>
#include <stdexcept>
#include <utility>

// A forked process that runs `body` and exits with its result; ends with its owner, or by itself after a
// while.
class Child {
 public:
  explicit Child(const std::function<int()>& body, unsigned seconds = 120) : pid_(::fork()) {
    if (pid_ < 0) throw std::runtime_error("fork");
    if (pid_ > 0) return;
    ::alarm(seconds);
    int status = 99;
    try {
      status = body();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "  child: %s\n", error.what());
    }
    ::_exit(status);
  }
  Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, 0)) {}
  Child& operator=(Child&& other) noexcept {
    std::swap(pid_, other.pid_);
    return *this;
  }
  ~Child() {
    if (pid_ > 0) kill();
  }

  pid_t pid() const { return pid_; }
  void kill() {
    ::kill(pid_, SIGKILL);
    wait();
  }
  int wait() {
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = 0;
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  }

 private:
  pid_t pid_;
};

// A T in memory that forked children share.
template <typename T>
class Shared {
 public:
  Shared() : value_(new (map()) T) {}
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;
  ~Shared() { ::munmap(value_, sizeof(T)); }
  T* operator->() const { return value_; }
  T& operator*() const { return *value_; }

 private:
  static void* map() {
    void* memory = ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) throw std::runtime_error("mmap");
    return memory;
  }
  T* value_;
};
