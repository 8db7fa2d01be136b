// Boost.Context fibers that threads hand to one another: each step of a fiber runs on the thread whose turn it is.
#include "target.h"
#include <atomic>
#include <boost/context/fiber.hpp>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace ctx = boost::context;

enum { FIBERS = 20, ROUNDS = 50 };

FN static long leaf(long x) { KEEP; return x + 1; }

FN static long step(long x)
{
    long r = leaf(x) + leaf(x + 1);
    KEEP;
    return r;
}

struct Task {
    long sum = 0;
    ctx::fiber fiber;
};

FN static ctx::fiber pause_fiber(ctx::fiber &&scheduler)
{
    ctx::fiber back = std::move(scheduler).resume();
    KEEP;
    return back;
}

FN static ctx::fiber body(Task *task, ctx::fiber &&scheduler)
{
    ctx::fiber back = std::move(scheduler);
    for (int i = 0; i < ROUNDS; i++) {
        task->sum += step(i);
        back = pause_fiber(std::move(back));
    }
    KEEP;
    return back;
}

FN static bool run_step(Task &task)
{
    task.fiber = std::move(task.fiber).resume();
    KEEP;
    return bool(task.fiber);
}

static std::vector<std::unique_ptr<Task>> tasks;
static std::atomic<int> turn;

FN static void even(void)
{
    for (auto &task : tasks)
        run_step(*task);
    KEEP;
}

FN static void odd(void)
{
    for (auto &task : tasks)
        run_step(*task);
    KEEP;
}

FN static void wait_for_turn(int number)
{
    for (int round = number; round < ROUNDS; round += 2) {
        while (turn.load() != round)
            std::this_thread::yield();
        if (number)
            odd();
        else
            even();
        turn.store(round + 1);
    }
}

int main()
{
    for (int i = 0; i < FIBERS; i++) {
        tasks.push_back(std::make_unique<Task>());
        Task *task = tasks.back().get();
        task->fiber = ctx::fiber([task](ctx::fiber &&scheduler) {
            return body(task, std::move(scheduler));
        });
    }
    std::thread other([] { wait_for_turn(1); });
    wait_for_turn(0);
    other.join();
    long sum = 0;
    for (auto &task : tasks) {
        sum += task->sum;
        // Not at its end yet: destroying it unwinds its stack.
        CHECK(bool(task->fiber));
    }
    tasks.clear();
    printf("migrating: ok %ld\n", sum);
    return 0;
}
