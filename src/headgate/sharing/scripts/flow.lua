-- Parts of the rates that are kept for members far from the store: the arithmetic of pool/flow.py, step by step. Comes
-- after integers.lua, state.lua and rates.lua.

-- What all parts of a rate are together.
local ALL = 1000000

-- Whether what a member of that doubt is granted has to be a flow.
local function is_far(rates, doubt)
  local far = false
  for _, rate in ipairs(rates) do
    if rate[KIND] == STRICT then
      return false
    end
    far = far or 2 * doubt > time_for(rate, most(rate))
  end
  return far
end

-- Whether these are so few units, with those that may be used late, that they may come together.
local function are_few(rates, batches)
  for i, rate in ipairs(rates) do
    local units = 0
    for _, batch in ipairs(batches) do
      units = units + batch[i]
    end
    for _, doubt in ipairs(rate[DOUBTS]) do
      units = units + doubt[3]
    end
    if FEW_PART * time_for(rate, units) > time_for(rate, most(rate)) then
      return false
    end
  end
  return true
end

-- The part that is kept for a member, at that moment or later.
local function kept_for(member, at)
  local kept = 0
  for _, flow in ipairs(member[FLOWS]) do
    if flow[1] > at then
      kept = max(kept, flow[2])
    end
  end
  return kept
end

local function kept_for_all(members, at)
  local kept = 0
  for _, member in pairs(members) do
    kept = kept + kept_for(member, at)
  end
  return kept
end

-- From when on, and not before `at`, that part can be kept beside those of these members.
local function room_from(others, share, at)
  local ends = {}
  for _, each in ipairs(others) do
    for _, flow in ipairs(each[FLOWS]) do
      if flow[1] > at then
        ends[#ends + 1] = flow[1]
      end
    end
  end
  table.sort(ends)
  local i = 0
  while kept_for_all(others, at) + share > ALL and i < #ends do
    i = i + 1
    at = ends[i]
  end
  return at
end

-- Take from the rates what was kept since the pool was asked last.
local function pass_by(pool, since)
  local now, used = pool.now, 0
  for _, member in pairs(pool.members) do
    local begin, left = since, {}
    for _, flow in ipairs(member[FLOWS]) do
      local stop = min(flow[1], now)
      if stop > begin then
        used = exact(used + (stop - begin) * flow[2])
        begin = stop
      end
      if flow[1] > now then
        left[#left + 1] = flow
      end
    end
    member[FLOWS] = left
  end
  if used > 0 then
    for _, rate in ipairs(pool.rates) do
      if rate[KIND] ~= STRICT then
        rate[FULL_AT] = exact(max(rate[FULL_AT], since) + rounded_up(used, 1, ALL))
      end
    end
  end
end

-- When that moment comes, if it was reckoned without the part that is kept.
local function beside(kept, at, now)
  return exact(now + (divided(at - now, ALL, max(ALL - kept, ALL / MOST_LONGER))))
end

-- Which moment is reached by then, if it is reckoned without the part that is kept.
local function alone(kept, at, now)
  return now + (divided(at - now, max(0, ALL - kept), ALL))
end

-- What may be used at once of all flows, and of one more with that batch, as time of the rates.
local function together(pool, lump)
  local lumps, few = lump, false
  for _, member in pairs(pool.members) do
    if #member[FLOWS] > 0 then
      lumps = lumps + member[LUMP]
    end
  end
  for _, rate in ipairs(pool.rates) do
    if rate[KIND] ~= STRICT then
      local time = time_for(rate, most(rate))
      few = few and min(few, time) or time
    end
  end
  return max(lumps, min(2 * lumps, floor((few or 0) / FEW_PART)))
end

-- Keep that part of the rates for a member. A larger one was told to it before: that is used first.
local function keep(member, share, begins, until_, now)
  local flows = member[FLOWS]
  local last = flows[#flows]
  if not last then
    if begins > now then
      flows[1] = {begins, 0}
    end
    flows[#flows + 1] = {until_, share}
  elseif last[2] > share then
    flows[#flows + 1] = {max(until_, last[1]), share}
  else
    flows[#flows] = {max(until_, last[1]), share}
  end
end

