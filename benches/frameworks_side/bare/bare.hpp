// A runtime's own call in a plain process: what benches/frameworks compares the server with.
//
//     PROGRAM MODEL INPUT OUTPUT INPUTS OUTPUTS
//
// The program loads MODEL, whose tensors INPUT and OUTPUT have INPUTS and OUTPUTS numbers a row, and prints a line of JSON
// with the time of the load. Then it answers each line of standard input with one of JSON:
//
//     run ROWS SECONDS    calls for that long: CPU time of the process and wall time of each, in nanoseconds
//     echo ROWS SECONDS   the same, with an echo of the inputs over TCP between the calls, which is not counted: what the
//                         calls cost in a process that also receives and sends
//     rest ROWS SECONDS   the same with a pause of 100 microseconds too, as between requests of one client
//     calls ROWS COUNT    that many calls, for callgrind
//     load COUNT          further loads, each with one call; the models stay: milliseconds of each

#pragma once

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

namespace bare {

// The rows for which a model has its inputs prepared.
constexpr std::int64_t kRows[] = {1, 32};

struct Names {
    std::string model, input, output;
    std::int64_t inputs, outputs;
};

// A loaded model with its inputs.
struct Model {
    virtual ~Model() = default;
    // `at`: an index of kRows. Returns the first number of the result.
    virtual float run(std::size_t at) = 0;
};

// Each program defines it.
std::unique_ptr<Model> load(const Names& names);

[[noreturn]] inline void fail(const std::string& text) {
    std::fprintf(stderr, "%s\n", text.c_str());
    std::exit(1);
}

template <typename Function>
Function symbol(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) {
        fail(std::string("no function ") + name);
    }
    return reinterpret_cast<Function>(found);
}

inline void* open(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        fail(dlerror());
    }
    return library;
}

// The library, by the environment variable BARE_LIBRARY.
inline void* library() {
    static void* const opened = open(std::getenv("BARE_LIBRARY"));
    return opened;
}

inline std::vector<float> numbers(std::int64_t count) {
    std::vector<float> made(count);
    for (std::int64_t at = 0; at < count; ++at) {
        made[at] = static_cast<float>(at % 9 - 4) / 4;
    }
    return made;
}

inline std::int64_t now_ns(clockid_t clock) {
    timespec time{};
    clock_gettime(clock, &time);
    return time.tv_sec * 1000000000LL + time.tv_nsec;
}

// A connection of this process with itself.
struct Echo {
    Echo() {
        const int listener = socket(AF_INET, SOCK_STREAM, 0);
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof address;
        auto* at = reinterpret_cast<sockaddr*>(&address);
        ends[0] = socket(AF_INET, SOCK_STREAM, 0);
        if (bind(listener, at, length) != 0 || listen(listener, 1) != 0 || getsockname(listener, at, &length) != 0 ||
            connect(ends[0], at, length) != 0) {
            fail("no connection to itself");
        }
        ends[1] = accept(listener, nullptr, nullptr);
        close(listener);
    }

    // There and back.
    void turn(std::size_t bytes) {
        buffer.resize(bytes);
        for (int end = 0; end < 2; ++end) {
            if (write(ends[end], buffer.data(), bytes) != static_cast<ssize_t>(bytes)) {
                fail("a part of a message was written");
            }
            for (std::size_t done = 0; done < bytes;) {
                const ssize_t more = read(ends[1 - end], buffer.data() + done, bytes - done);
                if (more <= 0) {
                    fail("a message cannot be read");
                }
                done += static_cast<std::size_t>(more);
            }
        }
    }

    int ends[2];
    std::vector<char> buffer;
};

// What reading the clock twice counts.
inline std::int64_t clock_cost_ns() {
    constexpr int kTimes = 1000;
    std::int64_t total = 0;
    for (int one = 0; one < kTimes; ++one) {
        const std::int64_t began = now_ns(CLOCK_PROCESS_CPUTIME_ID);
        total += now_ns(CLOCK_PROCESS_CPUTIME_ID) - began;
    }
    return total / kTimes;
}

