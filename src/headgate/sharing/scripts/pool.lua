-- One question to one pool: the decisions of pool/answer.py, step by step. Comes after integers.lua and state.lua.
--
-- KEYS[1]  the pool                 ARGV[1]  the question, as JSON        ARGV[2]  the constants, as a list in JSON
-- reply    the values of the answer  news     to the channel KEYS[1]:news, when the window or the limits changed
--
-- Times are the server's, in microseconds.

local LAYOUT, HORIZON, FAR, AGAIN, SET_BACK, MOST_MARKS, KEPT_IDLE = unpack(cjson.decode(ARGV[2]))

-- Whether two lists have the same values, or the same `last` ones to begin with.
local function same(a, b, last)
  for i = 1, last or max(#a, #b) do
    if a[i] ~= b[i] then
      return false
    end
  end
  return true
end

-- -- the pool

local function new_pool()
  return {
    rates = {}, limits = {0, 0, 0, 0}, units = {}, version = 0, members = {}, window = {false, 0, false}, stamp = 0,
    now = 0, ahead = 0,
  }
end

local function new_member(expires)
  return {expires, 0, {0, 0}, {0, 0}, 0, 0, 0, 0, 0, 0, false}
end

local function next_stamp(pool)
  pool.stamp = exact(max(pool.stamp + 1, pool.now))
  return pool.stamp
end

local function advance(pool, now)
  if now + pool.ahead < pool.now - SET_BACK then
    pool.ahead = pool.now - now
  end
  pool.now = max(now + pool.ahead, pool.now)
  for name, member in pairs(pool.members) do
    if member[EXPIRES] <= pool.now then
      pool.members[name] = nil
    end
  end
end

-- -- rates

local function time_for(rate, units)
  return rounded_up(units, rate[PERIOD], rate[AMOUNT])
end

local function tolerance(rate)
  return time_for(rate, rate[BURST] - floor(rate[BURST] / 10))
end

local function fits_at(rate, units, now)
  return max(now, rate[FULL_AT] + time_for(rate, min(units, rate[BURST])) - tolerance(rate))
end

local function idle_for(pool)
  local until_, latest = pool.window[UNTIL], pool.now
  if until_ then
    latest = max(latest, until_ + pool.limits[THROTTLED_FOR])
  end
  for _, rate in ipairs(pool.rates) do
    latest = max(latest, rate[FULL_AT] + time_for(rate, rate[BURST]) - tolerance(rate))
    if until_ ~= pool.window[RESUMED] then
      latest = max(latest, until_ + time_for(rate, rate[BURST]))
    end
  end
  for _, member in pairs(pool.members) do
    latest = max(latest, member[EXPIRES])
  end
  return latest - pool.now
end

local function fill(rate, stamp)
  rate[FULL_STAMP] = stamp
  rate[STAMPS], rate[LOWS] = {}, {}
end

local function charge(rate, units, start, stamp)
  local missing = rate[FULL_AT] - start
  if missing <= 0 then
    fill(rate, stamp)
  else
    local stamps, lows = rate[STAMPS], rate[LOWS]
    while #lows > 0 and lows[#lows] >= missing do
      lows[#lows] = nil
      stamps[#stamps] = nil
    end
    stamps[#stamps + 1] = stamp
    lows[#lows + 1] = missing
    if #lows > MOST_MARKS then
      table.remove(lows, 2)
      table.remove(stamps, 1)
    end
  end
  rate[FULL_AT] = exact(max(rate[FULL_AT], start) + time_for(rate, units))
end

local function take_back(rate, units, stamp, now)
  local stamps, lows = rate[STAMPS], rate[LOWS]
  if rate[FULL_STAMP] > stamp or rate[FULL_AT] <= now then
    return
  end
  local later = #stamps + 1
  for i, mark in ipairs(stamps) do
    if mark > stamp then
      later = i
      break
    end
  end
  local lowest = rate[FULL_AT] - now
  if lows[later] then
    lowest = min(lowest, lows[later])
  end
  local credit = min((divided(units, rate[PERIOD], rate[AMOUNT])), lowest)
  rate[FULL_AT] = rate[FULL_AT] - credit
  for i = later, #lows do
    lows[i] = lows[i] - credit
  end
  while later > 1 and lows[later] and lows[later - 1] >= lows[later] do
    later = later - 1
    table.remove(stamps, later)
    table.remove(lows, later)
  end
end

-- -- limits and the window

local function same_limits(pool, wanted, limits)
  local alike = #wanted == #pool.rates and same(pool.limits, limits)
  for i, rate in ipairs(pool.rates) do
    alike = alike and same(rate, wanted[i], BURST)
  end
  return alike
end

local function successor(old, i, terms, stamp, now)
  local rate = {exact(terms[AMOUNT]), exact(terms[PERIOD]), exact(terms[BURST]), 0, stamp, {}, {}}
  local before = old[i]
  for j = #old, 1, -1 do
    if same(old[j], terms, BURST) then
      before = old[j]
    end
  end
  if before then
    local owed, left = max(0, before[FULL_AT] - now), 0
    -- If twice the burst or more is missing, how much more does not matter, and may be too large a number.
    if owed / before[PERIOD] * before[AMOUNT] < 2 * before[BURST] + 2 then
      left = max(0, before[BURST] - rounded_up(owed, before[AMOUNT], before[PERIOD]))
    end
    rate[FULL_AT] = exact(now + time_for(rate, max(0, rate[BURST] - left)))
  end
  return rate
end

local function read_limits(pool, question, now)
  local wanted, limits = question.rates, question.limits
  if question.set ~= cjson.null then
    wanted, limits = question.set[1], question.set[2]
  elseif pool.version > 0 then
    return
  end
  if same_limits(pool, wanted, limits) then
    return
  end
  if #wanted ~= #pool.rates or (pool.version > 0 and not same(pool.units, question.units)) then
    for name in pairs(pool.members) do
      if name ~= question.member then
        return
      end
    end
  end
  pool.version = next_stamp(pool)
  local rates = {}
  for i, terms in ipairs(wanted) do
    rates[i] = successor(pool.rates, i, terms, pool.version, now)
  end
  pool.rates = rates
  pool.units = question.units
  pool.limits = {exact(limits[1]), exact(limits[2]), exact(limits[3]), exact(limits[4])}
end

local function signal_window(pool, duration, now)
  local window = pool.window
  if duration < 0 then
    window[UNTIL] = min(window[UNTIL] or now, now)
  elseif duration > 0 and now + duration > (window[UNTIL] or 0) then
    window[UNTIL] = exact(now + duration)
  else
    return
  end
  window[GENERATION] = next_stamp(pool)
end

local function resume(pool, now)
  local window = pool.window
  if window[UNTIL] and window[UNTIL] ~= window[RESUMED] and window[UNTIL] <= now then
    for _, rate in ipairs(pool.rates) do
      charge(rate, 0, exact(window[UNTIL] + tolerance(rate)), next_stamp(pool))
    end
    window[RESUMED] = window[UNTIL]
  end
end

-- -- what is granted

local function charge_and_return(pool, question, now)
  local same_rates = #question.owed == #pool.rates
  for i, rate in ipairs(pool.rates) do
    if rate[FULL_AT] <= now then
      fill(rate, next_stamp(pool))
    end
    if same_rates then
      for _, returned in ipairs(question.returned[i]) do
        take_back(rate, returned[1], returned[2], now)
      end
      if question.owed[i] ~= 0 then
        charge(rate, question.owed[i], now, next_stamp(pool))
      end
    end
  end
end

local function grant(pool, member, question, now)
  local starts, rates, batches, until_ = {}, pool.rates, question.batches, pool.window[UNTIL]
  if #batches == 0 or #question.owed ~= #rates then
    return starts, 0
  end
  if question.waits_for_window and until_ and until_ > now then
    return starts, until_ - now
  end
  for _, batch in ipairs(batches) do
    if member[LAST_START] > now + HORIZON then
      return starts, member[LAST_START] - HORIZON - now
    end
    local start = now
    for i, rate in ipairs(rates) do
      if batch[i] ~= 0 then
        start = max(start, fits_at(rate, batch[i], now))
      end
    end
    if start > now + FAR and (member[PUT_OFF] == 0 or now - member[PUT_OFF] < FAR) then
      if member[PUT_OFF] == 0 then
        member[PUT_OFF] = now
      end
      return starts, min(start - FAR - now, AGAIN)
    end
    member[PUT_OFF] = 0
    local stamp = next_stamp(pool)
    for i, rate in ipairs(rates) do
      if batch[i] ~= 0 then
        charge(rate, batch[i], start, stamp)
      end
    end
    member[LAST_START] = start
    starts[#starts + 1] = start
  end
  return starts, 0
end

local function share_of(pool, who, kind, limit)
  local members, wants, names = pool.members, {}, {}
  for name, member in pairs(members) do
    names[#names + 1] = name
    wants[#wants + 1] = member[WANTS][kind]
  end
  table.sort(wants)
  local left, sharing, share = limit, #names, 0
  for _, want in ipairs(wants) do
    share = floor(left / sharing)
    if want > share then
      break
    end
    left = left - want
    sharing = sharing - 1
  end
  local remainder = left - share * sharing
  table.sort(names, function(a, b)
    if members[a][TURN] ~= members[b][TURN] then
      return members[a][TURN] < members[b][TURN]
    end
    return a < b
  end)
  local own, even_own, held = 0, 0, 0
  left = limit
  for _, name in ipairs(names) do
    local member = members[name]
    local want = member[WANTS][kind]
    local even = min(want, share)
    local most = even
    if want > share then
      if remainder > 0 then
        remainder = remainder - 1
        most = most + 1
      end
      if kind == BYTES then
        most = max(most, min(member[NEXT_BYTES], limit))
      end
    end
    most = min(most, left)
    left = left - most
    if name == who then
      own, even_own = most, even
    else
      held = held + max(member[HOLDS][kind], most)
    end
  end
  own = max(0, min(own, limit - held))
  if own > even_own + (even_own > 0 and 1 or 0) then
    members[who][TURN] = next_stamp(pool)
  end
  return own
end

local function hold(pool, who, member, question, now)
  local limits, until_ = pool.limits, pool.window[UNTIL]
  local places, throttled = limits[PLACES_LIMIT], limits[THROTTLED_PLACES]
  if throttled > 0 and until_ and now < until_ + limits[THROTTLED_FOR] then
    places = places > 0 and min(places, throttled) or throttled
  end
  local crowded, granted, most = false, {}, {[PLACES] = places, [BYTES] = limits[BYTES_LIMIT]}
  member[NEXT_BYTES] = exact(question.next_bytes)
  member[IN_FLIGHT], member[WAITING] = exact(question.uses[PLACES]), exact(question.waiting)
  for kind = PLACES, BYTES do
    local used, limit = exact(question.uses[kind]), most[kind]
    local want = used + exact(question.wants[kind])
    local target = want + exact(question.spare[kind])
    member[WANTS][kind] = want
    if limit > 0 then
      local left = limit
      for name, other in pairs(pool.members) do
        if name ~= who then
          left = left - max(other[HOLDS][kind], other[WANTS][kind])
          crowded = crowded or other[WANTS][kind] > other[HOLDS][kind]
        end
      end
      if want <= left then
        target = min(target, left)
      else
        target = share_of(pool, who, kind, limit)
      end
    end
    member[HOLDS][kind] = max(used, target)
    granted[kind] = target
  end
  return granted[PLACES], granted[BYTES], crowded
end

-- -- the answer

local function answer(pool, question, now)
  local who = question.member
  local known = pool.members[who]
  if known and known[ANSWER] and question.id <= known[ANSWERED] then
    return known[ANSWER], false
  end
  advance(pool, now)
  now = pool.now
  read_limits(pool, question, now)
  local member = pool.members[who] or new_member(0)
  pool.members[who] = member
  member[EXPIRES] = exact(now + question.lease)
  if question.window ~= cjson.null then
    signal_window(pool, question.window, now)
  end
  if question.waits_for_window then
    resume(pool, now)
  end
  charge_and_return(pool, question, now)
  local starts, ask_again_in = grant(pool, member, question, now)
  local first_stamp = pool.stamp - #starts + 1
  local places, load, crowded = hold(pool, who, member, question, now)
  local count, until_ = 0, pool.window[UNTIL]
  for i, start in ipairs(starts) do
    starts[i] = start - now
  end
  for _ in pairs(pool.members) do
    count = count + 1
  end
  -- In the order of `Answer` in pool/question.py.
  local given = {
    starts, first_stamp, ask_again_in, exact(places), exact(load), crowded and 1 or 0, count, pool.version,
    until_ and max(0, until_ - now) or 0, pool.window[GENERATION],
  }
  if question.version ~= pool.version then
    local terms = {}
    for i, rate in ipairs(pool.rates) do
      terms[i] = {rate[AMOUNT], rate[PERIOD], rate[BURST]}
    end
    given[11], given[12], given[13] = terms, pool.limits, pool.units
  end
  if question.leaves then
    member = new_member(member[EXPIRES])
    pool.members[who] = member
  end
  member[ANSWERED], member[ANSWER] = question.id, given
  return given, true
end

-- -- one question

local text = redis.call('GET', KEYS[1])
local pool = new_pool()
if text then
  pool = unpacked(text, LAYOUT) or error('headgate: the key is not a pool of this version')
end
local question = cjson.decode(ARGV[1])
local now = microseconds(redis.call('TIME'))

local generation, version = pool.window[GENERATION], pool.version
local given, changed = answer(pool, question, now)
if changed then
  local keep = ceil((idle_for(pool) + KEPT_IDLE) / 1000)
  redis.call('SET', KEYS[1], packed(pool, LAYOUT), 'PX', keep)
  if pool.window[GENERATION] ~= generation or pool.version ~= version then
    -- A user who may not publish is still answered: other members hear the news with their next answer.
    redis.pcall('PUBLISH', KEYS[1] .. ':news', 'changed')
  end
end
return given
