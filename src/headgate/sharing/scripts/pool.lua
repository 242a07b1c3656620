-- One question to one pool: the decisions of pool/answer.py, step by step. Comes after integers.lua, state.lua,
-- rates.lua, flow.lua, shift.lua, episode.lua, reunion.lua, grants.lua, unused.lua, parts.lua and news.lua.
--
-- KEYS[1]  the pool                 ARGV[1]  the question, as JSON        ARGV[2]  the constants, as a list in JSON
-- reply    the values of the answer
-- news     to the channel KEYS[1]:news, when the window or the limits changed, or members are called to ask
--
-- Times are the server's, in microseconds.

-- -- the pool

local MOST_SUCCESSES = 1125899906842624

local function new_pool()
  return {
    rates = {}, limits = {0, 0, 0, 0}, units = {}, version = 0, members = {}, window = {false, 0, false, 0, 0, ''},
    stamp = 0, now = 0, ahead = 0, called = 0, lesson = {0, 0, 0, '', 0}, configured = {}, raised = 0, born = 0, grants_from = 0,
    present = {}, parts = 0, parts_until = 0, beside = {}, granted_until = 0, apart = '', prepaid = 0,
    reunion_from = 0, reunion_until = 0, asked_from = 0, asked_until = 0,
  }
end

local function new_member(expires)
  return {expires, 0, 0, 0, 0, 0, {0, 0}, {0, 0}, {}, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, false}
end

local function advance(pool, now)
  if now + pool.ahead < pool.now - SET_BACK then
    pool.ahead = pool.now - now
  end
  local before = pool.now
  pool.now = max(now + pool.ahead, before)
  Flow.pass_by(pool, before)
  for name, member in pairs(pool.members) do
    if member[EXPIRES] <= pool.now then
      pool.members[name] = nil
    end
  end
end

local function idle_for(pool)
  local until_, latest = pool.window[UNTIL], pool.now
  if until_ then
    latest = max(latest, until_ + pool.limits[THROTTLED_FOR])
  end
  for _, rate in ipairs(pool.rates) do
    latest = max(latest, idle_from(rate))
    if until_ ~= pool.window[RESUMED] then
      latest = max(latest, idle_after(rate, until_))
    end
  end
  for _, member in pairs(pool.members) do
    latest = max(latest, member[EXPIRES])
  end
  return latest - pool.now
end

-- -- limits and the window

local function same_lists(a, b)
  local alike = #a == #b
  for i, list in ipairs(a) do
    alike = alike and same(list, b[i])
  end
  return alike
end

-- The rate that the i-th of new ones replaces.
local function replaced(pool, i, terms, units)
  local old = pool.rates
  if not same(units, pool.units) then
    for j, unit in ipairs(pool.units) do
      if unit == units[i] then
        return old[j]
      end
    end
    return nil
  end
  for _, rate in ipairs(old) do
    if same_terms(rate, terms) then
      return rate
    end
  end
  return old[i]
end

local function read_limits(pool, question, now)
  local wanted, limits, units, learned = question.rates, question.limits, question.units, false
  if question.set ~= cjson.null then
    wanted, limits, learned = question.set[1], question.set[2], question.set[3] and true
  elseif pool.version > 0 then
    return
  end
  if learned then
    units, pool.configured = question.set[3], question.set[4]
  else
    if wanted == cjson.null and pool.version == 0 then
      wanted = question.rates
    elseif wanted == cjson.null or same_lists(wanted, pool.configured) then
      wanted, units = terms_of(pool.rates), pool.units
    end
    if #wanted ~= #pool.rates or (pool.version > 0 and not same(pool.units, units)) then
      for name in pairs(pool.members) do
        if name ~= question.member then
          return
        end
      end
    end
    if not same_rates(pool.rates, wanted) then
      pool.configured = wanted
    end
  end
  if same_rates(pool.rates, wanted) and same(pool.limits, limits) and (not learned or same(units, pool.units)) then
    return
  end
  pool.version = next_stamp(pool)
  local rates = {}
  for i, terms in ipairs(wanted) do
    rates[i] = new_rate(terms, pool.version)
    local before = replaced(pool, i, terms, units)
    if before then
      follow(rates[i], before, now)
    end
  end
  pool.rates, pool.units, pool.apart = rates, units, ''
  pool.limits = {exact(limits[1]), exact(limits[2]), exact(limits[3]), exact(limits[4])}
end