inline std::unique_ptr<Model> timed_load(const Names& names, double& milliseconds) {
    const std::int64_t began = now_ns(CLOCK_MONOTONIC);
    std::unique_ptr<Model> model = load(names);
    milliseconds = static_cast<double>(now_ns(CLOCK_MONOTONIC) - began) / 1e6;
    model->run(0);
    return model;
}

inline std::size_t index_of(std::int64_t rows) {
    return rows == kRows[0] ? 0 : 1;
}

}  // namespace bare

int main(int count, char** words) {
    if (count != 6) {
        bare::fail("PROGRAM MODEL INPUT OUTPUT INPUTS OUTPUTS");
    }
    const bare::Names names{words[1], words[2], words[3], std::atoll(words[4]), std::atoll(words[5])};
    std::vector<std::unique_ptr<bare::Model>> models;
    double milliseconds = 0;
    models.push_back(bare::timed_load(names, milliseconds));
    std::printf("{\"load_ms\": [%.3f], \"first\": %.6f}\n", milliseconds, models[0]->run(0));
    std::fflush(stdout);
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream parts(line);
        std::string verb;
        std::int64_t rows = 0;
        double amount = 0;
        parts >> verb;
        if (verb == "load") {
            parts >> amount;
            std::string times;
            for (int at = 0; at < static_cast<int>(amount); ++at) {
                models.push_back(bare::timed_load(names, milliseconds));
                times += (at == 0 ? "" : ", ") + std::to_string(milliseconds);
            }
            std::printf("{\"load_ms\": [%s]}\n", times.c_str());
            std::fflush(stdout);
            continue;
        }
        parts >> rows >> amount;
        const std::size_t at = bare::index_of(rows);
        bare::Model& model = *models[0];
        if (verb == "echo" || verb == "rest") {
            static bare::Echo echo;
            const std::size_t bytes = static_cast<std::size_t>(rows * names.inputs) * sizeof(float);
            const std::int64_t clock = bare::clock_cost_ns();
            const std::int64_t until = bare::now_ns(CLOCK_MONOTONIC) + static_cast<std::int64_t>(amount * 1e9);
            std::int64_t calls = 0, used = 0;
            for (; bare::now_ns(CLOCK_MONOTONIC) < until; ++calls) {
                echo.turn(bytes);
                if (verb == "rest") {
                    usleep(100);
                }
                const std::int64_t began = bare::now_ns(CLOCK_PROCESS_CPUTIME_ID);
                model.run(at);
                used += bare::now_ns(CLOCK_PROCESS_CPUTIME_ID) - began - clock;
            }
            std::printf(
                "{\"calls\": %lld, \"cpu_ns\": %.1f}\n", static_cast<long long>(calls),
                static_cast<double>(used) / static_cast<double>(calls));
            std::fflush(stdout);
            continue;
        }
        const std::int64_t limit = verb == "calls" ? static_cast<std::int64_t>(amount) : INT64_MAX;
        const std::int64_t began = bare::now_ns(CLOCK_MONOTONIC);
        const std::int64_t cpu = bare::now_ns(CLOCK_PROCESS_CPUTIME_ID);
        const std::int64_t until = verb == "calls" ? INT64_MAX : began + static_cast<std::int64_t>(amount * 1e9);
        std::int64_t calls = 0;
        std::int64_t ended = began;
        while (calls < limit && ended < until) {
            // The clock is read seldom, so that it does not count.
            for (int one = 0; one < 16 && calls < limit; ++one, ++calls) {
                model.run(at);
            }
            ended = bare::now_ns(CLOCK_MONOTONIC);
        }
        const double used = static_cast<double>(bare::now_ns(CLOCK_PROCESS_CPUTIME_ID) - cpu);
        std::printf(
            "{\"calls\": %lld, \"cpu_ns\": %.1f, \"wall_ns\": %.1f}\n", static_cast<long long>(calls), used / calls,
            static_cast<double>(ended - began) / calls);
        std::fflush(stdout);
    }
}
