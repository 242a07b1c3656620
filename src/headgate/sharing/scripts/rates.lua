-- The rates of a pool: the arithmetic of pool/rate.py and pool/strict.py, step by step. Comes after integers.lua
-- and state.lua.
--
-- ARGV[2]  the constants, as a list in JSON

local LAYOUT, CALLS, LEAST_AHEAD, MOST_AHEAD, EARLY, SOONEST, GRACE, FAR, AGAIN, SET_BACK, KEPT_IDLE, MOST_MARKS, SPACING,
  USED_WITHIN, LONG_AGO, NEAR_PART, GROUPS, LIFE_PART, SHORTEST_LIFE, LONGEST_LIFE, REUNION, NOT_KNOWN, WHOLE, PRESENT,
  DIVIDED_FOR, MOST_LONGER, FEW_PART, SHORTEST_MOMENT, ENOUGH, LATELY, HALF, FAR_PART, GAPS, STALE,
  LONGEST_ROUND, REUNION_TIMES,
  SHARDED =
  unpack(cjson.decode(ARGV[2]))

local BUCKET, GROWING, STRICT = 0, 1, 2
local UNKNOWN = 1125899906842624

local function new_rate(terms, stamp)
  local amount, period, burst = exact(terms[AMOUNT]), exact(terms[PERIOD]), exact(terms[BURST])
  local kind = terms[KIND] or BUCKET
  if kind == STRICT then
    return {amount, period, burst, kind, stamp, {}, {}, {}, {}, 0, 0, 0}
  end
  return {amount, period, burst, kind, 0, stamp, {}, {}, 0, 0, 0, {}, {}, {}, 0, 0, 0}
end

local function same_terms(rate, terms)
  return rate[AMOUNT] == terms[AMOUNT] and rate[PERIOD] == terms[PERIOD] and rate[BURST] == terms[BURST]
    and rate[KIND] == (terms[KIND] or BUCKET)
end

local function same_rates(rates, wanted)
  local alike = #wanted == #rates
  for i, rate in ipairs(rates) do
    alike = alike and same_terms(rate, wanted[i])
  end
  return alike
end

local function terms_of(rates)
  local terms = {}
  for i, rate in ipairs(rates) do
    terms[i] = {rate[AMOUNT], rate[PERIOD], rate[BURST], rate[KIND] ~= BUCKET and rate[KIND] or nil}
  end
  return terms
end

-- -- buckets

local function time_for(rate, units)
  return rounded_up(units, rate[PERIOD], rate[AMOUNT])
end

local function earned_in(rate, time)
  return rounded_up(max(0, time), rate[AMOUNT], rate[PERIOD])
end

local function whole_burst(rate)
  return max(rate[BURST], rate[RAISED])
end

local function most(rate)
  local burst = whole_burst(rate)
  return burst - floor(burst / 10)
end

local function fill(rate, stamp)
  rate[FULL_STAMP] = stamp
  rate[STAMPS], rate[LOWS] = {}, {}
end

