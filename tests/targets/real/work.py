"""Start-up, JSON and recursion: what an interpreter does all day. The argument is the number of rounds."""
import json
import sys


def fib(n):
    return n if n < 2 else fib(n - 1) + fib(n - 2)


def tree(depth):
    return {"depth": depth, "list": list(range(depth)), "left": tree(depth - 1), "right": None} if depth else {"leaf": 1.5}


for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1):
    text = json.dumps([tree(6) for _ in range(20)], sort_keys=True)
    back = json.loads(text)
    try:
        json.loads("{broken")
    except ValueError as error:
        caught = type(error).__name__
    print(len(text), len(back), fib(15), caught)