local function begin_again(pool, question, now)
  if pool.born == 0 then
    pool.born = max(1, now)
  end
  local lost = question.born ~= 0 and question.born ~= pool.born
  if lost and now < pool.born + REUNION then
    local parts = floor(WHOLE / max(1, question.part[1]))
    local ahead = granted_ahead(time_for_calls(pool) * parts)
    local until_ = exact(pool.born + question.granted_for)
    if pool.grants_from == 0 then
      until_ = exact(now + max(ahead + floor(ahead / 2) + 3 * question.reach, question.granted_for))
    end
    pool.grants_from = pool.born + REUNION
    for _, rate in ipairs(until_ > pool.granted_until and pool.rates or {}) do
      local used_at = until_ + floor(ahead / 2)
      if rate[KIND] ~= STRICT then
        charge(rate, 0, exact(used_at + min(time_for(rate, most(rate)), NOT_KNOWN)), next_stamp(pool))
      elseif rate[PERIOD] <= NOT_KNOWN then
        charge(rate, rate[AMOUNT], used_at, next_stamp(pool))
      end
    end
    pool.granted_until = max(until_, pool.granted_until)
  end
  if question.recalls > 0 and not pool.window[UNTIL] then
    signal_window(pool, question.recalls, 0, question.member, now)
  end
end

local function resume(pool, now)
  local window = pool.window
  if window[UNTIL] and window[UNTIL] ~= window[RESUMED] and window[UNTIL] <= now then
    for _, rate in ipairs(window[GENTLE] == 1 and {} or pool.rates) do
      if rate[KIND] ~= STRICT then
        charge(rate, 0, exact(window[UNTIL] + time_for(rate, most(rate))), next_stamp(pool))
      end
    end
    window[RESUMED] = window[UNTIL]
  end
end

-- -- what is granted

local function charge_and_return(pool, question, now)
  local known, raised = knows_rates(pool, question), false
  local flows = #pool.members[question.member][FLOWS] > 0
  for i, rate in ipairs(pool.rates) do
    if rate[KIND] == STRICT then
      forget_gone(rate, now)
    else
      if #rate[DOUBTS] > 0 then
        miss(rate, now, next_stamp(pool), 0)
      end
      if rate[FULL_AT] + rate[GAP] <= now then
        rate[GAP] = 0
        fill(rate, next_stamp(pool))
      end
    end
    if known then
      for _, returned in ipairs(flows and {} or question.returned[i]) do
        take_back(rate, returned[1], returned[2], now)
      end
      if question.owed[i] ~= 0 then
        charge(rate, question.owed[i], now, next_stamp(pool))
        tell_taken(rate, question.owed[i], now, 0)
      end
      local stated = question.stated[i]
      if #stated > 0 then
        raised = hear(rate, stated[1], stated[2], now - stated[3], now) or raised
      end
    end
  end
  if raised then
    pool.called = next_stamp(pool)
    pool.raised = pool.called
    for _, member in pairs(pool.members) do
      member[LAST_START] = min(member[LAST_START], now)
    end
  end
end

-- Places and bytes. Their functions are in a table, because a script may not have more than 200 local variables.
local Held = {}

function Held.share_of(pool, who, kind, limit)
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
  local own, even_own, free = 0, 0, limit
  left = limit
  for name, member in pairs(members) do
    if name ~= who then
      free = free - member[HOLDS][kind]
    end
  end
  local not_held = free
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
      own, even_own = max(0, min(most, max(free, min(member[HOLDS][kind], not_held)))), even
      break
    end
    free = free - max(0, most - member[HOLDS][kind])
  end
  if own > even_own + (even_own > 0 and 1 or 0) then
    members[who][TURN] = next_stamp(pool)
  end
  return own
end

function Held.call_for_spare(pool, who, kind)
  for name, other in pairs(pool.members) do
    if name ~= who and other[HOLDS][kind] > other[WANTS][kind] and other[CROWDED] == 0 then
      other[CROWDED] = 1
      pool.called = next_stamp(pool)
    end
  end
end

