-- Deterministic work for the interpreter: calls, closures, tables, strings, coroutines, errors.
local function fib(n) if n < 2 then return n end return fib(n - 1) + fib(n - 2) end

local function sieve(limit)
  local composite, count = {}, 0
  for i = 2, limit do
    if not composite[i] then
      count = count + 1
      for k = i * i, limit, i do composite[k] = true end
    end
  end
  return count
end

local function words(text)
  local seen, order = {}, {}
  for word in text:gmatch("%a+") do
    if not seen[word] then order[#order + 1] = word end
    seen[word] = (seen[word] or 0) + 1
  end
  table.sort(order, function(a, b) return seen[a] > seen[b] or (seen[a] == seen[b] and a < b) end)
  return table.concat(order, ",")
end

local function squares(n)
  return coroutine.wrap(function() for i = 1, n do coroutine.yield(i * i) end end)
end

local rounds = tonumber(arg and arg[1]) or 1
for _ = 1, rounds do
  local sum = 0
  for s in squares(200) do sum = sum + s end
  local ok, message = pcall(function() error("expected", 0) end)
  assert(not ok and message == "expected")
  print(fib(18), sieve(3000), words(("the quick brown fox jumps over the lazy dog "):rep(20)), sum)
end