local function thinned(list)
  local kept = {}
  for i, value in ipairs(list) do
    if i > MOST_MARKS / 2 or i % 2 == 1 then
      kept[#kept + 1] = value
    end
  end
  return kept
end

local function count(rate, units, start)
  local moments, taken = rate[MOMENTS], rate[TAKEN]
  if start >= moments[#moments] + SPACING then
    moments[#moments + 1] = start
    taken[#taken + 1] = 0
    if #moments > MOST_MARKS then
      moments, taken = thinned(moments), thinned(taken)
      rate[MOMENTS], rate[TAKEN] = moments, taken
    end
  end
  for i, moment in ipairs(moments) do
    if moment <= start then
      taken[i] = min(UNKNOWN, taken[i] + units)
    end
  end
end

local function uncount(rate, units, stamp, now)
  local taken = rate[TAKEN]
  for i, moment in ipairs(rate[MOMENTS]) do
    if moment <= stamp and taken[i] < UNKNOWN then
      taken[i] = max(0, taken[i] - units)
    end
  end
  local time = (divided(units, rate[PERIOD], rate[AMOUNT]))
  rate[FACTS_AT] = rate[FACTS_AT] - min(max(0, rate[FACTS_AT] - now), time)
end

local function spent_since(rate, at)
  local moments = rate[MOMENTS]
  for i = #moments, 1, -1 do
    if moments[i] <= at - USED_WITHIN then
      return rate[TAKEN][i]
    end
  end
  return UNKNOWN
end

local function facts(rate, now)
  return earned_in(rate, min(rate[FACTS_AT] - now, 2 * rate[PERIOD]))
end

local function burst_for(units)
  return units + floor(units / 9)
end

-- -- strict rates

local function life_of(rate)
  return min(LONGEST_LIFE, max(SHORTEST_LIFE, floor(rate[PERIOD] / LIFE_PART)))
end

local function counts_for(rate)
  return rate[PERIOD] + life_of(rate)
end

local function counted(rate, now)
  local sum, gone = 0, now - counts_for(rate)
  for i, last in ipairs(rate[LASTS]) do
    if last > gone then
      sum = sum + rate[UNITS][i]
    end
  end
  return sum
end

local function down_to(rate, units, now)
  if units < 0 then
    return max(now, rate[CAPPED_UNTIL])
  end
  local excess, at = -units, now
  for _, each in ipairs(rate[UNITS]) do
    excess = excess + each
  end
  for i, last in ipairs(rate[LASTS]) do
    if excess <= 0 then
      break
    end
    excess = excess - rate[UNITS][i]
    at = max(now, last + counts_for(rate))
  end
  return at
end

-- How many units there are at that moment, if nothing else is taken.
local function room(rate, at)
  return max(0, rate[AMOUNT] - counted(rate, at))
end

local function strict_fits_at(rate, units, now)
  units = min(units, rate[AMOUNT])
  local at = down_to(rate, rate[AMOUNT] - units, now)
  if at < rate[CAPPED_UNTIL] then
    at = min(max(at, down_to(rate, rate[CAP] - units, now)), rate[CAPPED_UNTIL])
  end
  return at
end

local function forget_gone(rate, now)
  local gone, kept = now - counts_for(rate), {{}, {}, {}, {}}
  for i, last in ipairs(rate[LASTS]) do
    if last <= gone then
      rate[GONE] = rate[LAST_STAMPS][i]
    else
      for column = 1, 4 do
        kept[column][#kept[column] + 1] = rate[FIRSTS + column - 1][i]
      end
    end
  end
  rate[FIRSTS], rate[LASTS], rate[LAST_STAMPS], rate[UNITS] = unpack(kept)
end

local function strict_charge(rate, units, start, stamp, doubt)
  if units == 0 then
    return
  end
  start = exact(start + max(0, doubt - floor(life_of(rate) / 2)))
  local firsts, lasts = rate[FIRSTS], rate[LASTS]
  local n = #lasts
  if n > 0 and (start <= lasts[n] or start < firsts[n] + floor(rate[PERIOD] / GROUPS)) then
    lasts[n] = max(lasts[n], start)
    rate[LAST_STAMPS][n] = stamp
    rate[UNITS][n] = exact(rate[UNITS][n] + units)
  else
    firsts[n + 1], lasts[n + 1], rate[LAST_STAMPS][n + 1], rate[UNITS][n + 1] = start, start, stamp, exact(units)
  end
end

local function strict_take_back(rate, units, stamp)
  if stamp <= rate[GONE] then
    return
  end
  for i, last in ipairs(rate[LAST_STAMPS]) do
    if stamp <= last then
      rate[UNITS][i] = rate[UNITS][i] - min(units, rate[UNITS][i])
      return
    end
  end
end

local function strict_hear(rate, remaining, at, now)
  if at >= rate[HEARD_AT] then
    rate[HEARD_AT] = at
    local cap = counted(rate, now) + remaining
    rate[CAPPED_UNTIL] = cap < rate[AMOUNT] and now + rate[PERIOD] or 0
    rate[CAP] = min(cap, rate[AMOUNT])
  end
end

-- -- both

-- `apart`: for the member whose shift it is.
local function fits_at(rate, units, now, less, apart)
  if rate[KIND] == STRICT then
    return strict_fits_at(rate, units, now)
  end
  local full_at = rate[FULL_AT] + (apart and 0 or rate[GAP])
  less = less + time_for(rate, min(units, whole_burst(rate))) - time_for(rate, most(rate))
  local unused = #rate[DOUBTS] > 0 and 0 or rate[UNUSED]
  return max(now, full_at + less + max(0, min(unused, -less)))
end

-- Keep back what may lie unused beyond a tenth of the burst, with members of these reaches.
local function keep_unused(rate, reaches, resting)
  local burst, many, latest, far = whole_burst(rate), #reaches, 0, 0
  local near_for = floor(time_for(rate, burst) / NEAR_PART)
  if many > 0 and near_for < SHORTEST_MOMENT then
    local moment, near = max(near_for, min(SHORTEST_MOMENT, floor(time_for(rate, burst) / FEW_PART))), 0
    for _, reach in ipairs(reaches) do
      near = reach <= near_for and max(near, reach) or near
      far = max(far, reach)
    end
    latest, far = moment + near, 2 * far > near_for and moment + far or 0
  end
  local each = floor(floor(rate[BURST] / 10) / max(1, many))
  local units = each > 0 and many * each or (resting < most(rate) and resting or 0)
  local time, one, tenth = time_for(rate, units), time_for(rate, 1), time_for(rate, burst - most(rate))
  rate[UNUSED] = max(0, (many == 1 and max(time, latest) or time + latest + (latest > 0 and one or 0)) - tenth)
  rate[HELD] = far > 0 and max(0, min(time + far + one - tenth, floor(time_for(rate, most(rate)) / 2))) or 0
end

-- Go on to that moment: units that may be used later were missing all the time. But so many are there then: `room`.
local function miss(rate, at, stamp, room)
  local doubts = rate[DOUBTS]
  local latest = at + time_for(rate, most(rate)) - time_for(rate, min(room, most(rate)))
  while #doubts > 0 do
    local until_, units = doubts[1][1], 0
    local then_ = min(until_, at)
    for _, doubt in ipairs(doubts) do
      if doubt[2] <= then_ then
        units = units + doubt[3]
      end
    end
    local least = min(then_ + time_for(rate, min(units, most(rate))), latest)
    if least > rate[FULL_AT] then
      fill(rate, stamp)
      rate[FULL_AT] = least
    end
    if until_ > at then
      break
    end
    table.remove(doubts, 1)
  end
end

-- Remember that these units may be used so much later.
local function remember_doubt(rate, units, start, time)
  local spacing = max(1, floor(time / 8), min(SPACING, floor(time_for(rate, most(rate)) / 8)))
  local until_ = exact(start + time)
  local doubts, i = rate[DOUBTS], 1
  while doubts[i] and doubts[i][1] < until_ do
    i = i + 1
  end
  if doubts[i] and doubts[i][1] < until_ + spacing then
    doubts[i] = {doubts[i][1], min(start, doubts[i][2]), doubts[i][3] + units}
  else
    local rest = until_ % spacing
    table.insert(doubts, i, {rest > 0 and until_ - rest + spacing or until_, start, units})
  end
end

-- Take what was kept for flows since then, as time of the rate.
local function flow_by(rate, since, time)
  rate[FULL_AT] = exact(max(rate[FULL_AT], since) + time)
  for i, doubt in ipairs(rate[DOUBTS]) do
    rate[DOUBTS][i] = {exact(doubt[1] + time), doubt[2] + time, doubt[3]}
  end
end

-- Remember what members may use from then on, where the far side may state that it has more.
local function tell_taken(rate, units, start, doubt)
  if rate[KIND] == GROWING and units > 0 then
    rate[FACTS_AT] = exact(max(rate[FACTS_AT], start) + time_for(rate, units))
    if #rate[MOMENTS] > 0 then
      count(rate, units, exact(start + doubt))
    end
  end
end

local function charge(rate, units, start, stamp, doubt)
  doubt = doubt or 0
  if rate[KIND] == STRICT then
    return strict_charge(rate, units, start, stamp, doubt)
  end
  miss(rate, start, stamp, FEW_PART * units > most(rate) and units or 0)
  local moment = floor(time_for(rate, whole_burst(rate)) / NEAR_PART)
  if units > 0 and doubt > moment then
    remember_doubt(rate, units, start, doubt + moment)
  end
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
  if rate[KIND] == STRICT then
    return strict_take_back(rate, units, stamp)
  end
  local stamps, lows = rate[STAMPS], rate[LOWS]
  if rate[KIND] == GROWING then
    uncount(rate, units, stamp, now)
  end
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
  lowest = max(0, lowest - (#rate[DOUBTS] > 0 and rate[HELD] or 0))
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

-- Whether there is much more now than before.
local function hear(rate, remaining, allowed, at, now)
  if rate[KIND] == STRICT then
    strict_hear(rate, remaining, at, now)
    return false
  end
  if at < rate[HEARD_AT] or rate[FULL_AT] - now > LONG_AGO then
    return false
  end
  local growing, missing = rate[KIND] == GROWING, earned_in(rate, rate[FULL_AT] + rate[GAP] - now)
  if growing and #rate[MOMENTS] == 0 then
    local since = at - USED_WITHIN
    rate[MOMENTS] = {since}
    rate[TAKEN] = {now - since <= LONG_AGO and missing + earned_in(rate, now - since) or UNKNOWN}
  end
  rate[HEARD_AT] = at
  local level = most(rate) - missing
  if allowed < 0 and rate[RAISED] > 0 then
    rate[RAISED] = 0
    level = min(level, most(rate))
    rate[FULL_AT] = exact(now + time_for(rate, most(rate) - level))
  end
  local has = remaining + earned_in(rate, min(now - at, time_for(rate, most(rate))))
  if has < level then
    rate[FULL_AT] = exact(now + time_for(rate, most(rate) - has))
  elseif growing and allowed > 0 then
    allowed = min(allowed, rate[AMOUNT])
    local units = min(remaining - spent_since(rate, at), allowed, 2 * allowed - facts(rate, now))
    if units > max(0, level) then
      local much = 2 * (units - level) > most(rate)
      if units > most(rate) then
        rate[RAISED] = burst_for(units)
      end
      rate[FULL_AT] = exact(now + time_for(rate, most(rate) - units))
      fill(rate, max(rate[FULL_STAMP], at - USED_WITHIN))
      return much
    end
  end
  return false
end

-- How many units a rate that replaces this one may go on with.
local function left(rate, now)
  if rate[KIND] == STRICT then
    return max(0, rate[AMOUNT] - counted(rate, now))
  end
  local owed, burst = max(0, rate[FULL_AT] + rate[GAP] - now), whole_burst(rate)
  -- If twice the burst or more is missing, how much more does not matter, and may be too large a number.
  if owed / rate[PERIOD] * rate[AMOUNT] < 2 * burst + 2 then
    return max(0, burst - rounded_up(owed, rate[AMOUNT], rate[PERIOD]))
  end
  return 0
end

local function follow(rate, old, now)
  if rate[KIND] == STRICT then
    if old[KIND] == STRICT then
      for i = GONE, CAP do
        rate[i] = type(old[i]) == 'table' and {unpack(old[i])} or old[i]
      end
    else
      strict_charge(rate, rate[AMOUNT] - min(rate[AMOUNT], left(old, now)), now, rate[GONE], 0)
    end
    return
  end
  if rate[KIND] == GROWING and old[KIND] == GROWING then
    rate[RAISED] = min(old[RAISED], burst_for(rate[AMOUNT]))
    rate[HEARD_AT] = old[HEARD_AT]
    rate[FACTS_AT] = exact(now + time_for(rate, min(2 * rate[AMOUNT], facts(old, now))))
    rate[MOMENTS], rate[TAKEN] = {unpack(old[MOMENTS])}, {unpack(old[TAKEN])}
  end
  if old[KIND] ~= STRICT then
    rate[DOUBTS] = {unpack(old[DOUBTS])}
  end
  rate[FULL_AT] = exact(now + time_for(rate, max(0, whole_burst(rate) - left(old, now))))
end

local function idle_from(rate)
  if rate[KIND] == STRICT then
    local lasts = rate[LASTS]
    return max(rate[CAPPED_UNTIL], #lasts > 0 and lasts[#lasts] + counts_for(rate) or 0)
  end
  local full_at = max(rate[FULL_AT] + rate[GAP], rate[FACTS_AT])
  return full_at + time_for(rate, whole_burst(rate)) - time_for(rate, most(rate))
end

-- If it has yet to come back from a window of that end.
local function idle_after(rate, until_)
  if rate[KIND] == STRICT then
    return max(until_, idle_from(rate))
  end
  return until_ + time_for(rate, whole_burst(rate))
end