function Held.hold(pool, who, member, question, now)
  local limits, until_ = pool.limits, pool.window[UNTIL]
  local places, throttled = limits[PLACES_LIMIT], limits[THROTTLED_PLACES]
  if throttled > 0 and pool.window[GENTLE] == 0 and until_ and now < until_ + limits[THROTTLED_FOR] then
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
        target = Held.share_of(pool, who, kind, limit)
      end
      if now < pool.grants_from then
        target = min(target, max(used, exact(question.may_use[kind])))
      elseif now < pool.reunion_until then
        local free = limit - Parts.taken(pool, who, kind)
        target = min(target, max(used, exact(question.may_use[kind]), free))
      end
    end
    member[HOLDS][kind] = max(used, exact(question.may_use[kind]), target)
    granted[kind] = target
    if limit > 0 and target < want then
      Held.call_for_spare(pool, who, kind)
    end
  end
  member[CROWDED] = crowded and 1 or 0
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
  local lesson, taught, heard = pool.lesson, question.lesson ~= cjson.null, false
  if taught then
    heard = hear_lesson(pool, question.lesson, now)
  end
  lesson[SUCCESSES] = (lesson[SUCCESSES] + exact(question.successes)) % MOST_SUCCESSES
  if heard or not taught then
    read_limits(pool, question, now)
  end
  local member = pool.members[who] or new_member(0)
  pool.members[who] = member
  member[EXPIRES] = exact(now + question.lease)
  begin_again(pool, question, now)
  local apart = Reunion.reunite(pool, question, now)
  member[REACH], member[BACK] = exact(question.reach), exact(question.back)
  if question.window ~= cjson.null then
    signal_window(pool, question.window, question.manner, who, now)
  end
  local prober = pool.window[PROBER]
  local probes = assign(pool, who, question.waiting, question.uses[PLACES])
  if prober ~= '' and prober ~= pool.window[PROBER] then
    pool.called = next_stamp(pool)
  end
  if question.waits_for_window then
    resume(pool, now)
  end
  charge_and_return(pool, question, now)
  keep_back(pool, now)
  local starts, ask_again_in = grant(pool, member, question, now)
  local first_stamp = pool.stamp - #starts + 1
  local places, load, crowded = Held.hold(pool, who, member, question, now)
  local count, farthest, until_ = 0, 0, pool.window[UNTIL]
  for i, start in ipairs(starts) do
    starts[i] = start - now
  end
  for _, each in pairs(pool.members) do
    count, farthest = count + 1, max(farthest, each[REACH])
  end
  -- In the order of `Answer` in pool/question.py.
  local given = {
    starts, first_stamp, ask_again_in, exact(places), exact(load), crowded and 1 or 0, count, pool.version,
    until_ and max(0, until_ - now) or 0, pool.window[GENERATION], pool.window[GENTLE], probes, lesson[VERSION],
    lesson[EPISODE], lesson[SUCCESSES], {}, pool.raised, pool.born, idle_for(pool) + KEPT_IDLE, now,
    Parts.divide(pool, question, now),
  }
  given[22], given[23], given[24] = granted_for(pool), farthest, apart
  if lesson[TEXT] ~= '' and not heard and question.lesson_version ~= lesson[VERSION] then
    given[16] = {now - lesson[TOLD_AT], lesson[TEXT]}
  end
  if question.version ~= pool.version or (taught and not heard) then
    given[25], given[26], given[27] = terms_of(pool.rates), pool.limits, pool.units
  end
  if pool.present[who] then
    pool.present[who][4] = Reunion.asks_by(question, ask_again_in, now)
  end
  if question.leaves then
    local flows, lump = member[FLOWS], member[LUMP]
    member = new_member(member[EXPIRES])
    member[FLOWS], member[LUMP] = flows, lump
    pool.members[who] = member
  end
  member[ANSWERED], member[ANSWER] = question.id, given
  return given, true
end

-- -- one question

local text = redis.call('GET', KEYS[1])
local pool = new_pool()
if text then
  pool = unpacked(text, LAYOUT) or error('headgate: the pool was made by another version of headgate; end the processes '
    .. 'of the other version and wait a minute, or write another key')
end
local question = cjson.decode(ARGV[1])
local now = microseconds(redis.call('TIME'))

local generation, version, called, born = pool.window[GENERATION], pool.version, pool.called, pool.born
local lesson = pool.lesson[VERSION]
local given, changed = answer(pool, question, now)
if changed then
  local keep = ceil((idle_for(pool) + KEPT_IDLE) / 1000)
  redis.call('SET', KEYS[1], packed(pool, LAYOUT), 'PX', keep)
  if pool.window[GENERATION] ~= generation or pool.version ~= version or pool.called ~= called or pool.born ~= born
    or pool.lesson[VERSION] ~= lesson then
    -- What `read_news` in pool/heard.py reads: the pool, and the window as the answer tells it.
    local news = string.format('%.0f %.0f %.0f %d %.0f', pool.born, given[10], given[9], given[11], given[20])
    tell(KEYS[1] .. ':news', news, SHARDED)
  end
end
return given
