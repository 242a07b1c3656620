-- One question to one pool: the arithmetic of rules/pool.py, step by step, under the same names.
--
-- KEYS[1]  the pool                 ARGV[1]  the question, as JSON
-- reply    the answer, as JSON      news     to the channel KEYS[1]:news, when the window or the limits changed
--
-- Times are the server's, in microseconds. Numbers here are doubles: what a double cannot hold exactly is
-- an error, and then nothing has changed. Lists begin at 1, so `rate[4]` is `rate[3]` over there.

local LAYOUT = 3
local HORIZON = 100000
local FAR = 2000000
local AGAIN = 500000
local SET_BACK = 1000000
local MOST_MARKS = 32
local EXACT = 9007199254740992
local IDLE = 60000 -- milliseconds for which a pool is kept when there is nothing worth remembering

local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min

local function microseconds(time)
  return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

local function exact(number)
  if number > -EXACT and number < EXACT then
    return number
  end
  error('headgate: a number that is too large')
end

-- a * b / n rounded down, and what is left over; the product itself may be larger than a number can be.
local function share_of(a, b, n)
  if not (n > 0) then
    error('headgate: a rate of nothing')
  end
  if a * b < EXACT then
    return floor(a * b / n), a * b % n
  end
  exact(a)
  exact(b)
  -- By long division, digit by digit of b. The whole multiples of n in a need none.
  local base = 32768
  while n * base * 2 > EXACT do
    base = base / 2
  end
  if base < 2 then
    error('headgate: a number that is too large')
  end
  local whole, rest = floor(a / n) * b, a % n
  local digits = {}
  while b > 0 do
    digits[#digits + 1] = b % base
    b = floor(b / base)
  end
  local quotient, left = 0, 0
  for i = #digits, 1, -1 do
    local part = left * base + rest * digits[i]
    quotient = quotient * base + floor(part / n)
    left = part % n
  end
  return exact(whole + quotient), left
end

local function rounded_up(a, b, n)
  local quotient, left = share_of(a, b, n)
  if left > 0 then
    return quotient + 1
  end
  return quotient
end

local function given_or(value, otherwise)
  if value == nil or value == cjson.null then
    return otherwise
  end
  return value
end

-- -- the pool

local function new_pool()
  return {
    rates = {}, -- of each: amount, period, burst, tat, full at, mark stamps, mark backlogs
    limits = {0, 0, 0, 0},
    units = {}, -- what each rate counts: for those who look
    version = 0,
    -- of each: expires, last start, places, bytes, wants places, wants bytes, put off, needs, turn,
    -- and for those who look: how many are under way there, and how many wait
    members = {},
    -- until when, if there ever was one; generation; the end that the rates have come back from
    window = {false, 0, false},
    answered = {}, -- of each member: id of its last question, the answer
    stamp = 0, -- the last one given
    now = 0,
  }
end

local function unpacked(text)
  if not text then
    return new_pool()
  end
  local s = cmsgpack.unpack(text)
  if type(s) ~= 'table' or s[1] ~= LAYOUT then
    error('headgate: the key is not a pool of this version')
  end
  return {
    rates = s[2], limits = s[3], version = s[4], members = s[5], window = s[6], answered = s[7], now = s[8], units = s[9],
    stamp = s[10],
  }
end

local function packed(p)
  return cmsgpack.pack({LAYOUT, p.rates, p.limits, p.version, p.members, p.window, p.answered, p.now, p.units, p.stamp})
end

local function shift(pool, by)
  pool.now = pool.now + by
  for _, rate in ipairs(pool.rates) do
    rate[4] = rate[4] + by
  end
  for _, member in pairs(pool.members) do
    member[1] = member[1] + by
    member[2] = member[2] + by
    if member[7] ~= 0 then
      member[7] = member[7] + by
    end
  end
  for i = 1, 3, 2 do
    if pool.window[i] then
      pool.window[i] = pool.window[i] + by
    end
  end
end

local function next_stamp(pool, now)
  pool.stamp = exact(max(pool.stamp + 1, now))
  return pool.stamp
end

local function forget_the_dead(pool, now)
  for who, member in pairs(pool.members) do
    if member[1] <= now then
      pool.members[who] = nil
      pool.answered[who] = nil
    end
  end
end

-- -- rates

local function span(rate, units)
  local product, amount = units * rate[2], rate[1]
  if product < EXACT and amount > 0 then
    return ceil(product / amount) -- exact, as are both
  end
  return rounded_up(units, rate[2], amount)
end

local function tolerance(rate)
  return span(rate, rate[3] - floor(rate[3] / 10))
end

local function idle_for(pool, now)
  local latest = now
  if pool.window[1] then
    latest = max(now, pool.window[1] + pool.limits[4])
  end
  for _, rate in ipairs(pool.rates) do
    latest = max(latest, rate[4] + span(rate, rate[3]) - tolerance(rate))
    if pool.window[1] ~= pool.window[3] then
      latest = max(latest, pool.window[1] + span(rate, rate[3]))
    end
  end
  for _, member in pairs(pool.members) do
    latest = max(latest, member[1])
  end
  return latest - now
end

local function fits_at(rate, units, now, tolerated)
  return max(now, rate[4] + span(rate, min(units, rate[3])) - tolerated)
end

local function fill(pool, rate, now)
  rate[5] = next_stamp(pool, now)
  rate[6], rate[7] = {}, {}
end

local function charge(rate, need, start, stamp)
  local missing = rate[4] - start
  if missing <= 0 then
    rate[5] = stamp
    rate[6], rate[7] = {}, {}
  else
    local stamps, lows = rate[6], rate[7]
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
  rate[4] = exact(max(rate[4], start) + need)
end

local function give_back(rate, units, stamp, now)
  local stamps, lows = rate[6], rate[7]
  if rate[5] > stamp or rate[4] <= now then
    return
  end
  local later = #stamps + 1
  for i, mark in ipairs(stamps) do
    if mark > stamp then
      later = i
      break
    end
  end
  local lowest = rate[4] - now
  if lows[later] then
    lowest = min(lowest, lows[later])
  end
  local credit = min((share_of(units, rate[2], rate[1])), lowest)
  rate[4] = rate[4] - credit
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
  if #wanted ~= #pool.rates then
    return false
  end
  for i, rate in ipairs(pool.rates) do
    for j = 1, 3 do
      if rate[j] ~= wanted[i][j] then
        return false
      end
    end
  end
  for j = 1, 4 do
    if pool.limits[j] ~= limits[j] then
      return false
    end
  end
  return true
end

local function read_limits(pool, question, now)
  local set = given_or(question.set, nil)
  if not set and pool.version > 0 then
    return
  end
  local wanted, limits = question.rates, question.limits
  if set then
    wanted, limits = set[1], set[2]
  end
  if same_limits(pool, wanted, limits) then
    return
  end
  local units = given_or(question.units, {})
  local alike = #wanted == #pool.rates
  if alike and pool.version > 0 then
    alike = #units == #pool.units
    for i, unit in ipairs(units) do
      alike = alike and unit == pool.units[i]
    end
  end
  if not alike then
    for who in pairs(pool.members) do
      if who ~= question.member then
        return
      end
    end
  end
  pool.version = next_stamp(pool, now)
  local rates = {}
  for i, new in ipairs(wanted) do
    local before = pool.rates[i]
    for j = #pool.rates, 1, -1 do
      local each = pool.rates[j]
      if each[1] == new[1] and each[2] == new[2] and each[3] == new[3] then
        before = each
      end
    end
    local rate = {exact(new[1]), exact(new[2]), exact(new[3]), 0, pool.version, {}, {}}
    if before then
      local owed, left = max(0, before[4] - now), 0
      -- Twice the burst and more is missing: how much more does not matter, and may be too large a number.
      if owed / before[2] * before[1] < 2 * before[3] + 2 then
        left = max(0, before[3] - rounded_up(owed, before[1], before[2]))
      end
      rate[4] = exact(now + span(rate, max(0, rate[3] - left)))
    end
    rates[i] = rate
  end
  pool.rates = rates
  pool.units = units
  pool.limits = {exact(limits[1]), exact(limits[2]), exact(limits[3]), exact(limits[4])}
end

local function close_window(pool, question, now)
  local duration = given_or(question.pause, 0)
  if duration == 0 then
    return
  end
  local window = pool.window
  if duration < 0 then
    window[1] = min(window[1] or now, now)
    window[2] = next_stamp(pool, now)
  elseif not window[1] or now + duration > window[1] then
    window[1] = exact(now + duration)
    window[2] = next_stamp(pool, now)
  end
end

local function resume(pool, now)
  local window = pool.window
  if window[1] and window[1] ~= window[3] and window[1] <= now then
    for _, rate in ipairs(pool.rates) do
      charge(rate, 0, exact(window[1] + tolerance(rate)), next_stamp(pool, now))
    end
    window[3] = window[1]
  end
end

-- -- what is given

local function book(pool, member, lumps, pauses, now)
  local starts = {}
  if #lumps == 0 then
    return starts, 0
  end
  local until_ = pool.window[1]
  if pauses and until_ and until_ > now then
    return starts, until_ - now
  end
  local rates, tolerated, needs = pool.rates, {}, {}
  for i, rate in ipairs(rates) do
    tolerated[i] = tolerance(rate)
  end
  for _, lump in ipairs(lumps) do
    if member[2] > now + HORIZON then
      return starts, member[2] - HORIZON - now
    end
    local start = now
    for i, rate in ipairs(rates) do
      if lump[i] ~= 0 then
        needs[i] = span(rate, lump[i])
        start = max(start, fits_at(rate, lump[i], now, tolerated[i]))
      end
    end
    if start > now + FAR and (member[7] == 0 or now - member[7] < FAR) then
      if member[7] == 0 then
        member[7] = now
      end
      return starts, min(start - FAR - now, AGAIN)
    end
    member[7] = 0
    local stamp = next_stamp(pool, now)
    for i, rate in ipairs(rates) do
      if lump[i] ~= 0 then
        charge(rate, needs[i], start, stamp)
      end
    end
    member[2] = start
    starts[#starts + 1] = start
  end
  return starts, 0
end

local function part_of(pool, who, column, limit, now)
  local members, wants, names = pool.members, {}, {}
  for name, member in pairs(members) do
    names[#names + 1] = name
    wants[#wants + 1] = member[column + 2]
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
  local odd = left - share * sharing
  table.sort(names, function(a, b)
    if members[a][9] ~= members[b][9] then
      return members[a][9] < members[b][9]
    end
    return a < b
  end)
  local part, own, held = 0, 0, 0
  left = limit
  for _, name in ipairs(names) do
    local member = members[name]
    local even = min(member[column + 2], share)
    local most = even
    if member[column + 2] > share then
      if odd > 0 then
        odd = odd - 1
        most = most + 1
      end
      if column == 4 then
        most = max(most, min(member[8], limit))
      end
    end
    most = min(most, left)
    left = left - most
    if name == who then
      part, own = most, even
    else
      held = held + max(member[column], most)
    end
  end
  part = max(0, min(part, limit - held))
  if part > own + (own > 0 and 1 or 0) then
    members[who][9] = next_stamp(pool, now)
  end
  return part
end

local function hold(pool, who, member, question, now)
  local places, throttled, load, tail = unpack(pool.limits)
  if throttled > 0 and pool.window[1] and now < pool.window[1] + tail then
    if places > 0 then
      places = min(places, throttled)
    else
      places = throttled
    end
  end
  local crowded, granted, limits = false, {}, {[3] = places, [4] = load}
  member[8] = exact(question.needs)
  member[10], member[11] = exact(question.uses[1]), exact(given_or(question.waiting, 0))
  for column = 3, 4 do
    local used, wanted = exact(question.uses[column - 2]), exact(question.wants[column - 2])
    local want, limit = used + wanted, limits[column]
    local target = want + exact(question.spare[column - 2])
    member[column + 2] = want
    if limit > 0 then
      local left = limit
      for name, other in pairs(pool.members) do
        if name ~= who then
          left = left - max(other[column], other[column + 2])
          crowded = crowded or other[column + 2] > other[column]
        end
      end
      if want <= left then
        target = min(target, left)
      else
        target = part_of(pool, who, column, limit, now)
      end
    end
    member[column] = max(used, target)
    granted[column] = target
  end
  return granted[3], granted[4], crowded
end

-- -- the answer, written by hand: cjson cannot tell an empty list from an empty object

local function int(number)
  return string.format('%.0f', exact(number))
end

local function list(numbers, first, last)
  local texts = {}
  for i = first or 1, last or #numbers do
    texts[#texts + 1] = int(numbers[i])
  end
  return '[' .. table.concat(texts, ',') .. ']'
end

local function answer(pool, question, now)
  local who, number = question.member, question.id
  local known = pool.answered[who]
  if known and number <= known[1] then
    return known[2], false
  end
  if now < pool.now - SET_BACK then
    shift(pool, now - pool.now)
  end
  now = max(now, pool.now)
  pool.now = now
  forget_the_dead(pool, now)
  read_limits(pool, question, now)
  local member = pool.members[who] or {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
  pool.members[who] = member
  member[1] = exact(now + question.lease)
  close_window(pool, question, now)
  if question.pauses then
    resume(pool, now)
  end
  local alike, lumps = #question.extra == #pool.rates, {}
  if alike then
    lumps = question.lumps
  end
  for i, rate in ipairs(pool.rates) do
    if rate[4] <= now then
      fill(pool, rate, now)
    end
    if alike then
      for _, returned in ipairs(question.back[i]) do
        give_back(rate, returned[1], returned[2], now)
      end
      if question.extra[i] ~= 0 then
        charge(rate, span(rate, question.extra[i]), now, next_stamp(pool, now))
      end
    end
  end
  local starts, again = book(pool, member, lumps, question.pauses, now)
  local stamp = pool.stamp - #starts + 1
  local places, load, crowded = hold(pool, who, member, question, now)
  local window, count = pool.window, 0
  for i, start in ipairs(starts) do
    starts[i] = start - now
  end
  for _ in pairs(pool.members) do
    count = count + 1
  end
  local remaining = 0
  if window[1] then
    remaining = max(0, window[1] - now)
  end
  local given = '{"starts":' .. list(starts)
    .. ',"stamp":' .. int(stamp)
    .. ',"again":' .. int(again)
    .. ',"places":' .. int(places)
    .. ',"bytes":' .. int(load)
    .. ',"crowded":' .. tostring(crowded)
    .. ',"members":' .. int(count)
    .. ',"version":' .. int(pool.version)
    .. ',"window":' .. list({remaining, window[2]})
  if question.version ~= pool.version then
    local rates = {}
    for i, rate in ipairs(pool.rates) do
      rates[i] = list(rate, 1, 3)
    end
    local units = {}
    for i, unit in ipairs(pool.units) do
      units[i] = cjson.encode(unit)
    end
    given = given .. ',"rates":[' .. table.concat(rates, ',') .. '],"limits":' .. list(pool.limits)
      .. ',"units":[' .. table.concat(units, ',') .. ']'
  end
  given = given .. '}'
  if question.bye then
    for i = 2, 11 do
      member[i] = 0
    end
  end
  pool.answered[who] = {number, given}
  return given, true
end

-- -- one question

local pool = unpacked(redis.call('GET', KEYS[1]))
local question = cjson.decode(ARGV[1])
local now = microseconds(redis.call('TIME'))

local generation, version = pool.window[2], pool.version
local given, changed = answer(pool, question, now)
if changed then
  local keep = floor((idle_for(pool, pool.now) + 999) / 1000) + IDLE
  redis.call('SET', KEYS[1], packed(pool), 'PX', int(keep))
  if pool.window[2] ~= generation or pool.version ~= version then
    -- Whoever may not publish is still answered: the others hear of it with their next answer.
    redis.pcall('PUBLISH', KEYS[1] .. ':news', int(pool.window[2]) .. ' ' .. int(pool.version))
  end
end
return given
